// Narrow codes as bfloat16 or float16, eight at a time, without their scales: exact, since e4m3 and
// e2m1 (formats.h) fit in both types. What the operands of matrix units are made from.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/float_type.h"
#include "device/formats.h"

namespace dspark::DSPARK_ISA {

// ---- fp8 ----------------------------------------------------------------------------------------
// Exponent and mantissa are put where those of a half are; the product with a power of two then
// makes up for the different bias, for subnormal codes too.

// Bit 7 of each byte that is a NaN, else 0.
DSPARK_DEVICE uint32_t nan_bytes(uint32_t word, Fp8E4M3) {
    return ((word & 0x7F7F7F7Fu) + 0x01010101u) & 0x80808080u;
}
DSPARK_DEVICE uint32_t nan_bytes(uint32_t word, Fp8E4M3Fnuz) {
    const uint32_t flipped = word ^ 0x80808080u;  // a NaN is 0 now
    return ~(((flipped & 0x7F7F7F7Fu) + 0x7F7F7F7Fu) | flipped) & 0x80808080u;
}

template <class Code, class Half>
struct Fp8Place {
    static constexpr bool kBrain = std::is_same_v<Half, BFloat16>;
    static constexpr bool kFnuz = std::is_same_v<Code, Fp8E4M3Fnuz>;
    static constexpr int kShift = kBrain ? 4 : 1;  // from bits 8 .. 14
    static constexpr uint32_t kMask = kBrain ? 0x07F007F0u : 0x3F803F80u;
    // 2^120 and 2^8, the difference of the biases; FNUZ codes are half as large.
    static constexpr uint32_t kFactor =
        kBrain ? (kFnuz ? 0x7B007B00u : 0x7B807B80u) : (kFnuz ? 0x58005800u : 0x5C005C00u);
};

// Two codes, one in the upper byte of each half, and the flags of nan_bytes likewise.
template <class Code, class Half>
DSPARK_DEVICE uint32_t widen_fp8_pair(uint32_t codes, uint32_t is_nan) {
    using Place = Fp8Place<Code, Half>;
    const uint32_t placed = (codes & 0x80008000u) | ((codes >> Place::kShift) & Place::kMask);
    const uint32_t nan = (is_nan >> 15) * 0x7FFFu;  // all ones below the sign
    return multiply_pair<Half>(placed, Place::kFactor) | nan;
}

// Eight codes, in order.
template <class Code, class Half>
DSPARK_DEVICE Bytes16 widen_fp8(const uint32_t (&codes)[2]) {
    constexpr uint32_t kFirst = 0x1404u, kSecond = 0x3424u;  // bytes 0 and 1, 2 and 3
    Bytes16 out;
    for (int i = 0; i < 2; ++i) {
        const uint32_t nan = nan_bytes(codes[i], Code{});
        uint32_t first = 0, second = 0;
        if (nan != 0) {
            first = permute_bytes(nan, 0, kFirst);
            second = permute_bytes(nan, 0, kSecond);
        }
        out.word[2 * i] = widen_fp8_pair<Code, Half>(permute_bytes(codes[i], 0, kFirst), first);
        out.word[2 * i + 1] =
            widen_fp8_pair<Code, Half>(permute_bytes(codes[i], 0, kSecond), second);
    }
    return out;
}

// ---- fp4 ----------------------------------------------------------------------------------------
// The bytes of a half come from tables of the eight magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6.

// Eight codes of four bits, in order.
template <class Half>
DSPARK_DEVICE Bytes16 widen_fp4(uint32_t codes) {
    constexpr bool kBrain = std::is_same_v<Half, BFloat16>;
    constexpr uint32_t kHigh[2] = {kBrain ? 0x3F3F3F00u : 0x3E3C3800u,
                                   kBrain ? 0x40404040u : 0x46444240u};
    constexpr uint32_t kLow[2] = {0xC0800000u, 0xC0804000u};  // of float16 they are 0
    constexpr uint32_t kSigns[4] = {0x4000u, 0x5010u, 0x6020u, 0x7030u};
    const uint32_t even_signs = codes << 4;
    Bytes16 out;
    for (int i = 0; i < 2; ++i) {
        const uint32_t magnitudes = (codes >> 16 * i) & 0x7777u;
        const uint32_t high = permute_bytes(kHigh[0], kHigh[1], magnitudes);
        const uint32_t low = kBrain ? permute_bytes(kLow[0], kLow[1], magnitudes) : 0u;
        for (int j = 0; j < 2; ++j) {
            const uint32_t signs = permute_bytes(even_signs, codes, kSigns[2 * i + j]);
            out.word[2 * i + j] =
                permute_bytes(low, high, j == 0 ? 0x5140u : 0x7362u) | (signs & 0x80008000u);
        }
    }
    return out;
}

}  // namespace dspark::DSPARK_ISA
