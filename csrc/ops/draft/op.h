// The operators of the draft family: checks and allocation, then the kernels of a backend.
//
// A Backend is a struct of static members:
//     kOnDevice                        the host reads no values (Call::on_device)
//     check_device(op, name, tensor)   fails unless the backend serves the tensor's device
//     run(args, like)                  for each argument struct; `like` is on the device. Places
//                                      the scratch, then runs the kernels.
//     run_logits(args, like)           the same for the logits of one draft, K = n = 1, that is
//                                      not drawn
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <string>
#include <tuple>

#include "ops/draft/checks.h"
#include "ops/draft/launch.h"

namespace dspark::draft {

// What the device kernels are made for.
inline void check_device_sizes(const Call& call, const MarkovArgs& args) {
    call.within("w1", args.rank, "r up to " + std::to_string(kMaxRank) + " on a device", 0,
                kMaxRank);
    call.within("vocab_size", args.vocab, "at most " + std::to_string(kMaxDeviceVocab), 0,
                kMaxDeviceVocab);
}

// Puts the scratch of a call into one allocation on the device of `like`. It may be freed as soon
// as the kernels are launched: torch reuses it in the order of the stream.
inline Tensor allocate_workspace(MarkovCall& call, const Tensor& like) {
    const int64_t bytes = place_workspace(call, nullptr);
    Tensor workspace = new_tensor(like, {bytes}, ScalarType::Byte);
    place_workspace(call, static_cast<char*>(workspace.mutable_data_ptr()));
    return workspace;
}

// Names the one failure of a launch sequence that is the caller's to avoid.
inline void refuse_too_many_blocks(const char* op, const char* name, int code) {
    if (code == kTooManyBlocks)
        fail(op, name, "expected work for some 16 million blocks, got more");
}

template <class Backend>
struct Operators {
    static Call call(const char* op, const char* name, const Tensor& like) {
        Backend::check_device(op, name, like);
        return {op, like, Backend::kOnDevice};
    }

    template <class T>
    static Tensor output(const Tensor& like, host::Shape shape, ScalarType dtype, Global<T>& data) {
        Tensor tensor = new_tensor(like, shape, dtype);
        data = static_cast<T*>(tensor.mutable_data_ptr());
        return tensor;
    }

    static std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> markov_sample(
        const Tensor& base_logits, const Tensor& anchor, const Tensor& w1, const Tensor& w2,
        host::Text head, const OptionalTensor& hidden, const OptionalTensor& head_weight,
        const OptionalTensor& head_bias, host::Text method, const Tensor& temperature,
        const Tensor& seeds, const Tensor& positions, const OptionalTensor& d2t, int64_t num_drafts,
        int64_t vocab_size, bool exact) {
        const Call op = call("markov_sample", "base_logits", base_logits);
        const MarkovInputs in = {{dense(base_logits), dense(anchor), dense(w1), dense(w2), head,
                                  dense(hidden), dense(head_weight), dense(head_bias)},
                                 method,
                                 dense(temperature),
                                 dense(seeds),
                                 dense(positions),
                                 dense(d2t),
                                 num_drafts,
                                 vocab_size,
                                 exact};
        MarkovArgs args = check_markov(op, in);
        if (op.on_device) check_device_sizes(op, args);
        const std::vector<int64_t> rows = {args.batch, args.num_drafts};
        const std::vector<int64_t> tiles = {args.batch, args.num_drafts, args.tiles};
        Tensor token_ids = output(base_logits, rows, ScalarType::Long, args.token_ids);
        Tensor logits = output(base_logits, {args.batch, args.num_drafts, args.vocab},
                               base_logits.scalar_type(), args.logits);
        Tensor prev_embed = output(base_logits, {args.batch, args.num_drafts, args.rank},
                                   w1.scalar_type(), args.prev_embed);
        Tensor row_temperature = output(base_logits, rows, ScalarType::Float, args.row_temperature);
        Tensor tile_max = output(base_logits, tiles, ScalarType::Float, args.tile_max);
        Tensor tile_sum = output(base_logits, tiles, ScalarType::Float, args.tile_sum);
        Tensor tile_nan = output(base_logits, tiles, ScalarType::Byte, args.tile_nan);
        if (args.batch > 0 && args.num_drafts > 0) Backend::run(args, base_logits);
        return {token_ids, logits, prev_embed, row_temperature, tile_max, tile_sum, tile_nan};
    }

    static Tensor confidence(const Tensor& hidden, const Tensor& prev_embed, const Tensor& weight,
                             const OptionalTensor& bias, const OptionalTensor& temperatures) {
        const Call op = call("confidence", "hidden", hidden);
        ConfidenceInputs in = {dense(hidden), dense(prev_embed), dense(weight), dense(bias),
                               dense(temperatures)};
        ConfidenceArgs args = check_confidence(op, in);
        Tensor result =
            output(hidden, {hidden.size(0), args.num_drafts}, ScalarType::Float, args.confidence);
        if (args.rows > 0) Backend::run(args, hidden);
        return result;
    }

    static Tensor calibrate(const Tensor& conf_logits, const Tensor& temperatures) {
        const Call op = call("calibrate", "conf_logits", conf_logits);
        Arg(op.op, "conf_logits", conf_logits).dtype({ScalarType::Float}).shape({{"N"}, {"K"}});
        const Tensor logits = dense(conf_logits);
        const Tensor heat = dense(temperatures);
        CalibrateArgs args = {};
        args.num_drafts = conf_logits.size(1);
        args.rows = conf_logits.numel();
        args.conf_logits = static_cast<const float*>(logits.const_data_ptr());
        args.temperatures = check_temperatures(op, heat, args.num_drafts);
        Tensor result = output(conf_logits, {conf_logits.size(0), args.num_drafts},
                               ScalarType::Float, args.confidence);
        if (args.rows > 0) Backend::run(args, conf_logits);
        return result;
    }

    // For a dispatch key whose tensors the backend serves.
    template <class Library>
    static void implement(Library& m) {
        m.impl("markov_sample", TORCH_BOX(&markov_sample));
        m.impl("confidence", TORCH_BOX(&confidence));
        m.impl("calibrate", TORCH_BOX(&calibrate));
    }
};

}  // namespace dspark::draft
