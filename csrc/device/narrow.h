// Rounding of float32 to the types logits are kept in: nearest, ties to even; a NaN stays a NaN.
#pragma once

#include <cstdint>

#include "device/dtype.h"

namespace dspark::DSPARK_ISA {

DSPARK_DEVICE void narrow(float a, float* out) {
    *out = a;
}

DSPARK_DEVICE void narrow(float a, BFloat16* out) {
    const uint32_t bits = bit_cast<uint32_t>(a);
    const uint32_t rounded = bits + 0x7FFFu + ((bits >> 16) & 1u);
    const bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
    out->bits = static_cast<uint16_t>((is_nan ? bits | 0x400000u : rounded) >> 16);
}

DSPARK_DEVICE void narrow(float a, Float16* out) {
    const uint32_t bits = bit_cast<uint32_t>(a);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    // Normal range: rebias the exponent by 112 and round off 13 bits of the mantissa.
    const uint32_t normal = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
    // Below 2^-14: adding 0.5 leaves the multiple of 2^-24 in the low bits, rounded by the adder.
    const float shifted = bit_cast<float>(magnitude) + 0.5f;
    const uint32_t subnormal = bit_cast<uint32_t>(shifted) - 0x3F000000u;
    const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
    const uint32_t special = magnitude > 0x7F800000u ? 0x7E00u : 0x7C00u;
    out->bits = static_cast<uint16_t>(sign | (magnitude >= 0x47800000u ? special : finite));
}

}  // namespace dspark::DSPARK_ISA
