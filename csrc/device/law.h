// The law of one row under temperature and filters: docs/numerics.md sections 2 to 4.
#pragma once

#include "device/tile.h"

namespace dspark {

// Which entries of a row a law keeps: x > cut.x, or x == cut.x and index <= cut.id.
struct Cut {
    float x;
    int32_t id;
};

struct Law {
    Global<const void> row;
    FloatType dtype;
    int32_t vocab;
    // Flags, of 4 bytes each so that a device never loads two of them from an odd address.
    int32_t is_ready;
    int32_t is_greedy;
    int32_t has_nan;
    int32_t is_empty;           // nothing above -inf
    float scale;                // c; not for greedy
    float maximum;              // M
    int32_t argmax;             // greedy only
    Cut cut;                    // what is kept
    double total;               // Z, over what is kept
    Global<float> tile_max;     // [tiles] m_t
    Global<float> tile_sum;     // [tiles] S_t, over what is kept
    Global<double> tile_scale;  // [tiles] e_t
};

namespace DSPARK_ISA {

constexpr int32_t kEveryTie = INT32_MAX;
constexpr int32_t kNoTie = -1;  // as Cut::id: only what is above Cut::x
constexpr Cut kKeepAll = {-kInfinity, kEveryTie};

DSPARK_DEVICE bool is_kept(Cut cut, float x, int64_t id) {
    return x > cut.x || (x == cut.x && id <= cut.id);
}

// The stricter of two cuts.
DSPARK_DEVICE Cut stricter(Cut a, Cut b) {
    if (a.x != b.x) return a.x > b.x ? a : b;
    return a.id < b.id ? a : b;
}

DSPARK_DEVICE Row row_of(const Law& law) {
    return {law.row, law.dtype, law.vocab};
}

// What a temperature alone determines.
DSPARK_DEVICE void start_law(Law& law, float temperature) {
    law.is_ready = true;
    law.is_greedy = temperature == 0.0f;
    law.scale = law.is_greedy ? 1.0f : exponent_scale(temperature);
    law.cut = kKeepAll;
    law.argmax = 0;
    law.total = 0.0;
}

// e_t of a tile; 0 if it is empty.
DSPARK_DEVICE double tile_scale(float tile_max, float maximum, float scale) {
    const double below = static_cast<double>(tile_max) - static_cast<double>(maximum);
    return tile_max > -kInfinity ? exp2_double(below * static_cast<double>(scale)) : 0.0;
}

DSPARK_DEVICE double tile_mass(float tile_sum, double tile_scale) {
    return static_cast<double>(tile_sum) * tile_scale;
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

}  // namespace DSPARK_ISA
}  // namespace dspark
