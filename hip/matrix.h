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
constexpr bool kHasWideMatrixUnit = kHasMatrixUnit<W>;
template <int W>
constexpr bool kCanHaveWideMatrixUnit = W == 64;

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

// gfx950 takes all of a lane's words at once, the others two of them in an instruction.
template <class Half>
DSPARK_DEVICE void wide_matrix_instruction(const uint32_t (&left)[4], const uint32_t (&right)[4],
                                           float (&sums)[4][4]) {
    static_assert(kHasWideMatrixUnit<64>, "this hardware has no matrix unit");
    constexpr bool kBrain = std::is_same_v<Half, BFloat16>;
    static_assert(kBrain || std::is_same_v<Half, Float16>);
    using Result = float __attribute__((ext_vector_type(16)));
    Result c;
    for (int i = 0; i < 16; ++i) c[i] = sums[i / 4][i % 4];
#if defined(__gfx950__)
    using Element = std::conditional_t<kBrain, __bf16, _Float16>;
    using Operand = Element __attribute__((ext_vector_type(8)));
    Operand a, b;
    __builtin_memcpy(&a, left, sizeof(a));
    __builtin_memcpy(&b, right, sizeof(b));
    if constexpr (kBrain) {
        c = __builtin_amdgcn_mfma_f32_32x32x16_bf16(a, b, c, 0, 0, 0);
    } else {
        c = __builtin_amdgcn_mfma_f32_32x32x16_f16(a, b, c, 0, 0, 0);
    }
#else
    using Element = std::conditional_t<kBrain, short, _Float16>;
    using Operand = Element __attribute__((ext_vector_type(4)));
    for (int half = 0; half < 2; ++half) {
        Operand a, b;
        __builtin_memcpy(&a, left + 2 * half, sizeof(a));
        __builtin_memcpy(&b, right + 2 * half, sizeof(b));
        if constexpr (kBrain) {
            c = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(a, b, c, 0, 0, 0);
        } else {
            c = __builtin_amdgcn_mfma_f32_32x32x8f16(a, b, c, 0, 0, 0);
        }
    }
#endif
    for (int i = 0; i < 16; ++i) sums[i / 4][i % 4] = c[i];
}

// ---- operands -----------------------------------------------------------------------------------

// The instruction has a byte for each number. Of a constant this is worked out by the compiler.
DSPARK_DEVICE uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
    const uint32_t pairs = (selector | selector << 8) & 0x00FF00FFu;
    const uint32_t numbers = (pairs | pairs << 4) & 0x0F0F0F0Fu;
    return __builtin_amdgcn_perm(high, low, numbers);
}

template <class Half>
DSPARK_DEVICE uint32_t multiply_pair(uint32_t a, uint32_t b) {
    if constexpr (std::is_same_v<Half, BFloat16>) {  // as float32, whose upper half is the result
        const float low = __builtin_bit_cast(float, a << 16) * __builtin_bit_cast(float, b << 16);
        const float high =
            __builtin_bit_cast(float, a & 0xFFFF0000u) * __builtin_bit_cast(float, b & 0xFFFF0000u);
        return __builtin_bit_cast(uint32_t, low) >> 16 |
               (__builtin_bit_cast(uint32_t, high) & 0xFFFF0000u);
    } else {
        using Pair = _Float16 __attribute__((ext_vector_type(2)));
        return __builtin_bit_cast(uint32_t,
                                  __builtin_bit_cast(Pair, a) * __builtin_bit_cast(Pair, b));
    }
}

}  // namespace dspark::DSPARK_ISA
