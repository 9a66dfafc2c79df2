// The elementary functions of docs/numerics.md section 2, one text for scalars and vectors.
//
// Of a float value type V the templates ask only: construction from float, + - *, and the overloads
// fma, rint, less, zero_if, scale_exponent. Scalars define them here, CPU vectors in
// csrc/backends/cpu/simd.h. Nothing may be contracted or reassociated (compile
// with contraction off): that is what makes every backend compute the same bits.
#pragma once

#include <cstdint>
#include <cstring>

#include "device/backend.h"

namespace dspark::DSPARK_ISA {

constexpr float kFltMax = 0x1.fffffep127f;
constexpr float kInfinity = __builtin_huge_valf();
constexpr double kLn2 = 0x1.62e42fefa39efp-1;
constexpr double kLog2E = 0x1.71547652b82fep+0;

template <class To, class From>
DSPARK_HOST_DEVICE To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast needs equal sizes");
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}

// Correctly rounded; rint rounds ties to even. Every compiler in use has these builtins on the
// device, too.
DSPARK_DEVICE float fma(float a, float b, float c) {
    return __builtin_fmaf(a, b, c);
}
DSPARK_DEVICE double fma(double a, double b, double c) {
    return __builtin_fma(a, b, c);
}
DSPARK_DEVICE float rint(float a) {
    return __builtin_rintf(a);
}
DSPARK_DEVICE double rint(double a) {
    return __builtin_rint(a);
}
DSPARK_DEVICE bool less(float a, float b) {
    return a < b;
}
DSPARK_DEVICE float zero_if(bool condition, float a) {
    return condition ? 0.0f : a;
}
DSPARK_DEVICE float select(bool condition, float yes, float no) {
    return condition ? yes : no;
}
DSPARK_DEVICE float square_root(float a) {
    return __builtin_sqrtf(a);
}

// p * 2^n, exact, for p in [0.5, 2) and integral n in [-125, 0]. For any other n: some value.
DSPARK_DEVICE float scale_exponent(float p, float n) {
    const int32_t exponent = n >= -125.0f ? static_cast<int32_t>(n) : 0;
    return bit_cast<float>(bit_cast<uint32_t>(p) + (static_cast<uint32_t>(exponent) << 23));
}

// 2^n for n in [-1022, 1023].
DSPARK_DEVICE double power_of_two(int32_t n) {
    return bit_cast<double>(static_cast<uint64_t>(n + 1023) << 52);
}

// 2^f in float32 for f in [-1/2, 1/2] and a little beyond: a minimax polynomial with constant
// term 1.
template <class V>
DSPARK_DEVICE V exp2_fraction(V f) {
    V p = V(0x1.4868a2p-13f);
    p = fma(p, f, V(0x1.5fcd4ep-10f));
    p = fma(p, f, V(0x1.3b2414p-7f));
    p = fma(p, f, V(0x1.c6ad14p-5f));
    p = fma(p, f, V(0x1.ebfbeap-3f));
    p = fma(p, f, V(0x1.62e434p-1f));
    return fma(p, f, V(1.0f));
}

// 2^z in float32 for z <= 0 (-inf allowed), 0 below -125; measured error at most 0.82 ulp.
template <class V>
DSPARK_DEVICE V exp2_nonpositive(V z) {
    const V n = rint(z);
    const V p = exp2_fraction(z - n);
    return zero_if(less(z, V(-125.0f)), scale_exponent(p, n));
}

// e^x in float32 for x <= 0 (-inf allowed), 0 where x log2(e) is below -125. The exponent is
// carried in two floats, so that the error stays at that of exp2_nonpositive however small x is.
template <class V>
DSPARK_DEVICE V exp_nonpositive(V x) {
    const V high = V(0x1.715476p+0f);  // log2(e) = high + low
    const V low = V(0x1.4ae0cp-26f);
    const V z = x * high;
    const V rest = fma(x, low, fma(x, high, V(0.0f) - z));
    const V n = rint(z);
    const V p = exp2_fraction((z - n) + rest);
    return zero_if(less(z, V(-125.0f)), scale_exponent(p, n));
}

// log(1 + t) in float32 for t in [0, 1]: 2 atanh(t / (2 + t)), by a minimax polynomial.
template <class V>
DSPARK_DEVICE V log1p_unit(V t) {
    const V s = t / (V(2.0f) + t);
    const V r = s * s;
    V p = V(0x1.1940ep-3f);
    p = fma(p, r, V(0x1.1ff946p-3f));
    p = fma(p, r, V(0x1.99bca2p-3f));
    p = fma(p, r, V(0x1.555538p-2f));
    const V twice = s + s;
    return fma(twice * r, p, twice);
}

// 2^z in double for z <= 0 (-inf allowed), 0 below -1000. Coefficients ln(2)^k / k!;
// measured error at most 1 ulp.
DSPARK_DEVICE double exp2_double(double z) {
    if (z < -1000.0) return 0.0;
    const double n = rint(z);
    const double f = z - n;
    double p = 0x1.816193166d0f9p-40;
    p = fma(p, f, 0x1.c3bd650fc2986p-36);
    p = fma(p, f, 0x1.e8cac7351bb25p-32);
    p = fma(p, f, 0x1.e4cf5158b8ecap-28);
    p = fma(p, f, 0x1.b5253d395e7c4p-24);
    p = fma(p, f, 0x1.62c0223a5c824p-20);
    p = fma(p, f, 0x1.ffcbfc588b0c7p-17);
    p = fma(p, f, 0x1.430912f86c787p-13);
    p = fma(p, f, 0x1.5d87fe78a6731p-10);
    p = fma(p, f, 0x1.3b2ab6fba4e77p-7);
    p = fma(p, f, 0x1.c6b08d704a0c0p-5);
    p = fma(p, f, 0x1.ebfbdff82c58fp-3);
    p = fma(p, f, 0x1.62e42fefa39efp-1);
    p = fma(p, f, 1.0);
    return p * power_of_two(static_cast<int32_t>(n));
}

// log2(y) in double for normal y > 0: y = m * 2^k with m in [sqrt(1/2), sqrt(2)), then the series
// of atanh((m - 1) / (m + 1)). Exact at powers of two, measured error elsewhere at most 2 ulp.
DSPARK_DEVICE double log2_double(double y) {
    constexpr uint64_t kMantissa = (uint64_t{1} << 52) - 1;
    const uint64_t bits = bit_cast<uint64_t>(y);
    double m = bit_cast<double>((bits & kMantissa) | (uint64_t{1022} << 52));  // [0.5, 1)
    int32_t k = static_cast<int32_t>(bits >> 52) - 1022;
    if (m < 0x1.6a09e667f3bcdp-1) {
        m *= 2.0;
        k -= 1;
    }
    const double s = (m - 1.0) / (m + 1.0);
    const double r = s * s;
    double p = 0x1.00ecd7e080215p-3;
    p = fma(p, r, 0x1.1964ec6fc9491p-3);
    p = fma(p, r, 0x1.3703c1f4d0ffep-3);
    p = fma(p, r, 0x1.5b9ac9b743f0dp-3);
    p = fma(p, r, 0x1.89f3b1694cffep-3);
    p = fma(p, r, 0x1.c68f568d31760p-3);
    p = fma(p, r, 0x1.0c9a84994022dp-2);
    p = fma(p, r, 0x1.484b13d7c02a9p-2);
    p = fma(p, r, 0x1.a61762a7aded9p-2);
    p = fma(p, r, 0x1.2776c50ef9bfep-1);
    p = fma(p, r, 0x1.ec709dc3a03fdp-1);
    p = fma(p, r, 0x1.71547652b82fep+1);
    return fma(s, p, static_cast<double>(k));
}

// Scale of the logits in the base-2 exponent, log2(e) / temperature, for temperature > 0.
DSPARK_DEVICE float exponent_scale(float temperature) {
    const float c = static_cast<float>(kLog2E / static_cast<double>(temperature));
    return c < 0x1p-100f ? 0x1p-100f : c > 0x1p100f ? 0x1p100f : c;
}

}  // namespace dspark::DSPARK_ISA
