// Checks, allocation and dispatch of the draft family.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cmath>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "host/check.h"
#include "host/tensor.h"
#include "ops/draft/cpu.h"

namespace dspark {
namespace {

using host::Arg;
using host::dense;
using host::fail;
using host::float_type;
using host::new_tensor;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Work below which another thread does not pay: multiply-adds of the bias, entries of a draw.
constexpr int64_t kMultiplyAddsPerThread = 1 << 16;
constexpr int64_t kEntriesPerThread = 1 << 14;

int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

Arg float_arg(const char* op, const char* name, const Tensor& tensor) {
    const Arg arg(op, name, tensor);
    arg.on_cpu().dtype({ScalarType::Float, ScalarType::BFloat16, ScalarType::Half});
    return arg;
}

// Every draft id maps to its own target id in [0, vocab).
void check_d2t(const int64_t* d2t, int64_t draft_vocab, int64_t vocab) {
    std::vector<bool> taken(vocab, false);
    for (int64_t i = 0; i < draft_vocab; ++i) {
        const int64_t id = i + d2t[i];
        if (id < 0 || id >= vocab || taken[id]) {
            fail("markov_sample", "d2t",
                 "expected offsets to distinct target ids in [0, " + std::to_string(vocab) +
                     "), got target id " + std::to_string(id) + " for draft id " +
                     std::to_string(i));
        }
        taken[id] = true;
    }
}

void check_temperature(const float* temperature, int64_t batch) {
    for (int64_t b = 0; b < batch; ++b) {
        if (temperature[b] >= 0.0f && std::isfinite(temperature[b])) continue;
        fail("markov_sample", "temperature",
             "expected finite numbers >= 0, got " + std::to_string(temperature[b]) +
                 " for request " + std::to_string(b));
    }
}

struct MarkovInputs {
    Tensor base_logits, anchor, w1, w2, temperature, seeds, positions;
    std::optional<Tensor> d2t;
};

// Checks the inputs against each other and puts them into `args`.
MarkovArgs markov_args(const MarkovInputs& in, const std::string& method, int64_t num_drafts,
                       int64_t vocab_size) {
    const char* op = "markov_sample";
    MarkovArgs args{};
    float_arg(op, "base_logits", in.base_logits).shape({{"B"}, {"K"}, {"V_draft"}});
    args.batch = in.base_logits.size(0);
    args.num_positions = in.base_logits.size(1);
    args.draft_vocab = in.base_logits.size(2);
    const host::Dim batch{"B", args.batch};
    float_arg(op, "w1", in.w1).shape({{"V"}, {"r"}});
    args.num_embeddings = in.w1.size(0);
    args.rank = in.w1.size(1);
    float_arg(op, "w2", in.w2).shape({{"V_draft", args.draft_vocab}, {"r", args.rank}});
    Arg(op, "anchor", in.anchor).on_cpu().dtype({ScalarType::Long}).shape({batch});
    Arg(op, "temperature", in.temperature).on_cpu().dtype({ScalarType::Float}).shape({batch});
    Arg(op, "seeds", in.seeds).on_cpu().dtype({ScalarType::Long}).shape({batch});
    Arg(op, "positions", in.positions).on_cpu().dtype({ScalarType::Long}).shape({batch});
    if (method != "probabilistic" && method != "greedy") {
        fail(op, "method", "expected probabilistic or greedy, got " + method);
    }
    if (num_drafts < 0 || num_drafts > args.num_positions) {
        fail(op, "num_drafts",
             "expected 0 to K=" + std::to_string(args.num_positions) + ", got " +
                 std::to_string(num_drafts));
    }
    if (vocab_size < args.draft_vocab || vocab_size < 1 || vocab_size > INT32_MAX - 4096) {
        fail(op, "vocab_size",
             "expected at least 1 and V_draft=" + std::to_string(args.draft_vocab) + ", got " +
                 std::to_string(vocab_size));
    }
    args.vocab = vocab_size;
    if (in.d2t) {
        Arg(op, "d2t", *in.d2t)
            .on_cpu()
            .dtype({ScalarType::Long})
            .shape({{"V_draft", args.draft_vocab}});
        args.d2t = in.d2t->const_data_ptr<int64_t>();
        check_d2t(args.d2t, args.draft_vocab, args.vocab);
    }
    args.temperature = in.temperature.const_data_ptr<float>();
    check_temperature(args.temperature, args.batch);
    args.base_logits = in.base_logits.const_data_ptr();
    args.anchor = in.anchor.const_data_ptr<int64_t>();
    args.w1 = in.w1.const_data_ptr();
    args.w2 = in.w2.const_data_ptr();
    args.seeds = in.seeds.const_data_ptr<int64_t>();
    args.positions = in.positions.const_data_ptr<int64_t>();
    args.logits_type = float_type(in.base_logits);
    args.w1_type = float_type(in.w1);
    args.w2_type = float_type(in.w2);
    args.greedy = method == "greedy";
    args.num_drafts = num_drafts;
    args.padded_rank = ceil_div(args.rank, kBiasLanes) * kBiasLanes;
    return args;
}

// Draft k of every request: embed the token before it, the logits, the draw.
void draft_step(const MarkovArgs& args, int64_t k) {
    const int64_t stray = DSPARK_CPU_DISPATCH(embed_previous, args, k);
    if (stray >= 0) {
        fail("markov_sample", k == 0 ? "anchor" : "w1",
             "expected an embedding for every token, w1 has " +
                 std::to_string(args.num_embeddings) + "; wrong at request " +
                 std::to_string(stray));
    }
    const int64_t groups = ceil_div(args.draft_vocab, kBiasRows);
    const int64_t group_work = args.batch * kBiasRows * (args.padded_rank + kBiasLanes);
    torch::stable::parallel_for(0, groups, 1 + kMultiplyAddsPerThread / (group_work + 1),
                                [&](int64_t begin, int64_t end) {
                                    DSPARK_CPU_DISPATCH(markov_logits, args, k, begin, end);
                                });
    torch::stable::parallel_for(
        0, args.batch, 1 + kEntriesPerThread / args.vocab,
        [&](int64_t begin, int64_t end) { DSPARK_CPU_DISPATCH(draw_tokens, args, k, begin, end); });
}

std::tuple<Tensor, Tensor, Tensor> markov_sample(Tensor base_logits, Tensor anchor, Tensor w1,
                                                 Tensor w2, std::string method, Tensor temperature,
                                                 Tensor seeds, Tensor positions,
                                                 std::optional<Tensor> d2t, int64_t num_drafts,
                                                 int64_t vocab_size, bool exact) {
    (void)exact;  // the fixed order is the only one on this backend
    const MarkovInputs in{dense(base_logits), dense(anchor),
                          dense(w1),          dense(w2),
                          dense(temperature), dense(seeds),
                          dense(positions),   d2t ? std::optional(dense(*d2t)) : std::nullopt};
    MarkovArgs args = markov_args(in, method, num_drafts, vocab_size);
    Tensor token_ids = new_tensor(anchor, {args.batch, args.num_drafts}, ScalarType::Long);
    Tensor logits = new_tensor(base_logits, {args.batch, args.num_drafts, args.vocab},
                               base_logits.scalar_type());
    Tensor prev_embed = new_tensor(w1, {args.batch, args.num_drafts, args.rank}, w1.scalar_type());
    std::vector<float> embedding(args.batch * args.padded_rank);
    args.embedding = embedding.data();
    args.token_ids = token_ids.mutable_data_ptr<int64_t>();
    args.logits = logits.mutable_data_ptr();
    args.prev_embed = prev_embed.mutable_data_ptr();
    if (args.vocab > args.draft_vocab) {
        torch::stable::parallel_for(0, args.batch * args.num_drafts,
                                    1 + kEntriesPerThread / args.vocab,
                                    [&](int64_t begin, int64_t end) {
                                        DSPARK_CPU_DISPATCH(mask_logits, args, begin, end);
                                    });
    }
    if (args.batch > 0) {
        for (int64_t k = 0; k < args.num_drafts; ++k) draft_step(args, k);
    }
    return {token_ids, logits, prev_embed};
}

void check_temperatures(const char* op, const Tensor& temperatures, int64_t num_drafts) {
    Arg(op, "temperatures", temperatures)
        .on_cpu()
        .dtype({ScalarType::Float})
        .shape({{"K", num_drafts}})
        .dense();
    const float* values = temperatures.const_data_ptr<float>();
    for (int64_t k = 0; k < num_drafts; ++k) {
        if (values[k] > 0.0f && std::isfinite(values[k])) continue;
        fail(op, "temperatures",
             "expected finite numbers > 0, got " + std::to_string(values[k]) + " at position " +
                 std::to_string(k));
    }
}

void widen(const Tensor& weight, std::vector<float>& to) {
    const FloatType type = float_type(weight);
    const void* data = weight.const_data_ptr();
    DSPARK_CPU_DISPATCH(widen_weight, type, data, weight.numel(), to.data());
}

Tensor confidence(Tensor hidden, Tensor prev_embed, Tensor weight, std::optional<Tensor> bias,
                  std::optional<Tensor> temperatures) {
    const char* op = "confidence";
    float_arg(op, "hidden", hidden).shape({{"B"}, {"K"}, {"d"}});
    ConfidenceArgs args{};
    const int64_t batch = hidden.size(0);
    args.num_drafts = hidden.size(1);
    args.hidden_size = hidden.size(2);
    float_arg(op, "prev_embed", prev_embed).shape({{"B", batch}, {"K", args.num_drafts}, {"r"}});
    args.rank = prev_embed.size(2);
    const int64_t size = args.hidden_size + args.rank;
    float_arg(op, "weight", weight).shape({{"d+r", size}});
    std::vector<float> bias_value(1, 0.0f);
    if (bias) {
        float_arg(op, "bias", *bias);
        if (bias->numel() != 1) fail(op, "bias", "expected one number");
        widen(*bias, bias_value);
    }
    if (temperatures) {
        temperatures = dense(*temperatures);
        check_temperatures(op, *temperatures, args.num_drafts);
        args.temperatures = temperatures->const_data_ptr<float>();
    }
    hidden = dense(hidden);
    prev_embed = dense(prev_embed);
    args.padded_size = ceil_div(size, kConfidenceLanes) * kConfidenceLanes;
    std::vector<float> widened(args.padded_size, 0.0f);
    widen(dense(weight), widened);
    Tensor result = new_tensor(hidden, {batch, args.num_drafts}, ScalarType::Float);
    args.hidden = hidden.const_data_ptr();
    args.prev_embed = prev_embed.const_data_ptr();
    args.weight = widened.data();
    args.bias = bias_value[0];
    args.hidden_type = float_type(hidden);
    args.embed_type = float_type(prev_embed);
    args.confidence = result.mutable_data_ptr<float>();
    torch::stable::parallel_for(
        0, batch * args.num_drafts, 1 + kEntriesPerThread / (args.padded_size + 1),
        [&](int64_t begin, int64_t end) {
            std::vector<float> scratch(args.padded_size);
            DSPARK_CPU_DISPATCH(confidence, args, begin, end, scratch.data());
        });
    return result;
}

Tensor calibrate(Tensor conf_logits, Tensor temperatures) {
    const char* op = "calibrate";
    Arg(op, "conf_logits", conf_logits).on_cpu().dtype({ScalarType::Float}).shape({{"N"}, {"K"}});
    CalibrateArgs args{};
    args.num_drafts = conf_logits.size(1);
    temperatures = dense(temperatures);
    check_temperatures(op, temperatures, args.num_drafts);
    conf_logits = dense(conf_logits);
    Tensor result =
        new_tensor(conf_logits, {conf_logits.size(0), args.num_drafts}, ScalarType::Float);
    args.conf_logits = conf_logits.const_data_ptr<float>();
    args.temperatures = temperatures.const_data_ptr<float>();
    args.confidence = result.mutable_data_ptr<float>();
    torch::stable::parallel_for(
        0, conf_logits.numel(), kEntriesPerThread,
        [&](int64_t begin, int64_t end) { DSPARK_CPU_DISPATCH(calibrate, args, begin, end); });
    return result;
}

}  // namespace
}  // namespace dspark

STABLE_TORCH_LIBRARY_IMPL(dspark_ext, CPU, m) {
    m.impl("markov_sample", TORCH_BOX(&dspark::markov_sample));
    m.impl("confidence", TORCH_BOX(&dspark::confidence));
    m.impl("calibrate", TORCH_BOX(&dspark::calibrate));
}
