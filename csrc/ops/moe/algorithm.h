// The rules of a dispatch plan and of what is moved by it, for every backend. docs/moe.md.
#pragma once

#include "device/dtype.h"
#include "device/numeric.h"
#include "ops/moe/args.h"

namespace dspark::DSPARK_ISA::moe {

DSPARK_DEVICE int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}
DSPARK_DEVICE int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

// ---- plan ---------------------------------------------------------------------------------------

constexpr int32_t kNotHere = -1;

// The expert that a slot goes to, or kNotHere.
DSPARK_DEVICE int32_t expert_of(const PlanArgs& args, int64_t slot) {
    const int64_t id = args.is_int64 ? int64_t{global_cast<const int64_t>(args.ids)[slot]}
                                     : int64_t{global_cast<const int32_t>(args.ids)[slot]};
    if (id < 0 || id >= args.num_ids) return kNotHere;
    if (args.expert_map == nullptr) return static_cast<int32_t>(id);
    const int32_t expert = args.expert_map[id];
    return expert >= 0 && expert < args.num_experts ? expert : kNotHere;
}

struct Segment {
    int64_t begin;  // slots
    int64_t end;
};
DSPARK_DEVICE Segment segment_of(const PlanArgs& args, int64_t segment) {
    return {smaller(args.num_slots, segment * args.segment_slots),
            smaller(args.num_slots, (segment + 1) * args.segment_slots)};
}

// Rows that an expert takes with its padding, and tiles.
DSPARK_DEVICE int64_t padded_rows(const PlanArgs& args, int64_t count) {
    return ceil_div(count, args.alignment) * args.alignment;
}
DSPARK_DEVICE int64_t tiles_of(const PlanArgs& args, int64_t count) {
    return args.tile_rows == 0 ? 0 : ceil_div(count, args.tile_rows);
}

// What `sorted` holds where there is no slot.
DSPARK_DEVICE int64_t no_slot(const PlanArgs& args) {
    return args.num_slots;
}

// Entry `tile` of the table: tile number `index` of an expert that has `count` rows from first_row.
DSPARK_DEVICE void write_tile(const PlanArgs& args, int64_t tile, int32_t expert, int64_t first_row,
                              int64_t count, int64_t index) {
    const int64_t begin = index * args.tile_rows;
    args.tile_expert[tile] = expert;
    args.tile_row[tile] = first_row + begin;
    args.tile_size[tile] = static_cast<int32_t>(smaller(count - begin, args.tile_rows));
}
DSPARK_DEVICE void write_no_tile(const PlanArgs& args, int64_t tile) {
    args.tile_expert[tile] = kNotHere;
    args.tile_row[tile] = 0;
    args.tile_size[tile] = 0;
}

// ---- rows ---------------------------------------------------------------------------------------

// The token whose row stands at a row of the order of experts, or -1: padding. With it a kernel
// reads rows of x through the plan, without a copy of them in that order.
DSPARK_DEVICE int64_t token_of_row(const PlanRows& rows, int64_t row) {
    const int64_t slot = rows.sorted[row];
    const bool is_slot = slot >= 0 && slot < rows.num_tokens * rows.slots_per_token;
    return is_slot ? slot / rows.slots_per_token : -1;
}

// The row of choice j of a token, or -1: not here, or beyond the num_rows rows there are.
DSPARK_DEVICE int64_t row_of_slot(const PlanRows& rows, int64_t token, int64_t j,
                                  int64_t num_rows) {
    const int64_t row = rows.inverse[token * rows.slots_per_token + j];
    return row >= 0 && row < num_rows ? row : -1;
}

// Weight of choice j of a token, widened exactly.
DSPARK_DEVICE float weight_of_slot(const CombineArgs& args, int64_t token, int64_t j) {
    const int64_t at = token * args.weights_token_stride + j * args.weights_slot_stride;
    switch (args.weights_dtype) {
        case FloatType::kFloat32:
            return global_cast<const float>(args.weights)[at];
        case FloatType::kBFloat16:
            return to_float(BFloat16(global_cast<const BFloat16>(args.weights)[at]));
        default:
            return to_float(Float16(global_cast<const Float16>(args.weights)[at]));
    }
}

}  // namespace dspark::DSPARK_ISA::moe
