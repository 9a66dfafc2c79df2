// For a device compiler whose hardware does not multiply narrow codes with scales: the names of
// csrc/backends/simt/scaled_matrix.h, so that kernels which use them can be read. They are not
// compiled. Part of that compiler's shim.
#pragma once

#include <cstdint>

namespace dspark::DSPARK_ISA {

template <int W>
constexpr bool kMayHaveScaledMatrixUnit = false;
template <int W>
DSPARK_DEVICE constexpr bool has_scaled_matrix_unit() {
    return false;
}
template <int kRight, int kWords>
DSPARK_DEVICE void scaled_matrix_instruction(const uint32_t (&)[8], uint32_t,
                                             const uint32_t (&)[kWords], uint32_t,
                                             float (&)[4][4]) {
    trap();
}
DSPARK_DEVICE uint32_t narrow_pair(float, float) {
    trap();
    return 0;
}
DSPARK_DEVICE void widen_pair(uint32_t, float*, float*) {
    trap();
}

}  // namespace dspark::DSPARK_ISA
