// Arguments of the expert kernels: plain pointers and sizes. docs/moe.md and section 13 of
// docs/numerics.md define what is computed.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "device/float_type.h"
#include "ops/moe/args.h"

namespace dspark {

// How the weights are stored; kMxFp4 packs two into a byte, the even column in the low half.
enum class WeightFormat { kFloat32, kBFloat16, kFloat16, kFp8E4M3, kFp8E4M3Fnuz, kMxFp4 };

// The weights of all experts: E matrices of N rows and K columns, without gaps.
struct ExpertWeights {
    Global<const void> data;   // [E, N, K]
    Global<const void> scale;  // [E, scale_rows, scale_columns], or null: without scales
    WeightFormat format;
    bool scale_is_e8m0;  // else float32
    int64_t num_experts;
    int64_t rows;           // N
    int64_t columns;        // K
    int64_t row_bytes;      // of K weights
    int64_t scale_rows;     // blocks of a matrix, those at its edges may be partial
    int64_t scale_columns;  // and of a row of them
    int64_t block_rows;     // weights that share a scale
    int64_t block_columns;
    bool is_aligned;  // every row begins and ends at a multiple of 16 bytes
};

// The tile table of a plan.
struct TileTable {
    Global<const int32_t> expert;  // [count] -1: no tile
    Global<const int64_t> row;     // [count] first row
    Global<const int32_t> size;    // [count] rows
    int64_t count;
};

// out[r, n] = sum over k of x[row of r, k] * weight[expert of r, n, k], for every row r of a tile;
// rows that hold no slot become 0.
struct GroupedGemmArgs {
    RowsIn x;  // [T, K], or [capacity, K]
    FloatType x_dtype;
    bool gather;    // x holds the rows of tokens, not those of the plan
    PlanRows rows;  // without `inverse`
    TileTable tiles;
    ExpertWeights weight;
    FloatType out_dtype;
    // output
    Global<void> out;  // [capacity, N]
};

// out[r, i] = silu(min(gate, limit)) * min(max(up, -limit), limit).
struct SwigluArgs {
    RowsIn gate_up;  // [rows, 2 * width]
    FloatType dtype;
    int64_t num_rows;
    int64_t width;
    bool interleaved;  // gate and up in turns, else all gates, then all ups
    float limit;       // +inf: none
    // output
    Global<void> out;  // [rows, width]
};

}  // namespace dspark
