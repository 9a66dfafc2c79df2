// Prefix sums over the lanes of a warp, of integers. All W lanes must call.
#pragma once

#include "device/warp_reduce.h"

namespace dspark::DSPARK_ISA {

// Lane l gets v of lane 0 + ... + v of lane l. T has 4 or 8 bytes.
template <int W, class T>
DSPARK_DEVICE T warp_inclusive_sum(T v) {
    const int lane = lane_index<W>();
    for (int distance = 1; distance < W; distance *= 2) {
        const T before = shuffle_up<W>(v, distance);
        if (lane >= distance) v = Sum()(before, v);
    }
    return v;
}

// Lane l gets v of lane 0 + ... + v of lane l - 1; lane 0 gets 0.
template <int W, class T>
DSPARK_DEVICE T warp_exclusive_sum(T v) {
    const T before = shuffle_up<W>(warp_inclusive_sum<W>(v), 1);
    return lane_index<W>() == 0 ? T{0} : before;
}

}  // namespace dspark::DSPARK_ISA
