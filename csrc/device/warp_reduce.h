// Reductions over the lanes of a warp. All W lanes must call; every lane gets the result.
//
// The operation must be associative and commutative in what its result says: integer sums, maxima
// and minima are. Sums of floating-point numbers depend on their order, and this order on W: those
// that must be the same everywhere are the canonical sums of docs/numerics.md section 2.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/lanes.h"

namespace dspark::DSPARK_ISA {

struct Sum {
    template <class T>
    DSPARK_DEVICE T operator()(T a, T b) const {
        static_assert(std::is_integral_v<T>, "the order of a floating-point sum must be stated");
        return static_cast<T>(a + b);
    }
};
// Of floating-point numbers: none is NaN, and which of -0 and +0 wins is not defined.
struct Max {
    template <class T>
    DSPARK_DEVICE T operator()(T a, T b) const {
        return a < b ? b : a;
    }
};
struct Min {
    template <class T>
    DSPARK_DEVICE T operator()(T a, T b) const {
        return b < a ? b : a;
    }
};

// T has 4 or 8 bytes.
template <int W, class T, class Operation>
DSPARK_DEVICE T warp_reduce(T v, Operation operation) {
    for (int distance = W / 2; distance > 0; distance /= 2) {
        v = operation(v, shuffle_xor<W>(v, distance));
    }
    return v;
}

template <int W, class T>
DSPARK_DEVICE T warp_sum(T v) {
    return warp_reduce<W>(v, Sum());
}
template <int W, class T>
DSPARK_DEVICE T warp_max(T v) {
    return warp_reduce<W>(v, Max());
}
template <int W, class T>
DSPARK_DEVICE T warp_min(T v) {
    return warp_reduce<W>(v, Min());
}

}  // namespace dspark::DSPARK_ISA
