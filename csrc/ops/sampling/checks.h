// From tensors to the argument structs of the sampling kernels: every check of the family.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "host/check.h"
#include "host/tensor.h"
#include "ops/sampling/validity.h"
#include "ops/sampling/workspace.h"

namespace dspark::sampling {

using host::Arg;
using host::fail;
using host::float_type;
using host::ScalarType;
using host::Tensor;
using OptionalTensor = std::optional<Tensor>;

// One call of an operator.
struct Call {
    const char* op;
    const Tensor& logits;  // every tensor is on its device
    // The kernels run on a device, where the host reads no value: whether the parameters of a
    // request are in range is for the kernels to check (validity.h).
    bool on_device;

    Arg arg(const char* name, const Tensor& tensor) const {
        Arg result(op, name, tensor);
        result.on_device_of(logits);
        return result;
    }
};

inline IndexView index_view(const Tensor& tensor) {
    return {tensor.const_data_ptr(), tensor.scalar_type() == ScalarType::Long};
}

inline void check_at_most(const Call& call, const char* name, const char* what, int64_t limit,
                          int64_t got) {
    if (got <= limit) return;
    fail(call.op, name,
         std::string("expected at most ") + what + "=" + std::to_string(limit) + ", got " +
             std::to_string(got));
}

// [N, V] or [B, K, V]; the vocabulary must fit an int32 and hold something to draw.
inline RowsView rows_view(const Call& call, const char* name, const Tensor& tensor) {
    const int64_t last = tensor.dim() - 1;
    const int64_t vocab = tensor.size(last);
    if (vocab < 1 || vocab > INT32_MAX - 4096) {
        fail(call.op, name,
             "expected a vocabulary of 1 to 2^31 entries, got " + std::to_string(vocab));
    }
    if (call.on_device) check_at_most(call, name, "V on a GPU", kMaxDeviceVocab, vocab);
    return {tensor.const_data_ptr(), float_type(tensor), last == 2 ? tensor.stride(0) : 0,
            tensor.stride(last - 1), static_cast<int32_t>(vocab)};
}

inline RowsView check_logits(const Call& call, const char* name, const Tensor& tensor,
                             std::initializer_list<host::Dim> shape) {
    call.arg(name, tensor)
        .dtype({ScalarType::Float, ScalarType::BFloat16, ScalarType::Half})
        .shape(shape)
        .dense_rows();
    return rows_view(call, name, tensor);
}

template <class T>
const T* check_vector(const Call& call, const char* name, const Tensor& tensor, ScalarType dtype,
                      std::initializer_list<host::Dim> shape) {
    call.arg(name, tensor).dtype({dtype}).shape(shape).dense();
    return static_cast<const T*>(tensor.const_data_ptr());
}

// Each in [low, high], where the host can read them.
template <class T>
const T* check_values(const Call& call, const char* name, const Tensor& tensor, ScalarType dtype,
                      std::initializer_list<host::Dim> shape, T low, T high, const char* expected) {
    const T* values = check_vector<T>(call, name, tensor, dtype, shape);
    const int64_t count = call.on_device ? 0 : tensor.numel();
    for (int64_t i = 0; i < count; ++i) {
        if (!(values[i] >= low && values[i] <= high)) {
            fail(call.op, name,
                 std::string("expected ") + expected + ", got " + std::to_string(values[i]) +
                     " at index " + std::to_string(i));
        }
    }
    return values;
}

// Those of tests may be 1, which no threshold exceeds.
inline const double* check_uniforms(const Call& call, const Tensor& uniforms,
                                    std::initializer_list<host::Dim> shape) {
    return check_values<double>(call, "uniforms", uniforms, ScalarType::Double, shape, 0.0, 1.0,
                                "numbers in [0, 1)");
}

inline const float* check_temperature(const Call& call, const char* name, const Tensor& tensor,
                                      host::Dim size) {
    const auto* values = check_vector<float>(call, name, tensor, ScalarType::Float, {size});
    if (call.on_device) return values;
    for (int64_t i = 0; i < size.size; ++i) {
        if (!DSPARK_ISA::sampling::is_valid_temperature(values[i])) {
            fail(call.op, name,
                 "expected finite values >= 0, got " + std::to_string(values[i]) + " at index " +
                     std::to_string(i));
        }
    }
    return values;
}

inline const float* check_filter(const Call& call, const char* name, const OptionalTensor& tensor,
                                 host::Dim size) {
    if (!tensor) return nullptr;
    const auto* values = check_vector<float>(call, name, *tensor, ScalarType::Float, {size});
    if (call.on_device) return values;
    for (int64_t i = 0; i < size.size; ++i) {
        if (!DSPARK_ISA::sampling::is_valid_filter(values[i]))
            fail(call.op, name, "expected numbers, got NaN at index " + std::to_string(i));
    }
    return values;
}

inline LawArgs check_law(const Call& call, host::Dim size, const Tensor& temperature,
                         const OptionalTensor& top_k, const OptionalTensor& top_p,
                         const OptionalTensor& min_p) {
    LawArgs law = {};
    law.temperature = check_temperature(call, "temperature", temperature, size);
    if (top_k) {
        call.arg("top_k", *top_k).dtype({ScalarType::Int, ScalarType::Long}).shape({size}).dense();
        law.top_k = index_view(*top_k);
    }
    law.top_p = check_filter(call, "top_p", top_p, size);
    law.min_p = check_filter(call, "min_p", min_p, size);
    return law;
}

template <class T>
T* check_output(const Call& call, const char* name, const Tensor& tensor, ScalarType dtype,
                std::initializer_list<host::Dim> shape) {
    call.arg(name, tensor).dtype({dtype}).shape(shape).dense();
    return static_cast<T*>(tensor.mutable_data_ptr());
}

inline Method method_of(const std::string& method) {
    if (method == "block") return Method::kBlock;
    if (method == "token" || method == "standard") return Method::kToken;
    if (method == "greedy") return Method::kGreedy;
    if (method == "synthetic") return Method::kSynthetic;
    fail(
        "rejection_sample", "method",
        "expected 'block', 'token' (or 'standard'), 'greedy' or 'synthetic', got '" + method + "'");
}

// What all verification ops are given.
struct VerifyInputs {
    const Tensor& target_logits;
    const Tensor& draft_token_ids;
    const OptionalTensor& draft_logits;
    const OptionalTensor& draft_probs;
    const Tensor& query_start_loc;
    const Tensor& temperature;
    const OptionalTensor& draft_temperature;
    const OptionalTensor& top_k;
    const OptionalTensor& top_p;
    const OptionalTensor& min_p;
};

inline void check_query_start_loc(const Call& call, const VerifyArgs& args) {
    const char* name = "query_start_loc";
    if (args.query_start_loc[0] != 0) {
        fail(call.op, name,
             "expected to start at 0, got " + std::to_string(args.query_start_loc[0]));
    }
    for (int64_t b = 0; b < args.batch; ++b) {
        const int64_t rows = args.query_start_loc[b + 1] - args.query_start_loc[b];
        if (rows < 0 || rows > args.num_drafts + 1) {
            fail(call.op, name,
                 "expected 0 to K + 1 = " + std::to_string(args.num_drafts + 1) +
                     " rows per request, got " + std::to_string(rows) + " for request " +
                     std::to_string(b));
        }
    }
    check_at_most(call, name, "the target rows N", args.target_rows,
                  args.query_start_loc[args.batch]);
}

inline void check_draft(const Call& call, const VerifyInputs& in, VerifyArgs& args) {
    const host::Dim batch = {"B", args.batch};
    const host::Dim drafts = {"K", args.num_drafts};
    if (in.draft_logits && in.draft_probs) {
        fail(call.op, "draft_probs", "expected at most one of draft_logits and draft_probs");
    }
    if (in.draft_logits) {
        args.draft_logits =
            check_logits(call, "draft_logits", *in.draft_logits, {batch, drafts, {"V_draft"}});
    }
    if (in.draft_probs) {
        call.arg("draft_probs", *in.draft_probs).dtype({ScalarType::Float});
        args.draft_probs =
            check_logits(call, "draft_probs", *in.draft_probs, {batch, drafts, {"V_draft"}});
    }
    const RowsView& draft = in.draft_logits ? args.draft_logits : args.draft_probs;
    check_at_most(call, in.draft_logits ? "draft_logits" : "draft_probs",
                  "the target's vocabulary V", args.target_logits.vocab, draft.vocab);
    args.draft_temperature = in.draft_temperature ? check_temperature(call, "draft_temperature",
                                                                      *in.draft_temperature, batch)
                                                  : args.law.temperature;
}

inline VerifyArgs check_verify(const Call& call, const VerifyInputs& in) {
    VerifyArgs args = {};
    args.target_logits = check_logits(call, "target_logits", in.target_logits, {{"N"}, {"V"}});
    args.target_rows = in.target_logits.size(0);
    call.arg("draft_token_ids", in.draft_token_ids)
        .dtype({ScalarType::Long, ScalarType::Int})
        .shape({{"B"}, {"K"}})
        .dense_rows();
    args.batch = in.draft_token_ids.size(0);
    args.num_drafts = static_cast<int32_t>(in.draft_token_ids.size(1));
    if (call.on_device) {
        check_at_most(call, "draft_token_ids", "K on a GPU", kMaxDeviceDrafts,
                      in.draft_token_ids.size(1));
    }
    args.draft_token_ids = index_view(in.draft_token_ids);
    args.draft_ids_stride = in.draft_token_ids.stride(0);
    call.arg("query_start_loc", in.query_start_loc)
        .dtype({ScalarType::Int, ScalarType::Long})
        .shape({{"B + 1", args.batch + 1}})
        .dense();
    args.query_start_loc = index_view(in.query_start_loc);
    if (!call.on_device) check_query_start_loc(call, args);
    args.law = check_law(call, {"B", args.batch}, in.temperature, in.top_k, in.top_p, in.min_p);
    check_draft(call, in, args);
    return args;
}

// Temperature, maximum, sum and NaN flag, in this order; or nothing.
inline void check_statistics(const Call& call, const std::vector<Tensor>& given, VerifyArgs& args) {
    const char* name = "draft_statistics";
    if (given.empty()) return;
    if (given.size() != 4) {
        fail(call.op, name, "expected 4 tensors or none, got " + std::to_string(given.size()));
    }
    if (args.draft_logits.vocab == 0) fail(call.op, name, "expected none without draft_logits");
    const host::Dim batch = {"B", args.batch};
    const host::Dim drafts = {"K", args.num_drafts};
    const host::Dim tiles = {"tiles", DSPARK_ISA::num_tiles(args.draft_logits.vocab)};
    GivenStatistics& to = args.draft_statistics;
    to.temperature = check_vector<float>(call, "draft_statistics.temperature", given[0],
                                         ScalarType::Float, {batch, drafts});
    to.tile_max = check_vector<float>(call, "draft_statistics.tile_max", given[1],
                                      ScalarType::Float, {batch, drafts, tiles});
    to.tile_sum = check_vector<float>(call, "draft_statistics.tile_sum", given[2],
                                      ScalarType::Float, {batch, drafts, tiles});
    to.tile_nan = check_vector<uint8_t>(call, "draft_statistics.tile_nan", given[3],
                                        ScalarType::Byte, {batch, drafts, tiles});
}

inline void check_randomness(const Call& call, VerifyArgs& args, const Tensor& seeds,
                             const Tensor& positions, const OptionalTensor& rates,
                             const OptionalTensor& uniforms) {
    const host::Dim batch = {"B", args.batch};
    args.seeds = check_vector<int64_t>(call, "seeds", seeds, ScalarType::Long, {batch});
    args.positions = check_vector<int64_t>(call, "positions", positions, ScalarType::Long, {batch});
    if (uniforms) {
        args.uniforms = check_uniforms(call, *uniforms, {batch, {"K + 1", args.num_drafts + 1}});
    }
    if (args.method == Method::kSynthetic) {
        if (!rates) fail(call.op, "synthetic_acceptance_rates", "method 'synthetic' needs them");
        args.synthetic_rates = check_vector<float>(call, "synthetic_acceptance_rates", *rates,
                                                   ScalarType::Float, {{"K", args.num_drafts}});
    } else if (rates) {
        fail(call.op, "synthetic_acceptance_rates", "only method 'synthetic' takes them");
    }
}

}  // namespace dspark::sampling
