// Arguments of the mixture-of-experts dispatch kernels: plain pointers and sizes. Arrays are dense
// and row-major unless a stride is given. docs/moe.md defines what is computed.
//
// A slot is one choice of one token: slot t * k + j is choice j of token t. A row is a place in the
// order of experts, in which the rows of an expert stand together.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "device/float_type.h"

namespace dspark {

// T tokens, k slots of each, E experts.
struct PlanArgs {
    Global<const void> ids;  // [T, k] int32, or int64
    bool is_int64;
    Global<const int32_t> expert_map;  // [num_ids] expert of each id; null: the id is the expert
    int64_t num_ids;                   // ids 0 .. num_ids - 1 exist
    int64_t num_slots;                 // T * k
    int64_t num_experts;               // E
    int64_t alignment;                 // rows of an expert begin and end at multiples of it
    int64_t tile_rows;                 // most rows of a tile; 0: no tiles are wanted
    int64_t capacity;                  // rows there is room for
    int64_t tile_capacity;
    // scratch: segments of consecutive slots
    int64_t num_segments;
    int64_t segment_slots;            // in each but the last
    Global<uint32_t> segment_counts;  // [num_segments, E] slots of each expert; device only
    Global<int64_t> cursors;          // [num_segments, E] CPU only
    // outputs
    Global<int64_t> counts;       // [E]
    Global<int64_t> offsets;      // [E + 1]
    Global<int64_t> sorted;       // [capacity]
    Global<int64_t> inverse;      // [T, k]
    Global<int64_t> total;        // []
    Global<int32_t> tile_expert;  // [tile_capacity]
    Global<int64_t> tile_row;     // [tile_capacity]
    Global<int32_t> tile_size;    // [tile_capacity]
    Global<int64_t> num_tiles;    // []
};

// The part of a plan that rows are moved by.
struct PlanRows {
    Global<const int64_t> sorted;   // [capacity]
    Global<const int64_t> inverse;  // [T, k]
    int64_t num_tokens;             // T
    int64_t slots_per_token;        // k
    int64_t capacity;
};

struct PermuteArgs {
    Global<const void> x;  // [T, row_bytes]
    int64_t x_stride;      // bytes from row to row
    PlanRows rows;
    int64_t row_bytes;
    int64_t unit;  // bytes, as many as 16: every row begins and ends at a multiple of them
    // output
    Global<void> permuted;  // [capacity, row_bytes]
};

// Rows of d elements that are read; null: none.
struct RowsIn {
    Global<const void> data;
    int64_t stride;  // elements from row to row
};

struct CombineArgs {
    RowsIn y;  // [num_rows, d]
    int64_t num_rows;
    PlanRows rows;  // without `sorted`
    Global<const void> weights;
    FloatType weights_dtype;
    int64_t weights_token_stride;  // elements
    int64_t weights_slot_stride;
    RowsIn shared;     // [T, d]
    RowsIn residual;   // [T, d]
    FloatType dtype;   // of y, shared, residual and out
    int64_t row_size;  // d
    bool is_aligned;   // every row begins and ends at a multiple of 16 bytes
    // output
    Global<void> out;  // [T, d]
};

}  // namespace dspark
