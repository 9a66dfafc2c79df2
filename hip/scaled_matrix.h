// Matrix products of narrow codes with scales for a HIP clang: the scaled MFMA of gfx950. What each
// name means, and which lane holds what, is written once, at the host emulator
// (csrc/backends/simt/scaled_matrix.h). Part of backend.h.
#pragma once

#include <cstdint>

#if defined(__gfx950__)

namespace dspark::DSPARK_ISA {

template <int W>
constexpr bool kMayHaveScaledMatrixUnit = W == 64;
template <int W>
DSPARK_DEVICE constexpr bool has_scaled_matrix_unit() {
    return W == 64;
}

template <int kRight, int kWords>
DSPARK_DEVICE void scaled_matrix_instruction(const uint32_t (&left)[8], uint32_t left_scales,
                                             const uint32_t (&right)[kWords], uint32_t right_scales,
                                             float (&sums)[4][4]) {
    using Operand = int __attribute__((ext_vector_type(8)));
    using Result = float __attribute__((ext_vector_type(16)));
    constexpr int kE4M3 = 0, kE2M1 = 4;
    Operand a, b = {0, 0, 0, 0, 0, 0, 0, 0};  // fp4 takes the first four words only
    Result c;
    for (int w = 0; w < 8; ++w) a[w] = static_cast<int>(left[w]);
    for (int w = 0; w < kWords; ++w) b[w] = static_cast<int>(right[w]);
    for (int i = 0; i < 16; ++i) c[i] = sums[i / 4][i % 4];
    c = __builtin_amdgcn_mfma_scale_f32_32x32x64_f8f6f4(a, b, c, kE4M3, kWords == 4 ? kE2M1 : kE4M3,
                                                        0, static_cast<int>(left_scales), kRight,
                                                        static_cast<int>(right_scales));
    for (int i = 0; i < 16; ++i) sums[i / 4][i % 4] = c[i];
}

DSPARK_DEVICE uint32_t narrow_pair(float low, float high) {
    return static_cast<uint32_t>(__builtin_amdgcn_cvt_pk_fp8_f32(low, high, 0, false)) & 0xFFFFu;
}
DSPARK_DEVICE void widen_pair(uint32_t codes, float* low, float* high) {
    const auto pair = __builtin_amdgcn_cvt_pk_f32_fp8(static_cast<int>(codes), false);
    *low = pair[0];
    *high = pair[1];
}

}  // namespace dspark::DSPARK_ISA

#else
#include "backends/no_scaled_matrix.h"
#endif
