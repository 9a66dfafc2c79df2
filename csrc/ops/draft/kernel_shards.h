// A vocabulary that is spread over processes: statistics of rows on their own, and the draw from
// rows of which some tiles are here. The tiles are those of the whole rows, so the results are,
// too.
#pragma once

#include "device/block_law.h"
#include "device/block_statistics.h"
#include "device/philox.h"
#include "ops/draft/algorithm.h"
#include "ops/draft/kernel_logits.h"

namespace dspark::DSPARK_ISA::draft {

// One block per row and tile.
template <int W>
DSPARK_KERNEL(kThreads)
void shard_statistics_kernel(RowStatisticsArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(StatisticsShared<W>, shared);
    const int64_t job = block_idx().x;
    const int64_t index = job / args.tiles;
    const Row row = {row_of(args.logits_type, args.logits, index, args.vocab), args.logits_type,
                     static_cast<int32_t>(args.vocab)};
    const float temperature = drawn_temperature(args.temperature[index]);
    const BlockStatistics found =
        block_statistics<W>(row, static_cast<int>(job % args.tiles), temperature, shared);
    if (thread_idx() == 0) {
        args.tile_max[job] = found.maximum;
        args.tile_sum[job] = found.sum;
        args.tile_nan[job] = found.has_nan ? 1 : 0;
    }
}

// ---- draws --------------------------------------------------------------------------------------

template <int W>
struct ShardShared {
    DrawShared<W> draw;
    BlockReduceScratch<W, float> maximum;
    BlockReduceScratch<W, int32_t> tile;
    BlockReduceScratch<W, int32_t> entry;
};

// A row of which the tiles from first_tile on are here.
struct LocalTiles {
    Row row;  // of them alone
    int first_tile;

    // The tile of the whole row as one of `row`; -1: elsewhere.
    DSPARK_DEVICE int find(int tile) const {
        const int local = tile - first_tile;
        return local >= 0 && local < num_tiles(row.size) ? local : -1;
    }
};

// The first entry of the first tile that has the maximum; -1 if it is elsewhere. Called by the
// whole block, every thread returns it.
template <int W>
DSPARK_DEVICE int64_t block_draw_greedy(const LocalTiles& local, Global<const float> tile_max,
                                        int tiles, float maximum, ShardShared<W>& shared) {
    int32_t first = INT32_MAX;
    for (int t = thread_idx(); t < tiles; t += kThreads) {
        if (tile_max[t] == maximum && t < first) first = t;
    }
    const int tile = block_min<W>(first, shared.tile);
    const int here = local.find(tile);
    if (here < 0) return -1;
    const LaneEntries entries = read_tile(local.row, here, shared.draw.stage);
    first = INT32_MAX;
    for (int c = kEntriesPerThread - 1; c >= 0; --c) {
        if (entries.x[c] == maximum) first = entry_index(c);
    }
    const int entry = block_min<W>(first, shared.entry);
    if (entry == INT32_MAX) return -1;  // the statistics are those of other rows
    return int64_t{tile} * kTile + entry;
}

// The draw by the masses of all tiles; -1 if the tile is elsewhere. As above.
template <int W>
DSPARK_DEVICE int64_t block_draw_sampled(const LocalTiles& local, const DrawShardArgs& args,
                                         int64_t row, float maximum, ShardShared<W>& shared) {
    const Global<const float> tile_max = args.tile_max + row * args.tiles;
    const Global<const float> tile_sum = args.tile_sum + row * args.tiles;
    const float scale = exponent_scale(args.temperature[row]);
    const int tiles = static_cast<int>(args.tiles);
    for (int t = thread_idx(); t < tiles; t += kThreads) {
        const double below = tile_scale(tile_max[t], maximum, scale);
        shared.draw.totals[t] = tile_mass(tile_sum[t], below);
    }
    const double u = uniform(args.seeds[row], args.positions[row], Stream::kDraft, args.slot);
    const int tile = block_choose_tile<W>(tiles, u, shared.draw);
    const int here = tile < 0 ? -1 : local.find(tile);
    if (here < 0) return -1;
    const KeptTile kept = {local.row, kKeepAll, scale, tile_max[tile]};
    const int entry =
        block_draw_in_tile<W>(read_weights(kept, here, shared.draw.stage),
                              tile_size(local.row.size, here), shared.draw.ratio[0], shared.draw);
    return int64_t{tile} * kTile + entry;
}

// The draw of a row; every thread returns it.
template <int W>
DSPARK_DEVICE int64_t block_draw_shard(const DrawShardArgs& args, int64_t row,
                                       ShardShared<W>& shared) {
    const float temperature = args.temperature[row];
    if (!is_valid_temperature(temperature)) return -1;
    const LocalTiles local = {{row_of(args.logits_type, args.logits, row, args.width),
                               args.logits_type, static_cast<int32_t>(args.width)},
                              static_cast<int>(args.first_tile)};
    const Global<const float> tile_max = args.tile_max + row * args.tiles;
    const int tiles = static_cast<int>(args.tiles);
    float maximum = -kInfinity;
    for (int t = thread_idx(); t < tiles; t += kThreads) {
        const float m = tile_max[t];
        maximum = m > maximum ? m : maximum;
    }
    maximum = block_max<W>(maximum, shared.maximum);
    if (maximum == -kInfinity) return args.first_tile == 0 && args.width > 0 ? 0 : -1;
    if (temperature == 0.0f) {
        return block_draw_greedy<W>(local, tile_max, tiles, maximum, shared);
    }
    return block_draw_sampled<W>(local, args, row, maximum, shared);
}

// One block per row.
template <int W>
DSPARK_KERNEL(kThreads)
void draw_shard_kernel(DrawShardArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(ShardShared<W>, shared);
    const int64_t row = block_idx().x;
    const int64_t token = block_draw_shard<W>(args, row, shared);
    if (thread_idx() == 0) args.token_ids[row] = token;
}

}  // namespace dspark::DSPARK_ISA::draft
