// The packed weight and the arguments of the linear kernels.
//
// A weight [out_features, in_features] is packed into panels of 32 outputs,
//     packed [num_panels, in_features, 32],   num_panels = ceil(out_features / 32),
// zero beyond out_features. Output o is column c = o % 32 of panel o / 32.
//     fp32: element [panel, k, c] is weight[o, k].
//     bf16: rows k = 2i and 2i + 1 are 32 words of 32 bits: word c has weight[o, 2i] in its high
//     half
//           and weight[o, 2i + 1] in its low half, the order in which dot-product instructions add
//           the two. A last row k of odd in_features is stored as it is: element c is weight[o, k].
#pragma once

#include <cstdint>

namespace dspark {

inline constexpr int64_t kLinearPanelOutputs = 32;

// Work is cut into one panel x kLinearRowChunk rows.
inline constexpr int64_t kLinearRowChunk = 48;
inline constexpr int64_t linear_row_chunks(int64_t num_rows) {
    return (num_rows + kLinearRowChunk - 1) / kLinearRowChunk;
}

struct PackLinearArgs {
    const void* weight;  // [out_features, in_features], contiguous, fp32 or bf16
    void* packed;        // [num_panels, in_features, 32], the same dtype
    int64_t out_features;
    int64_t in_features;
    bool is_bf16;
};

struct LinearArgs {
    const float* x;  // [num_rows, in_features], contiguous
    const uint32_t*
        x_pairs;  // or null; instead of x, bf16 [num_rows, ceil(in_features / 2)] words:
                  // x[2i] high, x[2i + 1] low; the last of an odd number alone, low
    const void* packed_weight;  // [num_panels, in_features, 32], fp32 or bf16
    const float* bias;          // [out_features], or null
    float* out;                 // [num_rows, out_features], contiguous
    int64_t num_rows;
    int64_t in_features;
    int64_t out_features;
    bool is_bf16;
    bool flush_subnormals;
};

}  // namespace dspark
