// How matrix units share the work of grouped_gemm. Numbers to tune: no result depends on them, save
// on takes_wide_tiles.
#pragma once

#include <cstdint>
#include <cstring>

#include "ops/moe/args_experts.h"

namespace dspark::experts {

// An item of work: so many rows of weights, in turns, with a few tiles of 16 rows of x.
constexpr int kItemRows = 128;

// The rest depends on the bits of a weight, since registers set the limit: codes need some to
// become halves.

// Blocks of a multiprocessor, of which each walks items. With two, threads have 128 registers.
constexpr int blocks_of_multiprocessor(int bits) {
    return bits == 4 ? 1 : 2;
}
// Tiles of an item, at most. Of a tile of the plan with more rows the weights are read again.
constexpr int most_item_tiles(int bits, bool is_wide) {
    return bits == 16 || is_wide ? 4 : 2;
}
// Loads of 64 bytes of each of its rows that a warp has on their way. A warp has 16 rows (of 32
// lanes) or two times 16 (of 64), so that a block waits for 8 KiB times as many.
constexpr int loads_on_their_way(int bits) {
    return bits == 4 ? 4 : 3;
}

// x is staged so many steps of 32 columns at a time, twice, so that a thread brings 32 bytes: 18
// KiB of shared memory.
constexpr int chunk_steps(int tiles) {
    return tiles <= 2 ? 4 : 2;
}

// Whether weights go by wide matrix instructions, of hardware that has them: codes, of which a lane
// then has one row's scale instead of eight. Bits differ, so only what weights are may decide.
constexpr bool takes_wide_tiles(int bits) {
    return bits < 16;
}

inline bool is_fp8(WeightFormat format) {
    return format == WeightFormat::kFp8E4M3 || format == WeightFormat::kFp8E4M3Fnuz;
}

// Whether matrix units may take the products; does not depend on tokens and plan.
inline bool suits_matrix_units(const GroupedGemmArgs& args) {
    const ExpertWeights& weight = args.weight;
    if (args.exact || args.x_dtype == FloatType::kFloat32 || !weight.is_aligned) return false;
    const bool is_mxfp4 = weight.format == WeightFormat::kMxFp4;
    if (is_mxfp4 || is_fp8(weight.format)) {
        // Of an expert scales are counted in 32 bits, with panels' padding.
        const int64_t most = int64_t{1} << 30;
        const bool is_small = weight.scale_rows <= most / (weight.scale_columns + 8);
        if (!is_small || weight.block_columns % 32 != 0) return false;
        return !is_mxfp4 || (weight.block_columns == 32 && weight.scale_is_e8m0);
    }
    return weight.format == (args.x_dtype == FloatType::kBFloat16 ? WeightFormat::kBFloat16
                                                                  : WeightFormat::kFloat16);
}

// Whether every row of x begins at a multiple of 16 bytes.
inline bool has_aligned_rows(const RowsIn& x) {
    uint64_t address = 0;
    std::memcpy(&address, &x.data, sizeof(address));
    return address % 16 == 0 && x.stride % 8 == 0;
}

// Whether the E8M0 scales of 64 bytes of codes are aligned together in every row: four of mxfp4,
// two of fp8.
inline bool has_scale_words(const ExpertWeights& weight) {
    const bool is_mxfp4 = weight.format == WeightFormat::kMxFp4;
    const int together = is_mxfp4 ? 4 : 2;
    const bool has_padding = is_mxfp4 && weight.layout == WeightLayout::kPanels;
    uint64_t address = 0;
    std::memcpy(&address, &weight.scale, sizeof(address));
    return weight.block_columns == 32 && address % together == 0 &&
           (has_padding || weight.scale_columns % together == 0);
}

}  // namespace dspark::experts
