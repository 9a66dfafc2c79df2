// The law of one row on the CPU: its statistics in one pass, its entries tile by tile, draws from
// it.
#pragma once

#include <cstring>
#include <new>

#include "backends/cpu/tile.h"

namespace dspark::DSPARK_ISA {

// Memory of the tables of one law.
class LawTables {
  public:
    explicit LawTables(int64_t vocab)
        : tile_scale_(static_cast<double*>(
              ::operator new(2 * sizeof(double) * static_cast<size_t>(num_tiles(vocab))))) {}
    ~LawTables() { ::operator delete(tile_scale_); }
    LawTables(const LawTables&) = delete;
    LawTables& operator=(const LawTables&) = delete;

    void attach(Law& law, int64_t vocab) const {
        law.tile_scale = tile_scale_;
        law.tile_max = reinterpret_cast<float*>(tile_scale_ + num_tiles(vocab));
        law.tile_sum = law.tile_max + num_tiles(vocab);
    }
    // For a law whose tile maxima and sums are elsewhere.
    void attach_scale(Law& law) const { law.tile_scale = tile_scale_; }

  private:
    double* tile_scale_;
};

// e_t and Z from the tile maxima and sums.
DSPARK_DEVICE void add_tiles(Law& law) {
    law.total = 0.0;
    for (int t = 0; t < num_tiles(law.vocab); ++t) {
        law.tile_scale[t] = tile_scale(law.tile_max[t], law.maximum, law.scale);
        law.total += tile_mass(law.tile_sum[t], law.tile_scale[t]);
    }
}

DSPARK_DEVICE int32_t find_argmax(const Law& law) {
    int tile = 0;
    while (law.tile_max[tile] != law.maximum) ++tile;
    int64_t id = static_cast<int64_t>(tile) * kTile;
    while (read_entry(row_of(law), id) != law.maximum) ++id;
    return static_cast<int32_t>(id);
}

// What one tile adds to the statistics of a row.
struct TileStatistics {
    float maximum;  // m_t
    float sum;      // S_t; 0 on greedy rows
    bool has_nan;
};

// Of a law that is started. One pass over memory: the tile's maximum is found while it comes in,
// its weights while it is in the first-level cache.
DSPARK_DEVICE TileStatistics tile_statistics(const Law& law, int t, float* buffer) {
    const Row row = row_of(law);
    const TileView tile = read_tile(row, t, buffer);
    TileStatistics statistics = {tile.maximum, 0.0f, tile.has_nan};
    if (!law.is_greedy && tile.maximum > -kInfinity) {
        const TileWeights weights(tile.x, tile.maximum, law.scale);
        statistics.sum = canonical_sum(tile_size(row.size, t), weights);
    }
    return statistics;
}

// Finishes a law whose tile maxima and sums are there.
inline void finish_law(Law& law) {
    law.maximum = -kInfinity;
    for (int t = 0; t < num_tiles(law.vocab); ++t) {
        law.maximum = law.tile_max[t] > law.maximum ? law.tile_max[t] : law.maximum;
    }
    law.is_empty = law.maximum == -kInfinity;
    if (law.is_greedy && !law.is_empty) law.argmax = find_argmax(law);
    if (!law.is_greedy) add_tiles(law);
}

// Fills the law of `law.row` at a temperature, nothing filtered; passes the row once.
inline void row_statistics(Law& law, float temperature, float* buffer) {
    start_law(law, temperature);
    law.has_nan = false;
    for (int t = 0; t < num_tiles(law.vocab); ++t) {
        const TileStatistics tile = tile_statistics(law, t, buffer);
        law.has_nan = law.has_nan || tile.has_nan;
        law.tile_max[t] = tile.maximum;
        law.tile_sum[t] = tile.sum;
    }
    finish_law(law);
}

// A tile of a row whose statistics are known: in place if they show that nothing needs repair.
DSPARK_DEVICE const float* reread_tile(const Law& law, int tile, float* buffer) {
    const Row row = row_of(law);
    const bool is_clean = !law.has_nan && law.tile_max[tile] < kFltMax;
    if (row.dtype == FloatType::kFloat32 && is_clean && tile_size(row.size, tile) == kTile) {
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

DSPARK_DEVICE void law_totals(const Law& law, double* totals) {
    for (int t = 0; t < num_tiles(law.vocab); ++t) {
        totals[t] = tile_mass(law.tile_sum[t], law.tile_scale[t]);
    }
}

DSPARK_DEVICE double add_totals(const Law& law, const double* totals) {
    double total = 0.0;
    for (int t = 0; t < num_tiles(law.vocab); ++t) total += totals[t];
    return total;
}

// Per-thread memory of a draw.
class DrawBuffers {
  public:
    explicit DrawBuffers(int64_t vocab)
        : totals(static_cast<double*>(
              ::operator new(sizeof(double) * static_cast<size_t>(num_tiles(vocab))))) {}
    ~DrawBuffers() { ::operator delete(totals); }
    DrawBuffers(const DrawBuffers&) = delete;
    DrawBuffers& operator=(const DrawBuffers&) = delete;

    alignas(64) float target_tile[kTile];
    alignas(64) float weights[kTile];
    double* totals;  // [tiles] of the distribution to draw from
};

template <class Entries>
DSPARK_DEVICE void store_entries(const Entries& entries, float* weights) {
    for (int i = 0; i < kTile; i += FloatVector::kWidth) store(weights + i, entries(i));
}

// The entry of the chosen tile, of `count` entries in buffers.weights, that v falls on.
DSPARK_DEVICE int64_t draw_in_choice(const TileChoice& choice, double v, int count,
                                     const DrawBuffers& buffers) {
    const double ratio = (v - choice.before) / buffers.totals[choice.tile];
    return static_cast<int64_t>(choice.tile) * kTile + draw_in_tile(buffers.weights, count, ratio);
}

// A draw among tiles of buffers.totals; fill(t) stores the entries of tile t in buffers.weights. -1
// if there is no mass.
template <class Fill>
DSPARK_DEVICE int64_t draw_tiles(const Law& law, double u, DrawBuffers& buffers, Fill fill) {
    const double v = u * add_totals(law, buffers.totals);
    const TileChoice choice = choose_tile(buffers.totals, num_tiles(law.vocab), v);
    if (choice.tile < 0) return -1;
    fill(choice.tile);
    return draw_in_choice(choice, v, tile_size(law.vocab, choice.tile), buffers);
}

// A draw from the law; 0 if it is empty, the argmax if it is greedy.
inline int64_t draw(const Law& law, double u, DrawBuffers& buffers) {
    if (law.is_empty || law.is_greedy) return law.argmax;
    law_totals(law, buffers.totals);
    return draw_tiles(law, u, buffers, [&](int t) {
        store_entries(kept_weights(law, t, buffers.target_tile), buffers.weights);
    });
}

}  // namespace dspark::DSPARK_ISA
