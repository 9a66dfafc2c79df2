// A row of logits and its tiles, docs/numerics.md sections 1 to 3 and 6: what every backend shares.
// How the entries of a tile are spread over vectors or threads is the backend's business
// (csrc/backends/cpu/tile.h, csrc/device/block_tile.h).
#pragma once

#include "device/dtype.h"

namespace dspark::DSPARK_ISA {

constexpr int kTile = 4096;
constexpr int kLanes = 256;

DSPARK_DEVICE int num_tiles(int64_t size) {
    return static_cast<int>((size + kTile - 1) / kTile);
}

// One row of logits; its entries are consecutive in memory.
struct Row {
    Global<const void> data;
    FloatType dtype;
    int32_t size;
};

// Entries of a tile.
DSPARK_DEVICE int tile_size(int64_t row_size, int tile) {
    const int64_t rest = row_size - static_cast<int64_t>(tile) * kTile;
    return rest < kTile ? static_cast<int>(rest) : kTile;
}

// A logit as it enters the arithmetic: NaN is -inf, +inf is the largest finite number.
DSPARK_DEVICE float read_logit(float x) {
    return x != x ? -kInfinity : x < kFltMax ? x : kFltMax;
}

// A single entry.
DSPARK_DEVICE float read_entry(const Row& row, int64_t index) {
    switch (row.dtype) {
        case FloatType::kBFloat16:
            return read_logit(to_float(global_cast<const BFloat16>(row.data)[index]));
        case FloatType::kFloat16:
            return read_logit(to_float(global_cast<const Float16>(row.data)[index]));
        case FloatType::kFloat32:
            break;
    }
    return read_logit(global_cast<const float>(row.data)[index]);
}

// Weight of an entry in its tile: exp2((x - maximum) * scale), 0 below `lowest`.
template <class V>
DSPARK_DEVICE V entry_weight(V x, V maximum, V scale, V lowest) {
    return zero_if(less(x, lowest), exp2_nonpositive((x - maximum) * scale));
}

// First level of a draw: the tile that v falls in, and the mass before it. tile = -1 if all are 0.
struct TileChoice {
    int tile;
    double before;
};
template <class Totals>
DSPARK_DEVICE TileChoice choose_tile(const Totals& totals, int count, double v) {
    TileChoice choice = {-1, 0.0};
    double before = 0.0;
    for (int t = 0; t < count; ++t) {
        const double total = totals[t];
        if (!(total > 0.0)) continue;
        choice = {t, before};
        if (before + total > v) break;
        before += total;
    }
    return choice;
}

// Second level: weights as integers below 2^50, so that the order of summation does not matter.
class FixedPoint {
  public:
    // For weights up to `largest`, which is positive and normal.
    DSPARK_DEVICE explicit FixedPoint(float largest)
        : scale_(power_of_two(50 - (static_cast<int>(bit_cast<uint32_t>(largest) >> 23) - 126))) {}

    DSPARK_DEVICE int64_t operator()(float weight) const {
        return static_cast<int64_t>(static_cast<double>(weight) * scale_);
    }

  private:
    double scale_;
};

// The entry drawn is the first whose inclusive prefix sum exceeds this; `ratio` is 0 at the begin
// of the tile and 1 at its end, `total` the sum of its integers.
DSPARK_DEVICE int64_t fixed_point_target(double ratio, int64_t total) {
    const double whole = static_cast<double>(total);
    const double wanted = (ratio > 0.0 ? ratio : 0.0) * whole;
    return wanted >= whole ? total - 1 : static_cast<int64_t>(wanted);
}

}  // namespace dspark::DSPARK_ISA
