// The matrix path of grouped_gemm on the CPU (docs/numerics.md, section 13): products of pairs of
// 16-bit numbers, 32 rows of weights at a time.
#pragma once

#include "backends/cpu/isa.h"
#include "ops/moe/args_experts.h"

// grouped_gemm_pairs: the items whose cost begins in begin .. end - 1, counted through all tiles.
// An item is a group of kPairRows rows of a tile, or what is left of it, with kPairWeights rows of
// weights. `scratch` has pair_scratch_bytes(), is aligned to 64 bytes and belongs to the caller's
// thread.
// pairs_cost: of all items together.
// clang-format off
DSPARK_CPU_DECLARE(
    void grouped_gemm_pairs(const ::dspark::GroupedGemmArgs& args, int64_t begin, int64_t end,
                            char* scratch);
    int64_t pairs_cost(const ::dspark::GroupedGemmArgs& args))
// clang-format on

namespace dspark::experts {

constexpr int64_t kPairRows = 64;
constexpr int64_t kPairWeights = 32;
constexpr int64_t kPairBlock = 32;   // K is padded to a multiple
constexpr int64_t kPairChunk = 256;  // columns that all rows of an item meet before the next

// Whether the weights go through pairs. It does not depend on the rows of x, nor on their number.
inline bool takes_pairs(const GroupedGemmArgs& args) {
    const ExpertWeights& weight = args.weight;
    if (weight.layout == WeightLayout::kPairs) return true;
    if (args.exact || args.x_dtype == FloatType::kFloat32) return false;
    switch (weight.format) {
        case WeightFormat::kFloat32:
            return false;
        case WeightFormat::kBFloat16:
            return args.x_dtype == FloatType::kBFloat16;
        case WeightFormat::kFloat16:
            return args.x_dtype == FloatType::kFloat16;
        default:
            return weight.block_columns % kPairBlock == 0;
    }
}

inline int64_t padded_pair_columns(const ExpertWeights& weight) {
    return (weight.columns + kPairBlock - 1) / kPairBlock * kPairBlock;
}

// x as floats; sums of items and of blocks; two panels of a chunk as pairs, and a panel of words;
// scales of a chunk.
inline int64_t pair_scratch_bytes(const ExpertWeights& weight) {
    const int64_t floats = kPairRows * (padded_pair_columns(weight) + 2 * kPairWeights) +
                           kPairChunk / 2 * (kPairWeights + kPairWeights / 2) +
                           kPairChunk / kPairBlock * kPairWeights;
    return floats * 4;
}

}  // namespace dspark::experts
