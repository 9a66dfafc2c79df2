// From tensors to the argument structs of the sampling kernels: every check of the family.
#pragma once

#include <cmath>
#include <optional>
#include <string>

#include "host/check.h"
#include "host/tensor.h"
#include "ops/sampling/args.h"

namespace dspark::sampling {

using host::Arg;
using host::fail;
using host::float_type;
using host::ScalarType;
using host::Tensor;
using OptionalTensor = std::optional<Tensor>;

inline IndexView index_view(const Tensor& tensor) {
    return {tensor.const_data_ptr(), tensor.scalar_type() == ScalarType::Long};
}

// [N, V] or [B, K, V]; the vocabulary must fit an int32 and hold something to draw.
inline RowsView rows_view(const char* op, const char* name, const Tensor& tensor) {
    const int64_t last = tensor.dim() - 1;
    const int64_t vocab = tensor.size(last);
    if (vocab < 1 || vocab > INT32_MAX - 4096) {
        fail(op, name, "expected a vocabulary of 1 to 2^31 entries, got " + std::to_string(vocab));
    }
    return {tensor.const_data_ptr(), float_type(tensor), last == 2 ? tensor.stride(0) : 0,
            tensor.stride(last - 1), static_cast<int32_t>(vocab)};
}

inline RowsView check_logits(const char* op, const char* name, const Tensor& tensor,
                             std::initializer_list<host::Dim> shape) {
    Arg(op, name, tensor)
        .on_cpu()
        .dtype({ScalarType::Float, ScalarType::BFloat16, ScalarType::Half})
        .shape(shape)
        .dense_rows();
    return rows_view(op, name, tensor);
}

template <class T>
const T* check_vector(const char* op, const char* name, const Tensor& tensor, ScalarType dtype,
                      std::initializer_list<host::Dim> shape) {
    Arg(op, name, tensor).on_cpu().dtype({dtype}).shape(shape).dense();
    return static_cast<const T*>(tensor.const_data_ptr());
}

inline const float* check_temperature(const char* op, const char* name, const Tensor& tensor,
                                      host::Dim size) {
    const auto* values = check_vector<float>(op, name, tensor, ScalarType::Float, {size});
    for (int64_t i = 0; i < size.size; ++i) {
        if (!(values[i] >= 0.0f) || std::isinf(values[i])) {
            fail(op, name,
                 "expected finite values >= 0, got " + std::to_string(values[i]) + " at index " +
                     std::to_string(i));
        }
    }
    return values;
}

inline const float* check_filter(const char* op, const char* name, const OptionalTensor& tensor,
                                 host::Dim size) {
    if (!tensor) return nullptr;
    const auto* values = check_vector<float>(op, name, *tensor, ScalarType::Float, {size});
    for (int64_t i = 0; i < size.size; ++i) {
        if (std::isnan(values[i]))
            fail(op, name, "expected numbers, got NaN at index " + std::to_string(i));
    }
    return values;
}

inline LawArgs check_law(const char* op, host::Dim size, const Tensor& temperature,
                         const OptionalTensor& top_k, const OptionalTensor& top_p,
                         const OptionalTensor& min_p) {
    LawArgs law = {};
    law.temperature = check_temperature(op, "temperature", temperature, size);
    if (top_k) {
        Arg(op, "top_k", *top_k)
            .on_cpu()
            .dtype({ScalarType::Int, ScalarType::Long})
            .shape({size})
            .dense();
        law.top_k = index_view(*top_k);
    }
    law.top_p = check_filter(op, "top_p", top_p, size);
    law.min_p = check_filter(op, "min_p", min_p, size);
    return law;
}

template <class T>
T* check_output(const char* op, const char* name, const Tensor& tensor, ScalarType dtype,
                std::initializer_list<host::Dim> shape) {
    Arg(op, name, tensor).on_cpu().dtype({dtype}).shape(shape).dense();
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

inline void check_query_start_loc(const char* op, const VerifyArgs& args) {
    const char* name = "query_start_loc";
    if (args.query_start_loc[0] != 0) {
        fail(op, name, "expected to start at 0, got " + std::to_string(args.query_start_loc[0]));
    }
    for (int64_t b = 0; b < args.batch; ++b) {
        const int64_t rows = args.query_start_loc[b + 1] - args.query_start_loc[b];
        if (rows < 1 || rows > args.num_drafts + 1) {
            fail(op, name,
                 "expected 1 to K + 1 = " + std::to_string(args.num_drafts + 1) +
                     " rows per request, got " + std::to_string(rows) + " for request " +
                     std::to_string(b));
        }
    }
    if (args.query_start_loc[args.batch] > args.target_rows) {
        fail(op, name,
             "expected at most N=" + std::to_string(args.target_rows) + " rows, got " +
                 std::to_string(args.query_start_loc[args.batch]));
    }
}

inline void check_draft(const char* op, const VerifyInputs& in, VerifyArgs& args) {
    const host::Dim batch = {"B", args.batch};
    const host::Dim drafts = {"K", args.num_drafts};
    if (in.draft_logits && in.draft_probs) {
        fail(op, "draft_probs", "expected at most one of draft_logits and draft_probs");
    }
    if (in.draft_logits) {
        args.draft_logits =
            check_logits(op, "draft_logits", *in.draft_logits, {batch, drafts, {"V_draft"}});
    }
    if (in.draft_probs) {
        Arg(op, "draft_probs", *in.draft_probs).on_cpu().dtype({ScalarType::Float});
        args.draft_probs =
            check_logits(op, "draft_probs", *in.draft_probs, {batch, drafts, {"V_draft"}});
    }
    const RowsView& draft = in.draft_logits ? args.draft_logits : args.draft_probs;
    if (draft.vocab > args.target_logits.vocab) {
        fail(op, in.draft_logits ? "draft_logits" : "draft_probs",
             "expected at most the target's vocabulary V=" +
                 std::to_string(args.target_logits.vocab) + ", got " + std::to_string(draft.vocab));
    }
    args.draft_temperature = in.draft_temperature ? check_temperature(op, "draft_temperature",
                                                                      *in.draft_temperature, batch)
                                                  : args.law.temperature;
}

inline VerifyArgs check_verify(const char* op, const VerifyInputs& in) {
    VerifyArgs args = {};
    args.target_logits = check_logits(op, "target_logits", in.target_logits, {{"N"}, {"V"}});
    args.target_rows = in.target_logits.size(0);
    Arg(op, "draft_token_ids", in.draft_token_ids)
        .on_cpu()
        .dtype({ScalarType::Long, ScalarType::Int})
        .shape({{"B"}, {"K"}})
        .dense_rows();
    args.batch = in.draft_token_ids.size(0);
    args.num_drafts = static_cast<int32_t>(in.draft_token_ids.size(1));
    args.draft_token_ids = index_view(in.draft_token_ids);
    args.draft_ids_stride = in.draft_token_ids.stride(0);
    Arg(op, "query_start_loc", in.query_start_loc)
        .on_cpu()
        .dtype({ScalarType::Int, ScalarType::Long})
        .shape({{"B + 1", args.batch + 1}})
        .dense();
    args.query_start_loc = index_view(in.query_start_loc);
    check_query_start_loc(op, args);
    args.law = check_law(op, {"B", args.batch}, in.temperature, in.top_k, in.top_p, in.min_p);
    check_draft(op, in, args);
    return args;
}

inline void check_randomness(VerifyArgs& args, const Tensor& seeds, const Tensor& positions,
                             const OptionalTensor& rates, const OptionalTensor& uniforms) {
    const char* op = "rejection_sample";
    const host::Dim batch = {"B", args.batch};
    args.seeds = check_vector<int64_t>(op, "seeds", seeds, ScalarType::Long, {batch});
    args.positions = check_vector<int64_t>(op, "positions", positions, ScalarType::Long, {batch});
    if (uniforms) {
        args.uniforms = check_vector<double>(op, "uniforms", *uniforms, ScalarType::Double,
                                             {batch, {"K + 1", args.num_drafts + 1}});
    }
    if (args.method == Method::kSynthetic) {
        if (!rates) fail(op, "synthetic_acceptance_rates", "method 'synthetic' needs them");
        args.synthetic_rates = check_vector<float>(op, "synthetic_acceptance_rates", *rates,
                                                   ScalarType::Float, {{"K", args.num_drafts}});
    } else if (rates) {
        fail(op, "synthetic_acceptance_rates", "only method 'synthetic' takes them");
    }
}

}  // namespace dspark::sampling
