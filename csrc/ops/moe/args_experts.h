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

// Where the bytes of the weights lie, with row_bytes those of K weights:
//     kRows    [E, N, row_bytes]
//     kPanels  [E, ceil(N / 64), ceil(row_bytes / 128), 8, 8, 8, 16]: expert, panel of 64 rows,
//              step of 128 bytes, 8 rows, 16 bytes of a step, row of the 8, byte. Scales of kMxFp4
//              [E, ceil(N / 64), ceil(K / 256), 64, 8]: a byte for 32 columns of a row
//     kPairs   [E, ceil(N / 16), words, 16, 4]: expert, panel of 16 rows, word of 4 bytes of a row
//              of K weights padded to a multiple of 32, row, byte. Of 16 bits a word has a pair
// 16-bit weights keep their dtype: their last dimension is 8 and 2. The last two layouts are made
// by prepare_weights; padding holds 0, that of scales 1.0. The gates and the ups of an activation
// stand in turns there, see Activation.
enum class WeightLayout { kRows, kPanels, kPairs };

// What becomes of a row of products before it is rounded. Row i of the result comes from gate i and
// up i. The activation names the order of the weights as they were before prepare_weights:
//     kSwiglu             gates, then ups. Prepared, they stand in turns, but scales of blocks are
//                         still in the order of before: row n has those of row n / 2 if it is a
//                         gate and of N / 2 + n / 2 if it is an up
//     kSwigluInterleaved  row 2 i is gate i, row 2 i + 1 up i
enum class Activation { kNone, kSwiglu, kSwigluInterleaved };

// The weights of all experts: E matrices of N rows and K columns, without gaps.
struct ExpertWeights {
    Global<const void> data;   // laid out as `layout` says
    Global<const void> scale;  // [E, scale_rows, scale_columns], or null: without scales
    WeightFormat format;
    WeightLayout layout;
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

// product[r, n] = sum over k of x[row of r, k] * weight[expert of r, n, k], for every row r of a
// tile; out[r] is its activation. Rows that hold no slot become 0.
struct GroupedGemmArgs {
    RowsIn x;  // [T, K], or [capacity, K]
    FloatType x_dtype;
    bool gather;    // x holds the rows of tokens, not those of the plan
    PlanRows rows;  // without `inverse`
    TileTable tiles;
    ExpertWeights weight;
    FloatType out_dtype;
    bool exact;  // in 16 lanes of fma, whatever the hardware has
    Activation activation;
    float limit;  // of the activation; +inf: none
    // output
    Global<void> out;  // [capacity, out_columns]
};

// N, or N / 2 where gates and ups become one.
DSPARK_HOST_DEVICE constexpr int64_t out_columns(Activation activation, int64_t weight_rows) {
    return activation == Activation::kNone ? weight_rows : weight_rows / 2;
}

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
