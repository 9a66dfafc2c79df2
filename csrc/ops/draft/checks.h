// From tensors to the argument structs of the draft kernels: every check of the family.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "host/check.h"
#include "host/tensor.h"
#include "ops/draft/algorithm.h"

namespace dspark::draft {

using host::Arg;
using host::dense;
using host::Dims;
using host::fail;
using host::float_type;
using host::new_tensor;
using host::OptionalTensor;
using host::ScalarType;
using host::Tensor;

// One call of an operator; its tensors are dense.
struct Call {
    const char* op;
    const Tensor& like;  // every tensor is on its device
    bool on_device;      // the kernels run on a device, where the host reads no value

    const void* floats(const char* name, const Tensor& tensor, Dims shape, FloatType& type) const {
        Arg(op, name, tensor)
            .on_device_of(like)
            .dtype({ScalarType::Float, ScalarType::BFloat16, ScalarType::Half})
            .shape(shape);
        type = float_type(tensor);
        return tensor.const_data_ptr();
    }
    template <class T>
    const T* vector(const char* name, const Tensor& tensor, ScalarType dtype,
                    host::Dim size) const {
        Arg(op, name, tensor).on_device_of(like).dtype({dtype}).shape({size});
        return static_cast<const T*>(tensor.const_data_ptr());
    }
    // [from, to]
    void within(const char* name, int64_t value, const std::string& expected, int64_t from,
                int64_t to) const {
        if (value >= from && value <= to) return;
        fail(op, name, "expected " + expected + ", got " + std::to_string(value));
    }
};

inline int64_t round_up(int64_t size, int64_t unit) {
    return (size + unit - 1) / unit * unit;
}

// ---- markov_sample ------------------------------------------------------------------------------

// What the logits of a block come from.
struct MarkovModel {
    const Tensor base_logits, anchor, w1, w2;
    const std::string& head;
    const OptionalTensor hidden, head_weight, head_bias;
};

struct MarkovInputs {
    const MarkovModel model;
    const std::string& method;
    const Tensor temperature, seeds, positions;
    const OptionalTensor d2t;
    int64_t num_drafts, vocab_size;
    bool exact;
};

inline MarkovHead parse_head(const Call& call, const std::string& head) {
    if (head == "vanilla") return MarkovHead::kVanilla;
    if (head == "gated") return MarkovHead::kGated;
    if (head == "rnn") return MarkovHead::kRnn;
    fail(call.op, "head", "expected vanilla, gated or rnn, got " + head);
}

inline bool parse_greedy(const std::string& method) {
    if (method == "greedy") return true;
    if (method == "probabilistic") return false;
    fail("markov_sample", "method", "expected probabilistic or greedy, got " + method);
}

// Every draft id maps to its own target id in [0, vocab).
inline void check_d2t(const Call& call, const int64_t* d2t, int64_t draft_vocab, int64_t vocab) {
    std::vector<bool> taken(static_cast<size_t>(vocab), false);
    for (int64_t i = 0; i < draft_vocab; ++i) {
        const bool is_inside = d2t[i] >= -i && d2t[i] < vocab - i;
        const int64_t id = is_inside ? i + d2t[i] : -1;
        if (!is_inside || taken[static_cast<size_t>(id)]) {
            fail(call.op, "d2t",
                 "expected offsets to distinct target ids in [0, " + std::to_string(vocab) +
                     "), got offset " + std::to_string(d2t[i]) + " for draft id " +
                     std::to_string(i));
        }
        taken[static_cast<size_t>(id)] = true;
    }
}

inline void check_row_temperatures(const Call& call, const float* temperature, int64_t batch) {
    for (int64_t b = 0; b < batch; ++b) {
        if (DSPARK_ISA::draft::is_valid_temperature(temperature[b])) continue;
        fail(call.op, "temperature",
             "expected finite numbers >= 0, got " + std::to_string(temperature[b]) +
                 " for request " + std::to_string(b));
    }
}

// What a head reads besides the embedding of the previous token.
inline void check_head(const Call& call, const MarkovModel& in, MarkovArgs& args) {
    const OptionalTensor* parts[] = {&in.hidden, &in.head_weight, &in.head_bias};
    const char* names[] = {"hidden", "head_weight", "head_bias"};
    if (args.head == MarkovHead::kVanilla) {
        for (int i = 0; i < 3; ++i) {
            if (*parts[i])
                fail(call.op, names[i], "head vanilla reads none: expected None, got a tensor");
        }
        return;
    }
    for (int i = 0; i < 2; ++i) {
        if (!*parts[i])
            fail(call.op, names[i], "head " + in.head + " needs it: expected a tensor, got None");
    }
    args.hidden =
        call.floats("hidden", *in.hidden, {{"B", args.batch}, {"K", args.num_positions}, {"d"}},
                    args.hidden_type);
    args.hidden_size = in.hidden->size(2);
    const bool is_rnn = args.head == MarkovHead::kRnn;
    const host::Dim rows = {is_rnn ? "3r" : "r", DSPARK_ISA::draft::head_rows(args)};
    const host::Dim columns = {is_rnn ? "2r+d" : "d+r", DSPARK_ISA::draft::head_row_size(args)};
    args.head_weight =
        call.floats("head_weight", *in.head_weight, {rows, columns}, args.head_weight_type);
    if (in.head_bias) {
        args.head_bias = call.floats("head_bias", *in.head_bias, {rows}, args.head_bias_type);
    }
}

inline void check_sizes(const Call& call, const MarkovInputs& in, MarkovArgs& args) {
    call.within("num_drafts", in.num_drafts, "0 to K=" + std::to_string(args.num_positions), 0,
                args.num_positions);
    const int64_t most = INT32_MAX - 4096;
    call.within("vocab_size", in.vocab_size,
                "at least 1 and V_draft=" + std::to_string(args.draft_vocab) + ", at most " +
                    std::to_string(most),
                args.draft_vocab > 1 ? args.draft_vocab : 1, most);
    args.num_drafts = in.num_drafts;
    args.vocab = in.vocab_size;
    args.tiles = DSPARK_ISA::num_tiles(args.vocab);
}

// Checks the parts of the model against each other.
inline MarkovArgs check_model(const Call& call, const MarkovModel& in) {
    MarkovArgs args = {};
    args.head = parse_head(call, in.head);
    args.base_logits =
        call.floats("base_logits", in.base_logits, {{"B"}, {"K"}, {"V_draft"}}, args.logits_type);
    args.batch = in.base_logits.size(0);
    args.num_positions = in.base_logits.size(1);
    args.draft_vocab = in.base_logits.size(2);
    args.w1 = call.floats("w1", in.w1, {{"V"}, {"r"}}, args.w1_type);
    args.num_embeddings = in.w1.size(0);
    args.rank = in.w1.size(1);
    args.padded_rank = round_up(args.rank, kBiasLanes);
    args.w2 =
        call.floats("w2", in.w2, {{"V_draft", args.draft_vocab}, {"r", args.rank}}, args.w2_type);
    args.anchor = call.vector<int64_t>("anchor", in.anchor, ScalarType::Long, {"B", args.batch});
    check_head(call, in, args);
    return args;
}

// Checks the inputs against each other.
inline MarkovArgs check_markov(const Call& call, const MarkovInputs& in) {
    MarkovArgs args = check_model(call, in.model);
    args.greedy = parse_greedy(in.method);
    args.exact = in.exact;
    check_sizes(call, in, args);
    const host::Dim batch = {"B", args.batch};
    const auto* temperature =
        call.vector<float>("temperature", in.temperature, ScalarType::Float, batch);
    args.temperature = temperature;
    args.seeds = call.vector<int64_t>("seeds", in.seeds, ScalarType::Long, batch);
    args.positions = call.vector<int64_t>("positions", in.positions, ScalarType::Long, batch);
    const int64_t* d2t = nullptr;
    if (in.d2t) {
        d2t = call.vector<int64_t>("d2t", *in.d2t, ScalarType::Long, {"V_draft", args.draft_vocab});
        args.d2t = d2t;
    }
    if (!call.on_device) {
        check_row_temperatures(call, temperature, args.batch);
        if (d2t != nullptr) check_d2t(call, d2t, args.draft_vocab, args.vocab);
    }
    return args;
}

// ---- confidence, calibrate ----------------------------------------------------------------------

inline const float* check_temperatures(const Call& call, const Tensor& temperatures,
                                       int64_t num_drafts) {
    const auto* values =
        call.vector<float>("temperatures", temperatures, ScalarType::Float, {"K", num_drafts});
    for (int64_t k = 0; k < num_drafts && !call.on_device; ++k) {
        if (values[k] > 0.0f && std::isfinite(values[k])) continue;
        fail(call.op, "temperatures",
             "expected finite numbers > 0, got " + std::to_string(values[k]) + " at position " +
                 std::to_string(k));
    }
    return values;
}

struct ConfidenceInputs {
    const Tensor hidden, prev_embed, weight;
    const OptionalTensor bias, temperatures;
};

inline ConfidenceArgs check_confidence(const Call& call, const ConfidenceInputs& in) {
    ConfidenceArgs args = {};
    args.hidden = call.floats("hidden", in.hidden, {{"B"}, {"K"}, {"d"}}, args.hidden_type);
    const int64_t batch = in.hidden.size(0);
    args.num_drafts = in.hidden.size(1);
    args.hidden_size = in.hidden.size(2);
    args.rows = batch * args.num_drafts;
    args.prev_embed = call.floats("prev_embed", in.prev_embed,
                                  {{"B", batch}, {"K", args.num_drafts}, {"r"}}, args.embed_type);
    args.rank = in.prev_embed.size(2);
    const int64_t size = args.hidden_size + args.rank;
    args.padded_size = round_up(size, kHiddenLanes);
    args.weight = call.floats("weight", in.weight, {{"d+r", size}}, args.weight_type);
    if (in.bias) args.bias = call.floats("bias", *in.bias, {{"one", 1}}, args.bias_type);
    if (in.temperatures) {
        args.temperatures = check_temperatures(call, *in.temperatures, args.num_drafts);
    }
    return args;
}

}  // namespace dspark::draft
