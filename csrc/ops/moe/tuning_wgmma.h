// How warpgroups share the work of grouped_gemm. Numbers to tune: no result depends on them.
#pragma once

#include <cstdint>
#include <cstring>

#include "ops/moe/args_experts.h"

namespace dspark::experts {

// An item of work: so many rows of weights with up to so many rows of x. Of a tile of the plan with
// more rows the weights are read again.
constexpr int kGroupItemRows = 128;
constexpr int kGroupItemRowsOfX = 64;

// Two warpgroups multiply, a panel of 64 rows each; the third one brings what they need. One block
// fills a multiprocessor.
constexpr int kGroupThreads = 384;

// Stages of the ring, by the columns of a step. A stage has 16 KiB of weights (fp4: 17) and 64 rows
// of x, 8, 16 or 32 KiB; some 200 of the 227 KiB that a block may have are used.
template <int kStepColumns>
constexpr int kGroupStages = kStepColumns == 64    ? 8
                             : kStepColumns == 128 ? 6
                                                   : 4;

inline bool is_multiple_of_16(Global<const void> data) {
    uint64_t address = 0;
    std::memcpy(&address, &data, sizeof(address));
    return address % 16 == 0;
}

// Whether warpgroups may take the products; does not depend on tokens and plan.
inline bool suits_warpgroups(const GroupedGemmArgs& args) {
    const ExpertWeights& weight = args.weight;
    if (args.exact || weight.layout != WeightLayout::kPanels || !weight.is_aligned) return false;
    switch (weight.format) {
        case WeightFormat::kFloat32:
            return false;
        case WeightFormat::kBFloat16:
            return args.x_dtype == FloatType::kBFloat16;
        case WeightFormat::kFloat16:
            return args.x_dtype == FloatType::kFloat16;
        case WeightFormat::kFp8E4M3:
        case WeightFormat::kFp8E4M3Fnuz:
            return args.x_dtype != FloatType::kFloat32 && weight.block_columns % 32 == 0;
        case WeightFormat::kMxFp4:
            return args.x_dtype != FloatType::kFloat32 && is_multiple_of_16(weight.scale);
    }
    return false;
}

// Whether every row of x begins at a multiple of 16 bytes.
inline bool has_16_byte_rows(const RowsIn& x) {
    return is_multiple_of_16(x.data) && x.stride % 8 == 0;
}

}  // namespace dspark::experts
