// From tensors to the arguments of the router kernels: every check of the family.
#pragma once

#include <cmath>
#include <optional>
#include <string>

#include "host/check.h"
#include "host/tensor.h"
#include "ops/router/args.h"

namespace dspark::router {

using host::Arg;
using host::dense;
using host::fail;
using host::OptionalTensor;
using host::ScalarType;
using host::Tensor;

constexpr const char* kRoute = "route";

struct RouteInputs {
    const Tensor& logits;  // rows without gaps
    int64_t k;
    const std::string& scoring;
    const OptionalTensor& bias;
    int64_t num_groups;
    int64_t topk_groups;
    bool renormalize;
    double scale;
    const OptionalTensor& hash_ids;
    const OptionalTensor& hash_table;
    std::optional<double> shared_expert_weight;
};

inline Scoring parse_scoring(const std::string& scoring) {
    if (scoring == "softmax") return Scoring::kSoftmax;
    if (scoring == "sigmoid") return Scoring::kSigmoid;
    if (scoring == "sqrtsoftplus") return Scoring::kSqrtSoftplus;
    fail(kRoute, "scoring", "expected softmax, sigmoid or sqrtsoftplus, got " + scoring);
}

inline void check_range(const char* name, int64_t value, int64_t low, int64_t high,
                        const std::string& high_name) {
    if (value >= low && value <= high) return;
    fail(kRoute, name,
         "expected " + std::to_string(low) + " to " + high_name + "=" + std::to_string(high) +
             ", got " + std::to_string(value));
}

inline void check_finite(const char* name, double value) {
    if (std::isfinite(static_cast<float>(value))) return;
    fail(kRoute, name, "expected a finite float32 number, got " + std::to_string(value));
}

// Groups as the kernels take them: one group is none.
inline void check_groups(const RouteInputs& in, RouteArgs& args) {
    args.num_groups = 1;
    args.topk_groups = 1;
    if (in.num_groups == 0 || in.num_groups == 1) return;
    check_range("num_groups", in.num_groups, 0, kMostGroups, "most");
    args.num_groups = static_cast<int32_t>(in.num_groups);
    if (args.num_experts % args.num_groups != 0) {
        fail(kRoute, "num_groups",
             "expected a divisor of E=" + std::to_string(args.num_experts) + ", got " +
                 std::to_string(in.num_groups));
    }
    check_range("topk_groups", in.topk_groups, 1, in.num_groups, "num_groups");
    args.topk_groups = static_cast<int32_t>(in.topk_groups);
    const int64_t kept = in.topk_groups * (args.num_experts / args.num_groups);
    if (in.k > kept) {
        fail(kRoute, "topk_groups",
             "expected groups with at least k=" + std::to_string(in.k) + " experts, got " +
                 std::to_string(in.topk_groups) + " with " + std::to_string(kept));
    }
}

inline void check_hash(const RouteInputs& in, RouteArgs& args) {
    if (in.hash_ids.has_value() != in.hash_table.has_value()) {
        fail(kRoute, in.hash_ids ? "hash_table" : "hash_ids",
             "hash_ids and hash_table belong together, got None");
    }
    if (!in.hash_ids) return;
    if (in.bias) fail(kRoute, "bias", "hash_table chooses the experts, expected None");
    if (args.num_groups > 1) {
        fail(kRoute, "num_groups", "hash_table chooses the experts, expected None");
    }
    Arg(kRoute, "hash_ids", *in.hash_ids)
        .on_device_of(in.logits)
        .dtype({ScalarType::Long, ScalarType::Int})
        .shape({{"T", args.num_tokens}})
        .dense();
    Arg(kRoute, "hash_table", *in.hash_table)
        .on_device_of(in.logits)
        .dtype({ScalarType::Int})
        .shape({{"V"}, {"k", in.k}})
        .dense();
    args.hash_ids = in.hash_ids->const_data_ptr();
    args.hash_ids_are_wide = in.hash_ids->scalar_type() == ScalarType::Long;
    args.hash_table = in.hash_table->const_data_ptr<int32_t>();
    args.hash_rows = in.hash_table->size(0);
}

inline RouteArgs check_route(const RouteInputs& in) {
    RouteArgs args = {};
    Arg(kRoute, "logits", in.logits)
        .dtype({ScalarType::Float, ScalarType::BFloat16, ScalarType::Half})
        .shape({{"T"}, {"E"}});
    args.num_tokens = in.logits.size(0);
    const int64_t experts = in.logits.size(1);
    if (experts < 1 || experts > kMostExperts) {
        fail(kRoute, "logits",
             "expected E from 1 to " + std::to_string(kMostExperts) + ", got " +
                 std::to_string(experts));
    }
    args.num_experts = static_cast<int32_t>(experts);
    args.logits = in.logits.const_data_ptr();
    args.dtype = host::float_type(in.logits);
    args.row_stride = in.logits.stride(0);
    const bool is_small = experts < kMostChosen;
    check_range("k", in.k, 1, is_small ? experts : kMostChosen, is_small ? "E" : "most");
    args.num_chosen = static_cast<int32_t>(in.k);
    args.scoring = parse_scoring(in.scoring);
    args.renormalize = in.renormalize;
    check_finite("scale", in.scale);
    args.scale = static_cast<float>(in.scale);
    if (in.bias) {
        Arg(kRoute, "bias", *in.bias)
            .on_device_of(in.logits)
            .dtype({ScalarType::Float})
            .shape({{"E", experts}})
            .dense();
        args.bias = in.bias->const_data_ptr<float>();
    }
    check_groups(in, args);
    check_hash(in, args);
    if (in.shared_expert_weight) {
        check_finite("shared_expert_weight", *in.shared_expert_weight);
        args.has_shared_expert = true;
        args.shared_expert_weight = static_cast<float>(*in.shared_expert_weight);
    }
    return args;
}

}  // namespace dspark::router
