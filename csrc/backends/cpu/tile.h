// Tiles of a row in CPU vectors: reading, weights, canonical sums (docs/numerics.md section 3).
#pragma once

#include "backends/cpu/simd.h"
#include "device/law.h"

namespace dspark::DSPARK_ISA {

// A tile as it enters the arithmetic: NaN is -inf, +inf is the largest finite number. `x` has kTile
// readable entries, -inf past the end of the row.
struct TileView {
    const float* x;
    float maximum;
    bool has_nan;
};

// Passes kTile entries once: their maximum (NaN apart), whether there is a NaN, and, unless `to` is
// null, their float32 values.
template <class T>
DSPARK_DEVICE TileView scan_tile(const T* from, float* to) {
    constexpr int kWidth = FloatVector::kWidth;
    FloatVector top[4] = {FloatVector(-kInfinity), FloatVector(-kInfinity), FloatVector(-kInfinity),
                          FloatVector(-kInfinity)};
    VectorMask nan = is_nan(top[0]);
    for (int i = 0; i < kTile; i += 4 * kWidth) {
        for (int j = 0; j < 4; ++j) {
            const FloatVector value = load(from + i + j * kWidth);
            if (to != nullptr) store(to + i + j * kWidth, value);
            nan = nan | is_nan(value);
            top[j] = max(value, top[j]);
        }
    }
    float lanes[kWidth];
    store(lanes, max(max(top[0], top[1]), max(top[2], top[3])));
    float maximum = lanes[0];
    for (float lane : lanes) maximum = lane > maximum ? lane : maximum;
    return {to, maximum, any(nan)};
}

template <class T>
DSPARK_DEVICE TileView read_tile_of(const T* from, int count, float* buffer) {
    if (count == kTile) return scan_tile(from, buffer);
    for (int i = 0; i < kTile; ++i) buffer[i] = i < count ? to_float(from[i]) : -kInfinity;
    return scan_tile<float>(buffer, buffer);
}

DSPARK_DEVICE TileView read_tile_of(const float* from, int count, float* buffer) {
    if (count < kTile) return read_tile_of<float>(from, count, buffer);
    TileView view = scan_tile<float>(from, nullptr);
    view.x = from;
    return view;
}

// Reads one tile; in place where the memory allows, else through `buffer` ([kTile]).
DSPARK_DEVICE TileView read_tile(const Row& row, int tile, float* buffer) {
    const int64_t start = static_cast<int64_t>(tile) * kTile;
    const int count = tile_size(row.size, tile);
    TileView view;
    switch (row.dtype) {
        case FloatType::kBFloat16:
            view = read_tile_of(static_cast<const BFloat16*>(row.data) + start, count, buffer);
            break;
        case FloatType::kFloat16:
            view = read_tile_of(static_cast<const Float16*>(row.data) + start, count, buffer);
            break;
        case FloatType::kFloat32:
            view = read_tile_of(static_cast<const float*>(row.data) + start, count, buffer);
            break;
    }
    if (view.has_nan || view.maximum > kFltMax) {
        for (int i = 0; i < kTile; ++i) buffer[i] = read_logit(view.x[i]);
        view.x = buffer;
        view.maximum = view.maximum > kFltMax ? kFltMax : view.maximum;
    }
    return view;
}

// for h = 128, 64, ..., 1: lanes[l] += lanes[l + h].
DSPARK_DEVICE float halving_tree(float* lanes) {
    constexpr int kWidth = FloatVector::kWidth;
    int half = kLanes / 2;
    for (; half >= kWidth; half /= 2) {
        for (int l = 0; l < half; l += kWidth) {
            store(lanes + l, load(lanes + l) + load(lanes + l + half));
        }
    }
    for (; half > 0; half /= 2) {
        for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
    }
    return lanes[0];
}

// Canonical sum of entries(i) over i in [0, count): 256 lanes in index order, then a halving tree.
// entries(i) yields the vector of entries i .. i + kWidth - 1, zeros past the end.
template <class Entries>
DSPARK_DEVICE float canonical_sum(int count, Entries entries) {
    constexpr int kWidth = FloatVector::kWidth;
    constexpr int kStep = 4 * kWidth;
    float lanes[kLanes];
    for (int lane = 0; lane < kLanes; lane += kStep) {
        FloatVector sum[4] = {FloatVector(0.0f), FloatVector(0.0f), FloatVector(0.0f),
                              FloatVector(0.0f)};
        for (int i = lane; i < count; i += kLanes) {
            for (int j = 0; j < 4; ++j) sum[j] = sum[j] + entries(i + j * kWidth);
        }
        for (int j = 0; j < 4; ++j) store(lanes + lane + j * kWidth, sum[j]);
    }
    return halving_tree(lanes);
}

// Weights of a tile: exp2((x - maximum) * scale), 0 below `lowest`.
struct TileWeights {
    const float* x;
    FloatVector maximum;
    FloatVector scale;
    FloatVector lowest;

    DSPARK_DEVICE TileWeights(const float* tile, float tile_max, float exponent_scale,
                              float lowest_kept = -kInfinity)
        : x(tile), maximum(tile_max), scale(exponent_scale), lowest(lowest_kept) {}

    DSPARK_DEVICE FloatVector operator()(int i) const {
        return entry_weight(load(x + i), maximum, scale, lowest);
    }
};

// The entry of the tile that `ratio` (0 at its begin, 1 at its end) falls on. Needs one above 0.
DSPARK_DEVICE int draw_in_tile(const float* weights, int count, double ratio) {
    float largest = 0.0f;
    for (int i = 0; i < count; ++i) largest = weights[i] > largest ? weights[i] : largest;
    const FixedPoint fixed_point(largest);
    int64_t total = 0;
    for (int i = 0; i < count; ++i) total += fixed_point(weights[i]);
    const int64_t k = fixed_point_target(ratio, total);
    int64_t prefix = 0;
    int last = 0;
    for (int i = 0; i < count; ++i) {
        prefix += fixed_point(weights[i]);
        last = i;
        if (prefix > k) break;
    }
    return last;
}

}  // namespace dspark::DSPARK_ISA
