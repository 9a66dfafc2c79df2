// Narrow number formats of weights and their scales: exact decoding to float32, and encoding to the
// nearest code, ties to the even one.
//
//     format              bits  bias  largest  subnormal unit  special codes
//     fp8 e4m3 (OCP)      1.4.3   7     448         2^-9       0x7F, 0xFF: NaN
//     fp8 e4m3 FNUZ       1.4.3   8     240         2^-10      0x80: NaN; there is no -0
//     fp4 e2m1            1.2.1   1       6         2^-1       none
//     e8m0 (scales)       0.8.0 127   2^127        none        0xFF: NaN; code c is 2^(c - 127)
//
// Encoding saturates: whatever exceeds the largest number, infinities included, becomes that number
// with its sign. NaN becomes NaN (in OCP with its sign), and +6 in fp4, which has none. No step
// makes or meets a subnormal float32, save e8m0 code 0, so the results do not depend on whether a
// processor flushes those.
#pragma once

#include <cstdint>

#include "device/numeric.h"

namespace dspark::DSPARK_ISA {

struct Fp8E4M3 {
    uint8_t bits;
};
struct Fp8E4M3Fnuz {
    uint8_t bits;
};
struct Fp4E2M1 {
    uint8_t bits;  // the low four
};
struct E8M0 {
    uint8_t bits;
};

constexpr uint32_t kQuietNaN = 0x7FC00000u;
constexpr float kFp8E4M3Max = 448.0f;
constexpr float kFp8E4M3FnuzMax = 240.0f;
constexpr float kFp4E2M1Max = 6.0f;

// Bits of the float32 with the value of an unsigned code of kMantissaBits below its exponent.
template <int kMantissaBits, int kBias>
DSPARK_HOST_DEVICE uint32_t widen_magnitude(uint32_t code) {
    const float unit = bit_cast<float>(static_cast<uint32_t>(128 - kBias - kMantissaBits) << 23);
    const uint32_t subnormal =
        bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(code)) * unit);
    const uint32_t normal =
        (code << (23 - kMantissaBits)) + (static_cast<uint32_t>(127 - kBias) << 23);
    return code >> kMantissaBits == 0 ? subnormal : normal;
}

// The code nearest to a float32 magnitude, given by its bits; kMaxCode for all beyond.
template <int kMantissaBits, int kBias, uint32_t kMaxCode>
DSPARK_HOST_DEVICE uint32_t narrow_magnitude(uint32_t magnitude) {
    constexpr int kDropped = 23 - kMantissaBits;
    constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << 23;
    constexpr uint32_t kSmallestNormal = kRebias + (1u << 23);
    // Adding 2^23 subnormal units leaves their number in the low bits, rounded by the adder.
    constexpr uint32_t kAlign = static_cast<uint32_t>(151 - kBias - kMantissaBits) << 23;
    const uint32_t subnormal =
        bit_cast<uint32_t>(bit_cast<float>(magnitude) + bit_cast<float>(kAlign)) - kAlign;
    const uint32_t half_minus = (1u << (kDropped - 1)) - 1u + ((magnitude >> kDropped) & 1u);
    const uint32_t normal = (magnitude - kRebias + half_minus) >> kDropped;
    const uint32_t code = magnitude < kSmallestNormal ? subnormal : normal;
    return code < kMaxCode ? code : kMaxCode;
}

DSPARK_HOST_DEVICE float to_float(Fp8E4M3 a) {
    const uint32_t code = a.bits & 0x7Fu;
    const uint32_t sign = static_cast<uint32_t>(a.bits & 0x80u) << 24;
    const uint32_t magnitude = code == 0x7Fu ? kQuietNaN : widen_magnitude<3, 7>(code);
    return bit_cast<float>(sign | magnitude);
}

DSPARK_HOST_DEVICE float to_float(Fp8E4M3Fnuz a) {
    const uint32_t sign = static_cast<uint32_t>(a.bits & 0x80u) << 24;
    const uint32_t magnitude = widen_magnitude<3, 8>(a.bits & 0x7Fu);
    return bit_cast<float>(a.bits == 0x80u ? kQuietNaN : sign | magnitude);
}

DSPARK_HOST_DEVICE float to_float(Fp4E2M1 a) {
    const uint32_t sign = static_cast<uint32_t>(a.bits & 8u) << 28;
    return bit_cast<float>(sign | widen_magnitude<1, 1>(a.bits & 7u));
}

DSPARK_HOST_DEVICE float to_float(E8M0 a) {
    const uint32_t code = a.bits;
    const uint32_t power = code == 0 ? 0x00400000u : code << 23;
    return bit_cast<float>(code == 0xFFu ? kQuietNaN : power);
}

DSPARK_HOST_DEVICE void narrow(float a, Fp8E4M3* out) {
    const uint32_t bits = bit_cast<uint32_t>(a);
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    const uint32_t code = magnitude > 0x7F800000u ? 0x7Fu : narrow_magnitude<3, 7, 0x7E>(magnitude);
    out->bits = static_cast<uint8_t>(((bits >> 24) & 0x80u) | code);
}

DSPARK_HOST_DEVICE void narrow(float a, Fp8E4M3Fnuz* out) {
    const uint32_t bits = bit_cast<uint32_t>(a);
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    const uint32_t code = narrow_magnitude<3, 8, 0x7F>(magnitude);
    const uint32_t sign = code == 0 ? 0u : (bits >> 24) & 0x80u;
    out->bits = static_cast<uint8_t>(magnitude > 0x7F800000u ? 0x80u : sign | code);
}

DSPARK_HOST_DEVICE void narrow(float a, Fp4E2M1* out) {
    const uint32_t bits = bit_cast<uint32_t>(a);
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    const uint32_t sign = magnitude > 0x7F800000u ? 0u : (bits >> 28) & 8u;
    out->bits = static_cast<uint8_t>(sign | narrow_magnitude<1, 1, 7>(magnitude));
}

// Two fp4 in a byte: the element of even index in the low half.
DSPARK_HOST_DEVICE Fp4E2M1 low_half(uint8_t pair) {
    return {static_cast<uint8_t>(pair & 0xFu)};
}
DSPARK_HOST_DEVICE Fp4E2M1 high_half(uint8_t pair) {
    return {static_cast<uint8_t>(pair >> 4)};
}
DSPARK_HOST_DEVICE uint8_t pack_pair(Fp4E2M1 low, Fp4E2M1 high) {
    return static_cast<uint8_t>(low.bits | (high.bits << 4));
}

}  // namespace dspark::DSPARK_ISA
