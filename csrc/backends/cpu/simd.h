// FloatVector: the widest float32 vector of the instruction set this file is compiled for (16, 8
// or, on plain arrays, 16 lanes), and the small vocabulary that csrc/device/numeric.h is written
// in. Every operation rounds as its scalar namesake does, so all widths give the same bits.
#pragma once

#include <cstdint>

#include "device/dtype.h"

#if defined(__AVX512F__) || defined(__AVX2__)
#if defined(__GNUC__) && !defined(__clang__)
// gcc 12 warns of its own _mm512_undefined_ps (gcc bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif
#endif

namespace dspark::DSPARK_ISA {

#if defined(__AVX512F__)

struct FloatVector {
    static constexpr int kWidth = 16;
    __m512 v;
    FloatVector() = default;
    explicit FloatVector(__m512 value) : v(value) {}
    explicit FloatVector(float value) : v(_mm512_set1_ps(value)) {}
};
struct VectorMask {
    __mmask16 m;
};
DSPARK_DEVICE FloatVector load(const float* p) {
    return FloatVector(_mm512_loadu_ps(p));
}
DSPARK_DEVICE FloatVector load(const BFloat16* p) {
    const __m512i wide =
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return FloatVector(_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16)));
}
DSPARK_DEVICE FloatVector load(const Float16* p) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return FloatVector(_mm512_cvtph_ps(half));
}
DSPARK_DEVICE void store(float* p, FloatVector a) {
    _mm512_storeu_ps(p, a.v);
}
DSPARK_DEVICE FloatVector operator+(FloatVector a, FloatVector b) {
    return FloatVector(_mm512_add_ps(a.v, b.v));
}
DSPARK_DEVICE FloatVector operator-(FloatVector a, FloatVector b) {
    return FloatVector(_mm512_sub_ps(a.v, b.v));
}
DSPARK_DEVICE FloatVector operator*(FloatVector a, FloatVector b) {
    return FloatVector(_mm512_mul_ps(a.v, b.v));
}
DSPARK_DEVICE FloatVector operator/(FloatVector a, FloatVector b) {
    return FloatVector(_mm512_div_ps(a.v, b.v));
}
DSPARK_DEVICE FloatVector square_root(FloatVector a) {
    return FloatVector(_mm512_maskz_sqrt_ps(0xFFFF, a.v));  // unmasked, gcc 12 warns
}
DSPARK_DEVICE FloatVector fma(FloatVector a, FloatVector b, FloatVector c) {
    return FloatVector(_mm512_fmadd_ps(a.v, b.v, c.v));
}
DSPARK_DEVICE FloatVector rint(FloatVector a) {
    return FloatVector(_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
// a > b ? a : b, so b where either is NaN.
DSPARK_DEVICE FloatVector max(FloatVector a, FloatVector b) {
    return FloatVector(_mm512_max_ps(a.v, b.v));
}
DSPARK_DEVICE VectorMask less(FloatVector a, FloatVector b) {
    return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)};
}
DSPARK_DEVICE VectorMask is_nan(FloatVector a) {
    return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)};
}
DSPARK_DEVICE VectorMask operator|(VectorMask a, VectorMask b) {
    return {static_cast<__mmask16>(a.m | b.m)};
}
DSPARK_DEVICE bool any(VectorMask a) {
    return a.m != 0;
}
// Bit l: lane l of a is at least that of b.
DSPARK_DEVICE uint32_t lanes_at_least(FloatVector a, FloatVector b) {
    return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ);
}
DSPARK_DEVICE FloatVector zero_if(VectorMask condition, FloatVector a) {
    return FloatVector(_mm512_maskz_mov_ps(static_cast<__mmask16>(~condition.m), a.v));
}
DSPARK_DEVICE FloatVector select(VectorMask condition, FloatVector yes, FloatVector no) {
    return FloatVector(_mm512_mask_blend_ps(condition.m, no.v, yes.v));
}
DSPARK_DEVICE FloatVector scale_exponent(FloatVector p, FloatVector n) {
    return FloatVector(_mm512_scalef_ps(p.v, n.v));
}

#elif defined(__AVX2__)

struct FloatVector {
    static constexpr int kWidth = 8;
    __m256 v;
    FloatVector() = default;
    explicit FloatVector(__m256 value) : v(value) {}
    explicit FloatVector(float value) : v(_mm256_set1_ps(value)) {}
};
struct VectorMask {
    __m256 m;  // all ones where true
};
DSPARK_DEVICE FloatVector load(const float* p) {
    return FloatVector(_mm256_loadu_ps(p));
}
DSPARK_DEVICE FloatVector load(const BFloat16* p) {
    const __m256i wide =
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return FloatVector(_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
}
DSPARK_DEVICE FloatVector load(const Float16* p) {
    return FloatVector(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
DSPARK_DEVICE void store(float* p, FloatVector a) {
    _mm256_storeu_ps(p, a.v);
}
DSPARK_DEVICE FloatVector operator+(FloatVector a, FloatVector b) {
    return FloatVector(_mm256_add_ps(a.v, b.v));
}
DSPARK_DEVICE FloatVector operator-(FloatVector a, FloatVector b) {
    return FloatVector(_mm256_sub_ps(a.v, b.v));
}
DSPARK_DEVICE FloatVector operator*(FloatVector a, FloatVector b) {
    return FloatVector(_mm256_mul_ps(a.v, b.v));
}
DSPARK_DEVICE FloatVector operator/(FloatVector a, FloatVector b) {
    return FloatVector(_mm256_div_ps(a.v, b.v));
}
DSPARK_DEVICE FloatVector square_root(FloatVector a) {
    return FloatVector(_mm256_sqrt_ps(a.v));
}
DSPARK_DEVICE FloatVector fma(FloatVector a, FloatVector b, FloatVector c) {
    return FloatVector(_mm256_fmadd_ps(a.v, b.v, c.v));
}
DSPARK_DEVICE FloatVector rint(FloatVector a) {
    return FloatVector(_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
// a > b ? a : b, so b where either is NaN.
DSPARK_DEVICE FloatVector max(FloatVector a, FloatVector b) {
    return FloatVector(_mm256_max_ps(a.v, b.v));
}
DSPARK_DEVICE VectorMask less(FloatVector a, FloatVector b) {
    return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)};
}
DSPARK_DEVICE VectorMask is_nan(FloatVector a) {
    return {_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q)};
}
DSPARK_DEVICE VectorMask operator|(VectorMask a, VectorMask b) {
    return {_mm256_or_ps(a.m, b.m)};
}
DSPARK_DEVICE bool any(VectorMask a) {
    return _mm256_movemask_ps(a.m) != 0;
}
// Bit l: lane l of a is at least that of b.
DSPARK_DEVICE uint32_t lanes_at_least(FloatVector a, FloatVector b) {
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_GE_OQ)));
}
DSPARK_DEVICE FloatVector zero_if(VectorMask condition, FloatVector a) {
    return FloatVector(_mm256_andnot_ps(condition.m, a.v));
}
DSPARK_DEVICE FloatVector select(VectorMask condition, FloatVector yes, FloatVector no) {
    return FloatVector(_mm256_blendv_ps(no.v, yes.v, condition.m));
}
DSPARK_DEVICE FloatVector scale_exponent(FloatVector p, FloatVector n) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n.v), 23);
    return FloatVector(_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p.v), exponent)));
}

#else

struct FloatVector {
    static constexpr int kWidth = 16;
    float v[kWidth];
    FloatVector() = default;
    explicit FloatVector(float value) {
        for (float& lane : v) lane = value;
    }
};
struct VectorMask {
    int32_t m[FloatVector::kWidth];  // 0 or 1
};
#define DSPARK_LANES for (int lane = 0; lane < FloatVector::kWidth; ++lane)
template <class T>
DSPARK_DEVICE FloatVector load(const T* p) {
    FloatVector out;
    DSPARK_LANES out.v[lane] = to_float(p[lane]);
    return out;
}
DSPARK_DEVICE void store(float* p, const FloatVector& a) {
    DSPARK_LANES p[lane] = a.v[lane];
}
DSPARK_DEVICE FloatVector operator+(FloatVector a, const FloatVector& b) {
    DSPARK_LANES a.v[lane] += b.v[lane];
    return a;
}
DSPARK_DEVICE FloatVector operator-(FloatVector a, const FloatVector& b) {
    DSPARK_LANES a.v[lane] -= b.v[lane];
    return a;
}
DSPARK_DEVICE FloatVector operator*(FloatVector a, const FloatVector& b) {
    DSPARK_LANES a.v[lane] *= b.v[lane];
    return a;
}
DSPARK_DEVICE FloatVector operator/(FloatVector a, const FloatVector& b) {
    DSPARK_LANES a.v[lane] /= b.v[lane];
    return a;
}
DSPARK_DEVICE FloatVector square_root(FloatVector a) {
    DSPARK_LANES a.v[lane] = __builtin_sqrtf(a.v[lane]);
    return a;
}
#if defined(__FP_FAST_FMAF)
DSPARK_DEVICE FloatVector fma(FloatVector a, const FloatVector& b, const FloatVector& c) {
    DSPARK_LANES a.v[lane] = __builtin_fmaf(a.v[lane], b.v[lane], c.v[lane]);
    return a;
}
#else
// Correctly rounded without fma hardware: the product is exact in double, the sum is rounded to odd
// there, and rounding an odd double to float32 equals rounding once. (Infinite and NaN sums have a
// NaN error, which changes nothing.)
DSPARK_DEVICE FloatVector fma(FloatVector a, const FloatVector& b, const FloatVector& c) {
    DSPARK_LANES {
        const double product = static_cast<double>(a.v[lane]) * static_cast<double>(b.v[lane]);
        const double addend = static_cast<double>(c.v[lane]);
        const double sum = product + addend;
        const double t = sum - product;
        const double error = (product - (sum - t)) + (addend - t);  // exact
        uint64_t bits = bit_cast<uint64_t>(sum);
        const uint64_t away = (error > 0.0) == (sum > 0.0) ? 1 : ~uint64_t{0};
        bits += (error > 0.0 || error < 0.0) && (bits & 1) == 0 ? away : 0;
        a.v[lane] = static_cast<float>(bit_cast<double>(bits));
    }
    return a;
}
#endif
// Right for |a| < 2^22; beyond, only that the result stays beyond.
DSPARK_DEVICE FloatVector rint(FloatVector a) {
    DSPARK_LANES a.v[lane] = (a.v[lane] + 0x1.8p23f) - 0x1.8p23f;
    return a;
}
// a > b ? a : b, so b where either is NaN.
DSPARK_DEVICE FloatVector max(FloatVector a, const FloatVector& b) {
    DSPARK_LANES a.v[lane] = a.v[lane] > b.v[lane] ? a.v[lane] : b.v[lane];
    return a;
}
DSPARK_DEVICE VectorMask less(const FloatVector& a, const FloatVector& b) {
    VectorMask out;
    DSPARK_LANES out.m[lane] = a.v[lane] < b.v[lane];
    return out;
}
DSPARK_DEVICE VectorMask is_nan(const FloatVector& a) {
    VectorMask out;
    DSPARK_LANES out.m[lane] = a.v[lane] != a.v[lane];
    return out;
}
DSPARK_DEVICE VectorMask operator|(VectorMask a, const VectorMask& b) {
    DSPARK_LANES a.m[lane] |= b.m[lane];
    return a;
}
DSPARK_DEVICE bool any(const VectorMask& a) {
    int32_t out = 0;
    DSPARK_LANES out |= a.m[lane];
    return out != 0;
}
// Bit l: lane l of a is at least that of b.
DSPARK_DEVICE uint32_t lanes_at_least(const FloatVector& a, const FloatVector& b) {
    uint32_t out = 0;
    DSPARK_LANES out |= static_cast<uint32_t>(a.v[lane] >= b.v[lane]) << lane;
    return out;
}
DSPARK_DEVICE FloatVector zero_if(const VectorMask& condition, FloatVector a) {
    DSPARK_LANES a.v[lane] = condition.m[lane] ? 0.0f : a.v[lane];
    return a;
}
DSPARK_DEVICE FloatVector select(const VectorMask& condition, FloatVector yes,
                                 const FloatVector& no) {
    DSPARK_LANES yes.v[lane] = condition.m[lane] ? yes.v[lane] : no.v[lane];
    return yes;
}
DSPARK_DEVICE FloatVector scale_exponent(FloatVector p, const FloatVector& n) {
    DSPARK_LANES p.v[lane] = scale_exponent(p.v[lane], n.v[lane]);
    return p;
}
#undef DSPARK_LANES

#endif

}  // namespace dspark::DSPARK_ISA
