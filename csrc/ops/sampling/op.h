// The operators of the sampling family: checks and allocation, then the kernels of a backend.
//
// A Backend is a struct of static members:
//     kOnDevice                            the host reads no values (Call::on_device)
//     check_device(op, name, logits)       fails unless the backend serves the logits' device
//     run_target_probs(args, logits)       and _sample, _rejection_sample, _block_acceptance
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <string>
#include <tuple>
#include <vector>

#include "ops/sampling/checks.h"
#include "ops/sampling/launch.h"

namespace dspark::sampling {

inline bool is_draft_stream(const std::string& stream) {
    if (stream == "draft") return true;
    if (stream == "resample") return false;
    fail("sample", "stream", "expected 'resample' or 'draft', got '" + stream + "'");
}

template <class Backend>
struct Operators {
    static Call call(const char* op, const char* logits_name, const Tensor& logits) {
        Backend::check_device(op, logits_name, logits);
        return {op, logits, Backend::kOnDevice};
    }

    // ---- target_probs ---------------------------------------------------------------------------

    static void target_probs_out(const Tensor& logits, const Tensor& temperature,
                                 const OptionalTensor& top_k, const OptionalTensor& top_p,
                                 const OptionalTensor& min_p, const Tensor& probs) {
        const Call op = call("target_probs", "logits", logits);
        TargetProbsArgs args = {};
        args.logits = check_logits(op, "logits", logits, {{"N"}, {"V"}});
        args.rows = logits.size(0);
        args.law = check_law(op, {"N", args.rows}, temperature, top_k, top_p, min_p);
        args.probs = check_output<float>(op, "probs", probs, ScalarType::Float,
                                         {{"N", args.rows}, {"V", args.logits.vocab}});
        Backend::run_target_probs(args, logits);
    }

    static Tensor target_probs(const Tensor& logits, const Tensor& temperature,
                               const OptionalTensor& top_k, const OptionalTensor& top_p,
                               const OptionalTensor& min_p) {
        Arg("target_probs", "logits", logits).shape({{"N"}, {"V"}});
        Tensor probs =
            host::new_tensor(logits, {logits.size(0), logits.size(1)}, ScalarType::Float);
        target_probs_out(logits, temperature, top_k, top_p, min_p, probs);
        return probs;
    }

    // ---- sample ---------------------------------------------------------------------------------

    static void sample_out(const Tensor& logits, const Tensor& temperature,
                           const OptionalTensor& top_k, const OptionalTensor& top_p,
                           const OptionalTensor& min_p, const Tensor& seeds,
                           const Tensor& positions, host::Text stream,
                           const OptionalTensor& uniforms, const OptionalTensor& slots,
                           const Tensor& ids, const Tensor& logprobs) {
        const Call op = call("sample", "logits", logits);
        SampleArgs args = {};
        args.logits = check_logits(op, "logits", logits, {{"N"}, {"V"}});
        args.rows = logits.size(0);
        const host::Dim size = {"N", args.rows};
        args.law = check_law(op, size, temperature, top_k, top_p, min_p);
        args.seeds = check_vector<int64_t>(op, "seeds", seeds, ScalarType::Long, {size});
        args.positions =
            check_vector<int64_t>(op, "positions", positions, ScalarType::Long, {size});
        args.draft_stream = is_draft_stream(stream);
        if (uniforms) args.uniforms = check_uniforms(op, *uniforms, {size});
        if (slots) {
            if (!args.draft_stream) fail(op.op, "slots", "expected none with stream 'resample'");
            args.slots = check_values<int64_t>(op, "slots", *slots, ScalarType::Long, {size}, 0,
                                               INT32_MAX, "0 to 2^31 - 1");
        }
        args.ids = check_output<int64_t>(op, "ids", ids, ScalarType::Long, {size});
        args.logprobs = check_output<float>(op, "logprobs", logprobs, ScalarType::Float, {size});
        Backend::run_sample(args, logits);
    }

    static std::tuple<Tensor, Tensor> sample(const Tensor& logits, const Tensor& temperature,
                                             const OptionalTensor& top_k,
                                             const OptionalTensor& top_p,
                                             const OptionalTensor& min_p, const Tensor& seeds,
                                             const Tensor& positions, host::Text stream,
                                             const OptionalTensor& uniforms,
                                             const OptionalTensor& slots) {
        Arg("sample", "logits", logits).shape({{"N"}, {"V"}});
        Tensor ids = host::new_tensor(logits, {logits.size(0)}, ScalarType::Long);
        Tensor logprobs = host::new_tensor(logits, {logits.size(0)}, ScalarType::Float);
        sample_out(logits, temperature, top_k, top_p, min_p, seeds, positions, stream, uniforms,
                   slots, ids, logprobs);
        return {ids, logprobs};
    }

    // ---- rejection_sample, block_acceptance -----------------------------------------------------

    static void rejection_sample_out(
        const Tensor& target_logits, const Tensor& draft_token_ids,
        const OptionalTensor& draft_logits, const OptionalTensor& draft_probs,
        const Tensor& query_start_loc, host::Text method, const Tensor& temperature,
        const OptionalTensor& draft_temperature, const OptionalTensor& top_k,
        const OptionalTensor& top_p, const OptionalTensor& min_p, const Tensor& seeds,
        const Tensor& positions, const OptionalTensor& synthetic_acceptance_rates,
        const OptionalTensor& uniforms, std::vector<Tensor> draft_statistics,
        const Tensor& token_ids, const Tensor& num_accepted, const Tensor& num_emitted,
        const Tensor& last_token, const Tensor& status, const OptionalTensor& logprobs) {
        const Call op = call("rejection_sample", "target_logits", target_logits);
        VerifyArgs args = check_verify(
            op, {target_logits, draft_token_ids, draft_logits, draft_probs, query_start_loc,
                 temperature, draft_temperature, top_k, top_p, min_p});
        args.method = method_of(method);
        check_statistics(op, draft_statistics, args);
        check_randomness(op, args, seeds, positions, synthetic_acceptance_rates, uniforms);
        const host::Dim batch = {"B", args.batch};
        const host::Dim emitted = {"K + 1", args.num_drafts + 1};
        args.token_ids =
            check_output<int64_t>(op, "token_ids", token_ids, ScalarType::Long, {batch, emitted});
        args.num_accepted =
            check_output<int32_t>(op, "num_accepted", num_accepted, ScalarType::Int, {batch});
        args.num_emitted =
            check_output<int32_t>(op, "num_emitted", num_emitted, ScalarType::Int, {batch});
        args.last_token =
            check_output<int64_t>(op, "last_token", last_token, ScalarType::Long, {batch});
        args.status = check_output<int32_t>(op, "status", status, ScalarType::Int, {batch});
        if (logprobs) {
            args.logprobs =
                check_output<float>(op, "logprobs", *logprobs, ScalarType::Float, {batch, emitted});
        }
        Backend::run_rejection_sample(args, target_logits);
    }

    static std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> rejection_sample(
        const Tensor& target_logits, const Tensor& draft_token_ids,
        const OptionalTensor& draft_logits, const OptionalTensor& draft_probs,
        const Tensor& query_start_loc, host::Text method, const Tensor& temperature,
        const OptionalTensor& draft_temperature, const OptionalTensor& top_k,
        const OptionalTensor& top_p, const OptionalTensor& min_p, const Tensor& seeds,
        const Tensor& positions, const OptionalTensor& synthetic_acceptance_rates,
        const OptionalTensor& uniforms, std::vector<Tensor> draft_statistics,
        bool return_logprobs) {
        Arg("rejection_sample", "draft_token_ids", draft_token_ids).shape({{"B"}, {"K"}});
        const int64_t batch = draft_token_ids.size(0);
        const int64_t emitted = draft_token_ids.size(1) + 1;
        const auto make = [&](host::Shape shape, ScalarType dtype) {
            return host::new_tensor(target_logits, shape, dtype);
        };
        Tensor token_ids = make({batch, emitted}, ScalarType::Long);
        Tensor num_accepted = make({batch}, ScalarType::Int);
        Tensor num_emitted = make({batch}, ScalarType::Int);
        Tensor last_token = make({batch}, ScalarType::Long);
        Tensor status = make({batch}, ScalarType::Int);
        Tensor logprobs = make({return_logprobs ? batch : 0, emitted}, ScalarType::Float);
        rejection_sample_out(target_logits, draft_token_ids, draft_logits, draft_probs,
                             query_start_loc, method, temperature, draft_temperature, top_k, top_p,
                             min_p, seeds, positions, synthetic_acceptance_rates, uniforms,
                             draft_statistics, token_ids, num_accepted, num_emitted, last_token,
                             status, return_logprobs ? OptionalTensor(logprobs) : std::nullopt);
        return {token_ids, num_accepted, num_emitted, last_token, status, logprobs};
    }

    static std::tuple<Tensor, Tensor, Tensor> block_acceptance(
        const Tensor& target_logits, const Tensor& draft_token_ids,
        const OptionalTensor& draft_logits, const OptionalTensor& draft_probs,
        const Tensor& query_start_loc, const Tensor& temperature,
        const OptionalTensor& draft_temperature, const OptionalTensor& top_k,
        const OptionalTensor& top_p, const OptionalTensor& min_p) {
        const Call op = call("block_acceptance", "target_logits", target_logits);
        VerifyArgs args = check_verify(
            op, {target_logits, draft_token_ids, draft_logits, draft_probs, query_start_loc,
                 temperature, draft_temperature, top_k, top_p, min_p});
        args.method = Method::kBlock;
        const auto make = [&](Global<double>& data) {
            Tensor tensor =
                host::new_tensor(target_logits, {args.batch, args.num_drafts}, ScalarType::Double);
            data = static_cast<double*>(tensor.mutable_data_ptr());
            return tensor;
        };
        Tensor prefix_prob = make(args.prefix_prob);
        Tensor residual_mass = make(args.residual_mass);
        Tensor accept_prob = make(args.accept_prob);
        Backend::run_block_acceptance(args, target_logits);
        return {prefix_prob, residual_mass, accept_prob};
    }

    // For a dispatch key whose tensors the backend serves.
    template <class Library>
    static void implement(Library& m) {
        m.impl("target_probs", TORCH_BOX(&target_probs));
        m.impl("target_probs.out", TORCH_BOX(&target_probs_out));
        m.impl("sample", TORCH_BOX(&sample));
        m.impl("sample.out", TORCH_BOX(&sample_out));
        m.impl("rejection_sample", TORCH_BOX(&rejection_sample));
        m.impl("rejection_sample.out", TORCH_BOX(&rejection_sample_out));
        m.impl("block_acceptance", TORCH_BOX(&block_acceptance));
    }
};

// Puts the scratch of a call into one allocation on the device of `logits`. It may be freed as soon
// as the kernels are launched: torch reuses it in the order of the stream.
template <class Args>
Tensor allocate_workspace(Args& args, const Tensor& logits) {
    const int64_t bytes = place_workspace(args, nullptr);
    Tensor workspace = host::new_tensor(logits, {bytes}, ScalarType::Byte);
    place_workspace(args, static_cast<char*>(workspace.mutable_data_ptr()));
    return workspace;
}

// Names the one failure of a launch sequence that is the caller's to avoid.
inline void refuse_too_many_blocks(const char* op, int code) {
    if (code != kTooManyBlocks) return;
    fail(op, "logits", "expected rows of some 16 million tiles of 4096 entries in all, got more");
}

}  // namespace dspark::sampling
