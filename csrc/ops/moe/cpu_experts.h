// CPU kernels of the expert layer. Ranges may run in different threads; the result does not depend
// on how they are cut.
#pragma once

#include "backends/cpu/isa.h"
#include "ops/moe/args_experts.h"

// grouped_gemm: a range of items; item i is for tile i / ranges the columns of the result from
// kItemColumns * (i mod ranges) on, where ranges = ceil(out_columns / kItemColumns). `scratch` has
// scratch_floats() and belongs to the caller's thread.
// clear_unused_rows, swiglu: a range of rows.
// first_bad_tile: the first of the tiles that the plan cannot have, or -1.
// clang-format off
DSPARK_CPU_DECLARE(
    void grouped_gemm(const ::dspark::GroupedGemmArgs& args, int64_t begin, int64_t end,
                      float* scratch);
    void clear_unused_rows(const ::dspark::GroupedGemmArgs& args, int64_t begin, int64_t end);
    int64_t first_bad_tile(const ::dspark::GroupedGemmArgs& args);
    void swiglu(const ::dspark::SwigluArgs& args, int64_t begin, int64_t end))
// clang-format on

namespace dspark::experts {

constexpr int64_t kItemColumns = 64;
// Rows of a tile that meet a row of the weights at a time, and rows of weights that are decoded
// before they do.
constexpr int64_t kWidenedRows = 64;
constexpr int64_t kDecodedWeights = 16;

inline int64_t padded_columns(const ExpertWeights& weight) {
    return (weight.columns + 15) / 16 * 16;
}
inline int64_t scratch_floats(const ExpertWeights& weight) {
    return (kWidenedRows + kDecodedWeights) * padded_columns(weight);
}

}  // namespace dspark::experts
