// What panel products need of a vector beyond simd.h: halves of pairs, interleaving, and the
// floating-point mode of bf16 dot products.
#pragma once

#include "backends/cpu/simd.h"

#if defined(__SSE__)
#include <immintrin.h>
#endif

namespace dspark::DSPARK_ISA {

constexpr int kLanes = FloatVector::kWidth;

#if defined(__AVX512F__)

// The values in the high and in the low halves of kLanes consecutive 32-bit words.
DSPARK_DEVICE FloatVector load_high(const BFloat16* words) {
    const __m512i all = _mm512_loadu_si512(words);
    return FloatVector(_mm512_castsi512_ps(_mm512_and_si512(all, _mm512_set1_epi32(-65536))));
}
DSPARK_DEVICE FloatVector load_low(const BFloat16* words) {
    // The maskz form: gcc 12 warns of an uninitialised source in the unmasked one.
    const __m512i all = _mm512_loadu_si512(words);
    return FloatVector(_mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xFFFF, all, 16)));
}
DSPARK_DEVICE FloatVector load_high(const Float16* words) {
    const __m512i high = _mm512_maskz_srli_epi32(0xFFFF, _mm512_loadu_si512(words), 16);
    return FloatVector(_mm512_maskz_cvtph_ps(0xFFFF, _mm512_maskz_cvtepi32_epi16(0xFFFF, high)));
}
DSPARK_DEVICE FloatVector load_low(const Float16* words) {
    const __m256i low = _mm512_maskz_cvtepi32_epi16(0xFFFF, _mm512_loadu_si512(words));
    return FloatVector(_mm512_maskz_cvtph_ps(0xFFFF, low));
}

// a0 b0 a1 b1 ...: the first (zip_low) or second (zip_high) kLanes floats of the interleaving.
DSPARK_DEVICE FloatVector zip_low(FloatVector a, FloatVector b) {
    const __m512i index = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    return FloatVector(_mm512_permutex2var_ps(a.v, index, b.v));
}
DSPARK_DEVICE FloatVector zip_high(FloatVector a, FloatVector b) {
    const __m512i index =
        _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    return FloatVector(_mm512_permutex2var_ps(a.v, index, b.v));
}

// The even and the odd floats of a, then b.
DSPARK_DEVICE FloatVector unzip_even(FloatVector a, FloatVector b) {
    const __m512i index =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return FloatVector(_mm512_permutex2var_ps(a.v, index, b.v));
}
DSPARK_DEVICE FloatVector unzip_odd(FloatVector a, FloatVector b) {
    const __m512i index =
        _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    return FloatVector(_mm512_permutex2var_ps(a.v, index, b.v));
}

#elif defined(__AVX2__)

DSPARK_DEVICE FloatVector load_high(const BFloat16* words) {
    const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
    return FloatVector(_mm256_castsi256_ps(_mm256_and_si256(all, _mm256_set1_epi32(-65536))));
}
DSPARK_DEVICE FloatVector load_low(const BFloat16* words) {
    const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
    return FloatVector(_mm256_castsi256_ps(_mm256_slli_epi32(all, 16)));
}
// Of eight words, each below 2^16.
DSPARK_DEVICE FloatVector widen_low_halves(__m256i words) {
    const __m256i packed = _mm256_packus_epi32(words, words);  // by halves of 128 bits
    return FloatVector(_mm256_cvtph_ps(
        _mm_unpacklo_epi64(_mm256_castsi256_si128(packed), _mm256_extracti128_si256(packed, 1))));
}
DSPARK_DEVICE FloatVector load_high(const Float16* words) {
    const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
    return widen_low_halves(_mm256_srli_epi32(all, 16));
}
DSPARK_DEVICE FloatVector load_low(const Float16* words) {
    const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
    return widen_low_halves(_mm256_and_si256(all, _mm256_set1_epi32(0xFFFF)));
}

DSPARK_DEVICE FloatVector zip_low(FloatVector a, FloatVector b) {
    const __m256 even = _mm256_unpacklo_ps(a.v, b.v);
    const __m256 odd = _mm256_unpackhi_ps(a.v, b.v);
    return FloatVector(_mm256_permute2f128_ps(even, odd, 0x20));
}
DSPARK_DEVICE FloatVector zip_high(FloatVector a, FloatVector b) {
    const __m256 even = _mm256_unpacklo_ps(a.v, b.v);
    const __m256 odd = _mm256_unpackhi_ps(a.v, b.v);
    return FloatVector(_mm256_permute2f128_ps(even, odd, 0x31));
}

// Of halves of 128 bits: those of a and b in turns, put in order by the second shuffle.
DSPARK_DEVICE FloatVector in_order(__m256 halves) {
    return FloatVector(
        _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(halves), 0b11011000)));
}
DSPARK_DEVICE FloatVector unzip_even(FloatVector a, FloatVector b) {
    return in_order(_mm256_shuffle_ps(a.v, b.v, 0b10001000));
}
DSPARK_DEVICE FloatVector unzip_odd(FloatVector a, FloatVector b) {
    return in_order(_mm256_shuffle_ps(a.v, b.v, 0b11011101));
}

#else

template <class Half>
DSPARK_DEVICE FloatVector load_high(const Half* words) {
    FloatVector out;
    for (int lane = 0; lane < kLanes; ++lane) out.v[lane] = to_float(words[2 * lane + 1]);
    return out;
}
template <class Half>
DSPARK_DEVICE FloatVector load_low(const Half* words) {
    FloatVector out;
    for (int lane = 0; lane < kLanes; ++lane) out.v[lane] = to_float(words[2 * lane]);
    return out;
}

DSPARK_DEVICE FloatVector zip_low(const FloatVector& a, const FloatVector& b) {
    FloatVector out;
    for (int lane = 0; lane < kLanes; ++lane) out.v[lane] = (lane % 2 ? b : a).v[lane / 2];
    return out;
}
DSPARK_DEVICE FloatVector zip_high(const FloatVector& a, const FloatVector& b) {
    FloatVector out;
    for (int lane = 0; lane < kLanes; ++lane) {
        out.v[lane] = (lane % 2 ? b : a).v[(lane + kLanes) / 2];
    }
    return out;
}

DSPARK_DEVICE FloatVector unzip(const FloatVector& a, const FloatVector& b, int first) {
    FloatVector out;
    for (int lane = 0; lane < kLanes; ++lane) {
        const int from = 2 * lane + first;
        out.v[lane] = from < kLanes ? a.v[from] : b.v[from - kLanes];
    }
    return out;
}
DSPARK_DEVICE FloatVector unzip_even(const FloatVector& a, const FloatVector& b) {
    return unzip(a, b, 0);
}
DSPARK_DEVICE FloatVector unzip_odd(const FloatVector& a, const FloatVector& b) {
    return unzip(a, b, 1);
}

#endif

// While it lives, subnormal operands and results of this thread count as zero (x86 only).
class FlushSubnormals {
  public:
#if defined(__SSE__)
    explicit FlushSubnormals(bool enabled) : saved_(_mm_getcsr()) {
        if (enabled) _mm_setcsr(saved_ | 0x8040);
    }
    ~FlushSubnormals() { _mm_setcsr(saved_); }

  private:
    unsigned saved_;
#else
    explicit FlushSubnormals(bool) {}
#endif
};

}  // namespace dspark::DSPARK_ISA
