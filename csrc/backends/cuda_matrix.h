// The matrix unit for nvcc: mma.sync of sm_80 and later. What each name means, and which lane holds
// what, is written once, at the host emulator (csrc/backends/simt/matrix.h).
// Part of cuda.h.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/float_type.h"

namespace dspark::DSPARK_ISA {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
template <int W>
constexpr bool kHasMatrixUnit = false;
#else
template <int W>
constexpr bool kHasMatrixUnit = W == 32;
#endif

template <int W>
constexpr bool kCanHaveMatrixUnit = W == 32;

template <int W>
constexpr int kMatrixLeftWords = 128 / W;

template <int W>
constexpr bool kHasWideMatrixUnit = false;
template <int W>
constexpr bool kCanHaveWideMatrixUnit = false;
// Never reached: it is of warps of 64.
template <class Half>
DSPARK_DEVICE void wide_matrix_instruction(const uint32_t (&)[4], const uint32_t (&)[4],
                                           float (&)[4][4]) {
    trap();
}

#define DSPARK_MMA(type)                                                                  \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                   \
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"   \
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])             \
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), \
                   "r"(right[1]))

template <int W, class Half>
DSPARK_DEVICE void matrix_instruction(const uint32_t (&left)[kMatrixLeftWords<W>],
                                      const uint32_t (&right)[2], float (&sums)[4]) {
    static_assert(kHasMatrixUnit<W>, "warps of this size have no matrix unit");
    if constexpr (std::is_same_v<Half, BFloat16>) {
        DSPARK_MMA("bf16");
    } else {
        static_assert(std::is_same_v<Half, Float16>);
        DSPARK_MMA("f16");
    }
}

#undef DSPARK_MMA

// ---- operands -----------------------------------------------------------------------------------

DSPARK_DEVICE uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
    uint32_t out;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(low), "r"(high), "r"(selector));
    return out;
}

template <class Half>
DSPARK_DEVICE uint32_t multiply_pair(uint32_t a, uint32_t b) {
    uint32_t out;
    if constexpr (std::is_same_v<Half, BFloat16>) {  // sm_80 has no product of its own: a b + -0
        asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(0x80008000u));
    } else {
        asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
    }
    return out;
}

}  // namespace dspark::DSPARK_ISA
