// The statistics of one tile of a row, docs/numerics.md sections 1 to 3, computed by a block.
#pragma once

#include "device/block_reduce.h"
#include "device/block_tile.h"

namespace dspark::DSPARK_ISA {

template <int W>
struct StatisticsShared {
    TileStage stage;
    LaneSums sums;
    BlockReduceScratch<W, float> maximum;
    BlockReduceScratch<W, uint32_t> has_nan;
    BlockReduceScratch<W, int32_t> first;
};

struct BlockStatistics {
    float maximum;  // m_t
    float sum;      // S_t; 0 for greedy rows and where nothing is drawn
    int32_t first;  // greedy rows: id of the first entry equal to the maximum
    bool has_nan;
};

// Weights of a tile nothing of which is dropped.
DSPARK_DEVICE LaneEntries all_weights(const LaneEntries& entries, float maximum, float scale) {
    LaneEntries weights;
    for (int c = 0; c < kEntriesPerThread; ++c) {
        weights.x[c] = exp2_nonpositive((entries.x[c] - maximum) * scale);
    }
    return weights;
}

// Reads the tile once. Called by the whole block; thread 0 has the result. Temperature 0 is greedy,
// NaN: only the maximum and the NaN flag are wanted.
template <int W>
DSPARK_DEVICE BlockStatistics block_statistics(const Row& row, int tile, float temperature,
                                               StatisticsShared<W>& shared) {
    TileExtremes extremes;
    const int shift = stage_tile<ReadLogit>(row, tile, shared.stage, extremes);
    BlockStatistics found = {};
    found.maximum = block_max<W>(extremes.maximum, shared.maximum);  // syncs the block
    found.has_nan = block_any<W>(extremes.has_nan, shared.has_nan);
    const LaneEntries entries =
        lane_entries<ReadLogit>(shared.stage, shift, tile_size(row.size, tile));
    if (temperature == 0.0f) {
        int32_t first = INT32_MAX;
        for (int c = kEntriesPerThread - 1; c >= 0; --c) {
            if (entries.x[c] == found.maximum) first = tile * kTile + entry_index(c);
        }
        found.first = block_min<W>(first, shared.first);
    } else if (temperature > 0.0f && found.maximum > -kInfinity) {
        const LaneEntries weights =
            all_weights(entries, found.maximum, exponent_scale(temperature));
        found.sum = halving_tree<W>(lane_sum(weights), shared.sums);
    }
    return found;
}

}  // namespace dspark::DSPARK_ISA
