// One float vector of the instruction set being compiled: Vec, kLanes floats wide.
//
// Every function works lane by lane and rounds once, so a value does not depend on kLanes. A
// plain-C fallback keeps the same operations for machines without AVX2; its fma is the library's,
// correctly rounded.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__SSE__)
#include <immintrin.h>
#endif

namespace dspark::DSPARK_ISA {

#if defined(__AVX512F__)

using Vec = __m512;
inline constexpr int kLanes = 16;

// A full mask compiles to the unmasked instruction; the unmasked intrinsics of GCC 12 warn of an
// uninitialised value (GCC bug 105593).
inline constexpr __mmask16 kAllLanes = 0xffff;

inline Vec broadcast(float value) {
    return _mm512_set1_ps(value);
}
inline Vec load(const float* source) {
    return _mm512_loadu_ps(source);
}
inline void store(float* target, Vec value) {
    _mm512_storeu_ps(target, value);
}
inline Vec add(Vec a, Vec b) {
    return _mm512_add_ps(a, b);
}
inline Vec fma(Vec a, Vec b, Vec c) {
    return _mm512_fmadd_ps(a, b, c);
}

// kLanes consecutive bf16 values.
inline Vec load_bf16(const uint16_t* source) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source));
    return _mm512_castsi512_ps(
        _mm512_maskz_slli_epi32(kAllLanes, _mm512_maskz_cvtepu16_epi32(kAllLanes, half), 16));
}

// The bf16 values in the high and in the low halves of kLanes consecutive 32-bit words.
inline Vec load_bf16_high(const uint16_t* words) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_loadu_si512(words), _mm512_set1_epi32(-65536)));
}
inline Vec load_bf16_low(const uint16_t* words) {
    return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(kAllLanes, _mm512_loadu_si512(words), 16));
}

// a0 b0 a1 b1 ...: the first (zip_low) or second (zip_high) kLanes floats of the interleaving.
inline Vec zip_low(Vec a, Vec b) {
    const __m512i index = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    return _mm512_permutex2var_ps(a, index, b);
}
inline Vec zip_high(Vec a, Vec b) {
    const __m512i index =
        _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    return _mm512_permutex2var_ps(a, index, b);
}

#elif defined(__AVX2__) && defined(__FMA__)

using Vec = __m256;
inline constexpr int kLanes = 8;

inline Vec broadcast(float value) {
    return _mm256_set1_ps(value);
}
inline Vec load(const float* source) {
    return _mm256_loadu_ps(source);
}
inline void store(float* target, Vec value) {
    _mm256_storeu_ps(target, value);
}
inline Vec add(Vec a, Vec b) {
    return _mm256_add_ps(a, b);
}
inline Vec fma(Vec a, Vec b, Vec c) {
    return _mm256_fmadd_ps(a, b, c);
}

inline Vec load_bf16(const uint16_t* source) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

inline Vec load_bf16_high(const uint16_t* words) {
    const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
    return _mm256_castsi256_ps(_mm256_and_si256(all, _mm256_set1_epi32(-65536)));
}
inline Vec load_bf16_low(const uint16_t* words) {
    const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(words));
    return _mm256_castsi256_ps(_mm256_slli_epi32(all, 16));
}

inline Vec zip_low(Vec a, Vec b) {
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x20);
}
inline Vec zip_high(Vec a, Vec b) {
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x31);
}

#else

inline constexpr int kLanes = 4;
struct Vec {
    float lane[kLanes];
};

inline Vec broadcast(float value) {
    return {{value, value, value, value}};
}
inline Vec load(const float* source) {
    return {{source[0], source[1], source[2], source[3]}};
}
inline void store(float* target, Vec value) {
    for (int l = 0; l < kLanes; ++l) target[l] = value.lane[l];
}
inline Vec add(Vec a, Vec b) {
    for (int l = 0; l < kLanes; ++l) a.lane[l] += b.lane[l];
    return a;
}
inline Vec fma(Vec a, Vec b, Vec c) {
    for (int l = 0; l < kLanes; ++l) c.lane[l] = __builtin_fmaf(a.lane[l], b.lane[l], c.lane[l]);
    return c;
}

inline float widen_bf16(uint16_t bits) {
    const uint32_t word = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &word, sizeof(value));
    return value;
}

inline Vec load_bf16(const uint16_t* source) {
    return {{widen_bf16(source[0]), widen_bf16(source[1]), widen_bf16(source[2]),
             widen_bf16(source[3])}};
}

inline Vec load_bf16_high(const uint16_t* words) {
    return {
        {widen_bf16(words[1]), widen_bf16(words[3]), widen_bf16(words[5]), widen_bf16(words[7])}};
}
inline Vec load_bf16_low(const uint16_t* words) {
    return {
        {widen_bf16(words[0]), widen_bf16(words[2]), widen_bf16(words[4]), widen_bf16(words[6])}};
}

inline Vec zip_low(Vec a, Vec b) {
    return {{a.lane[0], b.lane[0], a.lane[1], b.lane[1]}};
}
inline Vec zip_high(Vec a, Vec b) {
    return {{a.lane[2], b.lane[2], a.lane[3], b.lane[3]}};
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
