// The matrix unit for a HIP clang: the MFMA instructions of gfx90a and later gfx9. What each name
// means, and which lane holds what, is written once, at the host emulator
// (csrc/backends/simt/matrix.h). Part of backend.h.
//
// gfx11 has none of them. Its WMMA is of another kind: waves of 32, both matrices held twice, in
// both halves of the wave. A third layout for chips of some 100 TFLOP/s, whose plain arithmetic
// keeps up with their memory here, is not worth it; they take the path of chips without a unit.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/float_type.h"

namespace dspark::DSPARK_ISA {

#if defined(__gfx90a__) || defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) || \
    defined(__gfx950__)
template <int W>
constexpr bool kHasMatrixUnit = W == 64;
#else
template <int W>
constexpr bool kHasMatrixUnit = false;
#endif

template <int W>
constexpr bool kCanHaveMatrixUnit = W == 64;

template <int W>
constexpr int kMatrixLeftWords = 128 / W;

template <int W, class Half>
DSPARK_DEVICE void matrix_instruction(const uint32_t (&left)[kMatrixLeftWords<W>],
                                      const uint32_t (&right)[2], float (&sums)[4]) {
    static_assert(kHasMatrixUnit<W>, "warps of this size have no matrix unit");
    constexpr bool kBrain = std::is_same_v<Half, BFloat16>;
    static_assert(kBrain || std::is_same_v<Half, Float16>);
    using Element = std::conditional_t<kBrain, short, _Float16>;
    using Operand = Element __attribute__((ext_vector_type(4)));
    using Result = float __attribute__((ext_vector_type(4)));
    Operand a, b;
    __builtin_memcpy(&a, left, sizeof(a));
    __builtin_memcpy(&b, right, sizeof(b));
    Result c = {sums[0], sums[1], sums[2], sums[3]};
    if constexpr (kBrain) {
        c = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, 0, 0, 0);
    } else {
        c = __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, 0, 0, 0);
    }
    for (int i = 0; i < 4; ++i) sums[i] = c[i];
}

}  // namespace dspark::DSPARK_ISA
