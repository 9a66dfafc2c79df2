// What a law has over a proposal, max(a p - q, 0), entry by entry (docs/numerics.md section 7); one
// text for scalars and vectors.
#pragma once

#include "device/law.h"

namespace dspark::DSPARK_ISA::sampling {

// 0 up to 2^-100.
template <class V>
DSPARK_DEVICE V positive_part(V difference) {
    constexpr float kJustAboveFloor = 0x1.000002p-100f;  // the float after 2^-100
    return zero_if(less(difference, V(kJustAboveFloor)), difference);
}

// q as the weight of an entry in its tile, and the scale of that tile.
template <class V>
DSPARK_DEVICE V residual_entry(V target_scale, V target_weight, V draft_scale, V draft_weight) {
    return positive_part(target_scale * target_weight - draft_scale * draft_weight);
}

// q as a given probability, not negative.
template <class V>
DSPARK_DEVICE V residual_entry(V target_scale, V target_weight, V draft_probability) {
    return positive_part(target_scale * target_weight - draft_probability);
}

// A_t and B_t, the scales of a tile.
DSPARK_DEVICE float target_scale(double a, double tile_scale, double total) {
    return static_cast<float>(a * tile_scale / total);
}
DSPARK_DEVICE float draft_scale(double tile_scale, double total) {
    return static_cast<float>(tile_scale / total);
}

}  // namespace dspark::DSPARK_ISA::sampling
