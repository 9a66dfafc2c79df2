// What blocks of grouped_gemm by matrix units work on, and in which order.
#pragma once

#include "ops/moe/kernel_experts.h"
#include "ops/moe/tuning_experts.h"

namespace dspark::DSPARK_ISA::experts {

using dspark::experts::kItemRows;

struct MatrixLaunch {
    GemmLaunch lanes;    // what chips without a matrix unit do
    int ranges;          // of kItemRows rows of weights
    int step_tiles;      // from an item of a block to its next: the blocks of the grid, divided by
    int step_ranges;     // the ranges, and the rest
    int most_rows;       // of x in an item
    bool has_aligned_x;  // rows of x begin at multiples of 16 bytes
    bool has_scale_words;  // the E8M0 scales of a load are aligned together, in every row
};

// ---- items --------------------------------------------------------------------------------------

// Part of a tile, up to most_rows of its rows, with a range of rows of weights.
struct MatrixItem {
    int64_t tile;  // of the plan
    int range;     // -1: there is no item
    int expert;
    int64_t first_row;  // of the plan
    int num_rows;       // up to most_rows

    // In turns; negative if there is no item.
    DSPARK_DEVICE int64_t first_weight() const { return int64_t{kItemRows} * range; }
};

// The item from row `row` of a tile on, or else the first of the block that follows. Tiles that the
// plan cannot have are left out, and after one without an expert there are none.
DSPARK_DEVICE MatrixItem find_item(const MatrixLaunch& launch, int64_t tile, int range,
                                   int64_t row) {
    const GroupedGemmArgs& args = launch.lanes.args;
    while (tile < args.tiles.count) {
        const int expert = args.tiles.expert[tile];
        if (expert < 0) break;
        const int64_t size = args.tiles.size[tile];
        const int64_t first = args.tiles.row[tile];
        const bool fits = first >= 0 && first <= args.rows.capacity - size;
        if (expert < args.weight.num_experts && fits && row < size) {
            return {tile, range, expert, first + row,
                    static_cast<int>(moe::smaller(launch.most_rows, size - row))};
        }
        row = 0;
        tile += launch.step_tiles;
        range += launch.step_ranges;
        if (range >= launch.ranges) {
            range -= launch.ranges;
            ++tile;
        }
    }
    return {tile, -1, 0, 0, 0};
}
DSPARK_DEVICE MatrixItem first_item(const MatrixLaunch& launch) {
    const int block = block_idx().x;
    return find_item(launch, block / launch.ranges, block % launch.ranges, 0);
}
DSPARK_DEVICE MatrixItem item_after(const MatrixLaunch& launch, const MatrixItem& item) {
    const int64_t row = item.first_row - launch.lanes.args.tiles.row[item.tile];
    return find_item(launch, item.tile, item.range, row + launch.most_rows);
}

}  // namespace dspark::DSPARK_ISA::experts
