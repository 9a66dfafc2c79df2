// The law of one row: statistics, probabilities, and its entries tile by tile.
#pragma once

#include "backends/cpu/tile.h"
#include "ops/sampling/args.h"

namespace dspark::DSPARK_ISA::sampling {

constexpr int32_t kEveryTie = INT32_MAX;
constexpr Cut kKeepAll = {-kInfinity, kEveryTie};

DSPARK_DEVICE bool is_kept(Cut cut, float x, int64_t id) {
    return x > cut.x || (x == cut.x && id <= cut.id);
}

DSPARK_DEVICE Row row_of(const Law& law) {
    return {law.row, law.dtype, law.vocab};
}

// e_t and Z from the tile maxima and sums.
DSPARK_DEVICE void add_tiles(Law& law) {
    law.total = 0.0;
    for (int t = 0; t < num_tiles(law.vocab); ++t) {
        const double below =
            static_cast<double>(law.tile_max[t]) - static_cast<double>(law.maximum);
        law.tile_scale[t] = law.tile_max[t] > -kInfinity
                                ? exp2_double(below * static_cast<double>(law.scale))
                                : 0.0;
        law.total += static_cast<double>(law.tile_sum[t]) * law.tile_scale[t];
    }
}

DSPARK_DEVICE int32_t find_argmax(const Law& law) {
    int tile = 0;
    while (law.tile_max[tile] != law.maximum) ++tile;
    int64_t id = static_cast<int64_t>(tile) * kTile;
    while (read_entry(row_of(law), id) != law.maximum) ++id;
    return static_cast<int32_t>(id);
}

// Fills the law of `law.row` at a temperature, nothing filtered. One pass over memory: a tile's
// maximum is found while it comes in, its weights while it is in the first-level cache.
inline void row_statistics(Law& law, float temperature, float* buffer) {
    law.is_ready = true;
    law.is_greedy = temperature == 0.0f;
    law.scale = law.is_greedy ? 1.0f : exponent_scale(temperature);
    law.maximum = -kInfinity;
    law.has_nan = false;
    law.cut = kKeepAll;
    const Row row = row_of(law);
    for (int t = 0; t < num_tiles(row.size); ++t) {
        const TileView tile = read_tile(row, t, buffer);
        law.has_nan = law.has_nan || tile.has_nan;
        law.maximum = tile.maximum > law.maximum ? tile.maximum : law.maximum;
        law.tile_max[t] = tile.maximum;
        law.tile_sum[t] = 0.0f;
        if (!law.is_greedy && tile.maximum > -kInfinity) {
            const TileWeights weights(tile.x, tile.maximum, law.scale);
            law.tile_sum[t] = canonical_sum(tile_size(row, t), weights);
        }
    }
    law.is_empty = law.maximum == -kInfinity;
    law.argmax = law.is_greedy && !law.is_empty ? find_argmax(law) : 0;
    if (!law.is_greedy) add_tiles(law);
}

// A tile of a row whose statistics are known: in place if they show that nothing needs repair.
DSPARK_DEVICE const float* reread_tile(const Law& law, int tile, float* buffer) {
    const Row row = row_of(law);
    const bool is_clean = !law.has_nan && law.tile_max[tile] < kFltMax;
    if (row.dtype == FloatType::kFloat32 && is_clean && tile_size(row, tile) == kTile) {
        return static_cast<const float*>(row.data) + static_cast<int64_t>(tile) * kTile;
    }
    return read_tile(row, tile, buffer).x;
}

// A tile of the row in which every entry that the cut drops is below law.cut.x. In place where
// possible, else in `buffer`.
DSPARK_DEVICE const float* read_kept(const Law& law, Cut cut, int tile, float* buffer) {
    const float* x = reread_tile(law, tile, buffer);
    const int64_t start = static_cast<int64_t>(tile) * kTile;
    if (cut.id >= start + kTile - 1) return x;
    for (int i = 0; i < kTile; ++i) {
        buffer[i] = x[i] == cut.x && start + i > cut.id ? -kInfinity : x[i];
    }
    return buffer;
}

DSPARK_DEVICE TileWeights kept_weights(const Law& law, int tile, float* buffer) {
    return {read_kept(law, law.cut, tile, buffer), law.tile_max[tile], law.scale, law.cut.x};
}

// p(id), docs/numerics.md section 3.
DSPARK_DEVICE double probability(const Law& law, int64_t id) {
    if (law.is_empty || id >= law.vocab) return 0.0;
    if (law.is_greedy) return id == law.argmax ? 1.0 : 0.0;
    const float x = read_entry(row_of(law), id);
    if (!is_kept(law.cut, x, id)) return 0.0;
    const int tile = static_cast<int>(id / kTile);
    if (x == -kInfinity) return 0.0;
    const float weight = exp2_nonpositive((x - law.tile_max[tile]) * law.scale);
    return static_cast<double>(weight) * law.tile_scale[tile] / law.total;
}

DSPARK_DEVICE float log_probability(const Law& law, int64_t id) {
    if (law.is_empty) return -kInfinity;
    if (law.is_greedy) return id == law.argmax ? 0.0f : -kInfinity;
    const float x = read_entry(row_of(law), id);
    if (x == -kInfinity || !is_kept(law.cut, x, id)) return -kInfinity;
    const double below = static_cast<double>(x) - static_cast<double>(law.maximum);
    const double log2_p = below * static_cast<double>(law.scale) - log2_double(law.total);
    return static_cast<float>(log2_p * kLn2) + 0.0f;  // a zero is +0, whichever zero M is
}

}  // namespace dspark::DSPARK_ISA::sampling
