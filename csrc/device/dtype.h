// Exact widening of logits to float32.
#pragma once

#include <cstdint>

#include "device/float_type.h"
#include "device/numeric.h"

namespace dspark::DSPARK_ISA {

DSPARK_DEVICE float to_float(float a) {
    return a;
}
DSPARK_DEVICE float to_float(BFloat16 a) {
    return bit_cast<float>(static_cast<uint32_t>(a.bits) << 16);
}
DSPARK_DEVICE float to_float(Float16 a) {
    const uint32_t sign = static_cast<uint32_t>(a.bits & 0x8000u) << 16;
    const uint32_t exponent = (a.bits >> 10) & 0x1Fu;
    const uint32_t mantissa = a.bits & 0x3FFu;
    const float subnormal = static_cast<float>(mantissa) * 0x1p-24f;
    const uint32_t magnitude = exponent == 0    ? bit_cast<uint32_t>(subnormal)
                               : exponent == 31 ? 0x7F800000u | (mantissa << 13)
                                                : ((exponent + 112) << 23) | (mantissa << 13);
    return bit_cast<float>(sign | magnitude);
}

}  // namespace dspark::DSPARK_ISA
