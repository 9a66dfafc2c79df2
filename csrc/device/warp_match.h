// Which lanes of a warp hold the same value. All W lanes must call.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/lanes.h"

namespace dspark::DSPARK_ISA {

// Bit l stands for lane l.
template <int W>
using Lanes = std::conditional_t<W == 64, uint64_t, uint32_t>;

template <int W>
DSPARK_DEVICE Lanes<W> lanes_below(int lane) {
    return (Lanes<W>{1} << lane) - 1;
}
DSPARK_DEVICE int count_lanes(uint32_t lanes) {
    return __builtin_popcount(lanes);
}
DSPARK_DEVICE int count_lanes(uint64_t lanes) {
    return __builtin_popcountll(lanes);
}

// The lanes whose value, below 2^bits, is that of the calling lane.
template <int W>
DSPARK_DEVICE Lanes<W> warp_match(uint32_t value, int bits) {
    constexpr Lanes<W> kAll = static_cast<Lanes<W>>(~uint64_t{0} >> (64 - W));
    Lanes<W> same = kAll;
    for (int b = 0; b < bits; ++b) {
        const bool is_set = (value >> b & 1) != 0;
        const auto set = static_cast<Lanes<W>>(ballot<W>(is_set));
        same &= is_set ? set : kAll & ~set;
    }
    return same;
}

}  // namespace dspark::DSPARK_ISA
