// The law of one row on a device: finished by a warp from the statistics of its tiles, read tile by
// tile, drawn from by a block.
#pragma once

#include "device/block_reduce.h"
#include "device/block_scan.h"
#include "device/block_tile.h"
#include "device/law.h"

namespace dspark::DSPARK_ISA {

// What the statistics of the tiles of one row say. The pointers are those of the row.
struct TileStatistics {
    Global<const float> maximum;
    Global<const int32_t> first;  // id of the first entry equal to the maximum; greedy rows only
    Global<const uint8_t> has_nan;
};

// Completes a law whose row, temperature and tile sums are known: M, argmax, e_t and Z. Called by a
// whole warp; every lane returns the law, the e_t are stored.
template <int W>
DSPARK_DEVICE Law warp_finish_law(Law law, const TileStatistics& tiles) {
    const int lane = lane_index<W>();
    const int count = num_tiles(law.vocab);
    float maximum = -kInfinity;
    bool has_nan = false;
    for (int t = lane; t < count; t += W) {
        const float m = tiles.maximum[t];
        maximum = m > maximum ? m : maximum;
        has_nan = has_nan || tiles.has_nan[t] != 0;
    }
    law.maximum = warp_max<W>(maximum);
    law.has_nan = ballot<W>(has_nan) != 0;
    law.is_empty = law.maximum == -kInfinity;
    if (law.is_greedy) {
        int32_t first = INT32_MAX;
        for (int t = lane; t < count; t += W) {
            const int32_t id = tiles.first[t];
            if (tiles.maximum[t] == law.maximum) first = id < first ? id : first;
        }
        law.argmax = law.is_empty ? 0 : warp_min<W>(first);
        return law;
    }
    for (int begin = 0; begin < count; begin += W) {
        const int t = begin + lane;
        double mass = 0.0;
        if (t < count) {
            const double scale = tile_scale(tiles.maximum[t], law.maximum, law.scale);
            law.tile_scale[t] = scale;
            mass = tile_mass(law.tile_sum[t], scale);
        }
        for (int j = 0; j < W; ++j) law.total += shuffle<W>(mass, j);  // past the end: adds 0
    }
    return law;
}

// All that the weights of one tile of a law depend on.
struct KeptTile {
    Row row;
    Cut cut;
    float scale;
    float maximum;
};

DSPARK_DEVICE KeptTile kept_tile(const Law& law, int tile) {
    return {row_of(law), law.cut, law.scale, law.tile_max[tile]};
}

// This thread's weights of a tile, 0 for what the law drops.
DSPARK_DEVICE LaneEntries kept_weights(const KeptTile& kept, int tile, const LaneEntries& entries) {
    LaneEntries weights;
    const int start = tile * kTile;
    for (int c = 0; c < kEntriesPerThread; ++c) {
        const float x = entries.x[c];
        const bool is_in = is_kept(kept.cut, x, start + entry_index(c));
        weights.x[c] = zero_if(!is_in, exp2_nonpositive((x - kept.maximum) * kept.scale));
    }
    return weights;
}

// The same, reading the tile.
DSPARK_DEVICE LaneEntries read_weights(const KeptTile& kept, int tile, TileStage& stage) {
    return kept_weights(kept, tile, read_tile(kept.row, tile, stage));
}

constexpr int kMaxTiles = 1024;  // of a row that devices can draw from

template <int W>
struct DrawShared {
    TileStage stage;
    SharedArray<double, kMaxTiles> totals;  // of the tiles of the distribution to draw from
    BlockReduceScratch<W, float> reduce;
    BlockScanScratch<W, int64_t> scan;
    SharedArray<int32_t, 1> tile;
    SharedArray<double, 1> ratio;
    SharedArray<int32_t, 1> entry;
};

// The entry that `ratio` falls on in a tile whose weights the threads hold. Called by the whole
// block, every thread returns it.
template <int W>
DSPARK_DEVICE int block_draw_in_tile(const LaneEntries& weights, int count, double ratio,
                                     DrawShared<W>& shared) {
    float largest = 0.0f;
    for (float w : weights.x) largest = w > largest ? w : largest;
    sync_block();  // the stage is free
    for (int c = 0; c < kEntriesPerThread; ++c) shared.stage.x[entry_index(c)] = weights.x[c];
    const FixedPoint fixed_point(block_max<W>(largest, shared.reduce));
    sync_block();
    // From here on a thread holds consecutive entries.
    const int begin = thread_idx() * kEntriesPerThread;
    const int end = begin + kEntriesPerThread < count ? begin + kEntriesPerThread : count;
    int64_t mine = 0;
    for (int i = begin; i < end; ++i) mine += fixed_point(shared.stage.x[i]);
    const BlockScan<int64_t> scan = block_exclusive_sum<W>(mine, shared.scan);
    const int64_t target = fixed_point_target(ratio, scan.total);
    int64_t prefix = scan.before;
    if (prefix <= target && target < prefix + mine) {
        int i = begin;
        for (; i < end; ++i) {
            prefix += fixed_point(shared.stage.x[i]);
            if (prefix > target) break;
        }
        shared.entry[0] = i;
    }
    sync_block();
    return shared.entry[0];
}

// The tile that a draw among shared.totals falls in, which the block has filled (no sync_block
// needed in between); shared.ratio says where in the tile. -1 if there is no mass. Every thread
// returns it.
template <int W>
DSPARK_DEVICE int block_choose_tile(int tiles, double u, DrawShared<W>& shared) {
    sync_block();
    if (thread_idx() == 0) {
        double total = 0.0;
        for (int t = 0; t < tiles; ++t) total += shared.totals[t];
        const double v = u * total;
        const TileChoice choice = choose_tile(shared.totals, tiles, v);
        shared.tile[0] = choice.tile;
        if (choice.tile >= 0) {
            const double mass = shared.totals[choice.tile];
            shared.ratio[0] = (v - choice.before) / mass;
        }
    }
    sync_block();
    return shared.tile[0];
}

// A draw among the tiles of shared.totals, as above. weights(t) reads tile t and returns this
// thread's weights. -1 if there is no mass.
template <int W, class Weights>
DSPARK_DEVICE int64_t block_draw(int32_t vocab, double u, DrawShared<W>& shared,
                                 const Weights& weights) {
    const int tile = block_choose_tile<W>(num_tiles(vocab), u, shared);
    if (tile < 0) return -1;
    const int entry =
        block_draw_in_tile<W>(weights(tile), tile_size(vocab, tile), shared.ratio[0], shared);
    return static_cast<int64_t>(tile) * kTile + entry;
}

// What a law keeps of a tile, for block_draw. (A struct and not a lambda, because only functions
// that are sure to be inlined keep what they refer to in registers.)
struct KeptWeights {
    const Law& law;
    TileStage& stage;

    DSPARK_DEVICE LaneEntries operator()(int tile) const {
        return read_weights(kept_tile(law, tile), tile, stage);
    }
};

// A draw from the law; 0 if it is empty, the argmax if it is greedy.
template <int W>
DSPARK_DEVICE int64_t block_draw_law(const Law& law, double u, DrawShared<W>& shared) {
    if (law.is_empty || law.is_greedy) return law.argmax;
    sync_block();  // an earlier draw may still read the totals
    for (int t = thread_idx(); t < num_tiles(law.vocab); t += kThreads) {
        shared.totals[t] = tile_mass(law.tile_sum[t], law.tile_scale[t]);
    }
    return block_draw<W>(law.vocab, u, shared, KeptWeights{law, shared.stage});
}

}  // namespace dspark::DSPARK_ISA
