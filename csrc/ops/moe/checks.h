// From tensors to the argument structs of the dispatch kernels: every check of the family.
#pragma once

#include <optional>
#include <string>

#include "host/check.h"
#include "host/tensor.h"
#include "ops/moe/workspace.h"

namespace dspark::moe {

using host::Arg;
using host::dense;
using host::fail;
using host::new_tensor;
using host::OptionalTensor;
using host::ScalarType;
using host::Tensor;
using host::with_dense_rows;

inline void check_range(const char* op, const char* name, int64_t value, int64_t low,
                        int64_t high) {
    if (value >= low && value <= high) return;
    fail(op, name,
         "expected " + std::to_string(low) + " to " + std::to_string(high) + ", got " +
             std::to_string(value));
}

// ---- plan ---------------------------------------------------------------------------------------

// `ids` and `expert_map` are dense. Everything but the scratch and the outputs.
inline PlanArgs check_plan(const Tensor& ids, int64_t num_experts, int64_t alignment,
                           const OptionalTensor& expert_map, int64_t tile_rows) {
    const char* op = "plan";
    Arg(op, "ids", ids).dtype({ScalarType::Int, ScalarType::Long}).shape({{"T"}, {"k"}});
    check_range(op, "num_experts", num_experts, 1, kMostExperts);
    check_range(op, "alignment", alignment, 1, kMostAlignment);
    check_range(op, "tile_rows", tile_rows, 0, kMostAlignment);
    PlanArgs args = {};
    args.ids = ids.const_data_ptr();
    args.is_int64 = ids.scalar_type() == ScalarType::Long;
    args.num_ids = num_experts;
    if (expert_map) {
        Arg(op, "expert_map", *expert_map)
            .on_device_of(ids)
            .dtype({ScalarType::Int})
            .shape({{"num_ids"}});
        args.expert_map = static_cast<const int32_t*>(expert_map->const_data_ptr());
        args.num_ids = expert_map->size(0);
    }
    args.num_slots = ids.numel();
    if (args.num_slots > kMostSlots) {
        fail(op, "ids", "expected at most 2^38 slots T * k, got " + std::to_string(args.num_slots));
    }
    args.num_experts = num_experts;
    args.alignment = alignment;
    args.tile_rows = tile_rows;
    args.capacity = plan_rows(args.num_slots, num_experts, alignment);
    args.tile_capacity = plan_tiles(args.num_slots, num_experts, tile_rows);
    return args;
}

// ---- rows ---------------------------------------------------------------------------------------

// `inverse` of a plan for T tokens.
inline PlanRows check_inverse(const char* op, const Tensor& inverse, const Tensor& like) {
    Arg(op, "inverse", inverse)
        .on_device_of(like)
        .dtype({ScalarType::Long})
        .shape({{"T"}, {"k"}})
        .dense();
    PlanRows rows = {};
    rows.inverse = static_cast<const int64_t*>(inverse.const_data_ptr());
    rows.num_tokens = inverse.size(0);
    rows.slots_per_token = inverse.size(1);
    return rows;
}

// From row to row. That of fewer than two rows does not matter, and 0 is a multiple of everything.
inline int64_t row_stride(const Tensor& rows) {
    return rows.size(0) > 1 ? rows.stride(0) : 0;
}

// Collects addresses and distances, in bytes, and tells what divides them all.
class CommonUnit {
  public:
    void add(const void* address) { all_ |= reinterpret_cast<uintptr_t>(address); }
    void add(int64_t bytes) { all_ |= static_cast<uint64_t>(bytes); }
    // 16, 8, 4, 2 or 1
    int64_t bytes() const {
        int64_t unit = 16;
        while (all_ % static_cast<uint64_t>(unit) != 0) unit /= 2;
        return unit;
    }

  private:
    uint64_t all_ = 0;
};

inline PermuteArgs check_permute(const Tensor& x, const Tensor& sorted, const Tensor& inverse) {
    const char* op = "permute";
    PermuteArgs args = {};
    args.rows = check_inverse(op, inverse, x);
    Arg(op, "x", x).shape({{"T", args.rows.num_tokens}, {"d"}});
    Arg(op, "sorted", sorted)
        .on_device_of(x)
        .dtype({ScalarType::Long})
        .shape({{"capacity"}})
        .dense();
    args.rows.sorted = static_cast<const int64_t*>(sorted.const_data_ptr());
    args.rows.capacity = sorted.size(0);
    args.x = x.const_data_ptr();
    args.x_stride = row_stride(x) * x.element_size();
    args.row_bytes = x.size(1) * x.element_size();
    return args;
}

inline RowsIn check_addend(const char* name, const OptionalTensor& rows, const Tensor& y,
                           int64_t num_tokens, CommonUnit& unit) {
    if (!rows) return {};
    Arg("combine", name, *rows)
        .on_device_of(y)
        .dtype({y.scalar_type()})
        .shape({{"T", num_tokens}, {"d", y.size(1)}});
    unit.add(rows->const_data_ptr());
    unit.add(row_stride(*rows) * rows->element_size());
    return {rows->const_data_ptr(), row_stride(*rows)};
}

// All but weights have dense rows.
inline CombineArgs check_combine(const Tensor& y, const Tensor& inverse, const Tensor& weights,
                                 const OptionalTensor& shared, const OptionalTensor& residual) {
    const char* op = "combine";
    const std::initializer_list<ScalarType> floats = {ScalarType::Float, ScalarType::BFloat16,
                                                      ScalarType::Half};
    CombineArgs args = {};
    Arg(op, "y", y).dtype(floats).shape({{"rows"}, {"d"}});
    args.rows = check_inverse(op, inverse, y);
    const int64_t tokens = args.rows.num_tokens;
    Arg(op, "weights", weights)
        .on_device_of(y)
        .dtype(floats)
        .shape({{"T", tokens}, {"k", args.rows.slots_per_token}});
    args.weights = weights.const_data_ptr();
    args.weights_dtype = host::float_type(weights);
    args.weights_token_stride = weights.stride(0);
    args.weights_slot_stride = weights.stride(1);
    CommonUnit unit;
    unit.add(y.const_data_ptr());
    unit.add(row_stride(y) * y.element_size());
    unit.add(y.size(1) * y.element_size());
    args.shared = check_addend("shared", shared, y, tokens, unit);
    args.residual = check_addend("residual", residual, y, tokens, unit);
    args.y = {y.const_data_ptr(), row_stride(y)};
    args.num_rows = y.size(0);
    args.dtype = host::float_type(y);
    args.row_size = y.size(1);
    args.is_aligned = unit.bytes() == 16;
    return args;
}

}  // namespace dspark::moe
