// The packed weight and the arguments of the linear kernels.
//
// A weight [out_features, in_features] is packed into panels of 32 outputs,
//     packed [num_panels, in_features, 32],   num_panels = ceil(out_features / 32),
// zero beyond out_features. Output o is in panel o / 32, column c = o % 32. A column stands
//     fp32: at element c of its panel row;
//     bf16: at element 2 * (c % 16) + c / 16, so that the 32-bit word j of a panel row holds the
//     columns
//           j (low half) and j + 16 (high half), which a shift and a mask widen to fp32.
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
    const float* x;             // [num_rows, in_features], contiguous
    const void* packed_weight;  // [num_panels, in_features, 32], fp32 or bf16
    const float* bias;          // [out_features], or null
    float* out;                 // [num_rows, out_features], contiguous
    int64_t num_rows;
    int64_t in_features;
    int64_t out_features;
    bool is_bf16;
};

}  // namespace dspark
