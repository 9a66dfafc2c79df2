// Weights from codes and scales on the CPU. The loops are plain, so that the compiler turns them
// into vectors; fp4 has lookups of its own.
#pragma once

#include <type_traits>

#include "backends/cpu/simd_pairs.h"
#include "device/formats.h"
#include "device/narrow.h"

namespace dspark::DSPARK_ISA::codes {

// Weights are unpacked to one code a byte, this many at a time: a fixed number makes vectors.
constexpr int kChunk = 32;

// Codes of one byte each.
template <class Code_>
struct CodeBytes {
    using Code = Code_;
    static constexpr int64_t kPerByte = 1;
    DSPARK_DEVICE static Code at(const uint8_t* codes, int64_t i) { return {codes[i]}; }
    DSPARK_DEVICE static const uint8_t* unpack(const uint8_t* codes, uint8_t*) { return codes; }
};

// And two in a byte.
struct CodePairs {
    using Code = Fp4E2M1;
    static constexpr int64_t kPerByte = 2;
    DSPARK_DEVICE static Code at(const uint8_t* codes, int64_t i) {
        return i % 2 == 0 ? low_half(codes[i / 2]) : high_half(codes[i / 2]);
    }
    DSPARK_DEVICE static const uint8_t* unpack(const uint8_t* codes, uint8_t* each) {
        for (int i = 0; i < kChunk / 2; ++i) {
            each[2 * i] = low_half(codes[i]).bits;
            each[2 * i + 1] = high_half(codes[i]).bits;
        }
        return each;
    }
};

#if defined(__AVX512F__) || defined(__AVX2__)

// The sixteen weights of fp4 codes under a scale.
struct ScaledPairs {
    float weights[16];

    explicit ScaledPairs(float scale) {
        for (uint8_t i = 0; i < 16; ++i) weights[i] = to_float(Fp4E2M1{i}) * scale;
    }

    // Those of the codes in bytes 0 .. kLanes - 1, the low half of each first.
    DSPARK_DEVICE void write(const uint8_t* codes, float* out) const {
#if defined(__AVX512F__)
        const __m512i low = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)codes));
        const __m512i high = _mm512_maskz_srli_epi32(0xFFFF, low, 4);
        const __m512 table = _mm512_loadu_ps(weights);
        const FloatVector even(_mm512_maskz_permutexvar_ps(0xFFFF, low, table));
        const FloatVector odd(_mm512_maskz_permutexvar_ps(0xFFFF, high, table));
#else
        const __m256i low = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)codes));
        const __m256 positive = _mm256_loadu_ps(weights), negative = _mm256_loadu_ps(weights + 8);
        const auto look_up = [&](__m256i index) {  // by its low three bits; bit 3 is the sign
            return FloatVector(_mm256_blendv_ps(_mm256_permutevar8x32_ps(positive, index),
                                                _mm256_permutevar8x32_ps(negative, index),
                                                _mm256_castsi256_ps(_mm256_slli_epi32(index, 28))));
        };
        const FloatVector even = look_up(low);
        const FloatVector odd = look_up(_mm256_srli_epi32(low, 4));
#endif
        store(out, zip_low(even, odd));
        store(out + kLanes, zip_high(even, odd));
    }
};

// The same in 16 bits, as tables of their lower and their upper bytes.
template <class Half>
struct ScaledHalfPairs {
    __m128i lower, upper;

    explicit ScaledHalfPairs(float scale) {
        float values[16];
        for (uint8_t i = 0; i < 16; ++i) values[i] = to_float(Fp4E2M1{i});
        // Hides that they are constants: from a product with a negative one gcc makes a negated
        // product, which changes the sign of a NaN.
        asm("" : "+m"(values));
        Half weights[16];
        for (int i = 0; i < 16; ++i) narrow(values[i] * scale, &weights[i]);
        const __m128i first = _mm_loadu_si128((const __m128i*)weights);
        const __m128i second = _mm_loadu_si128((const __m128i*)(weights + 8));
        const __m128i byte = _mm_set1_epi16(0xFF);
        lower = _mm_packus_epi16(_mm_and_si128(first, byte), _mm_and_si128(second, byte));
        upper = _mm_packus_epi16(_mm_srli_epi16(first, 8), _mm_srli_epi16(second, 8));
    }

    // Those of the codes in bytes 0 .. 15, the low half of each first.
    DSPARK_DEVICE void write(const uint8_t* codes, Half* out) const {
        const __m128i nibble = _mm_set1_epi8(0xF);
        const __m128i bytes = _mm_loadu_si128((const __m128i*)codes);
        const __m128i even = _mm_and_si128(bytes, nibble);
        const __m128i odd = _mm_and_si128(_mm_srli_epi16(bytes, 4), nibble);
        write_sixteen(_mm_unpacklo_epi8(even, odd), out);
        write_sixteen(_mm_unpackhi_epi8(even, odd), out + 16);
    }

  private:
    DSPARK_DEVICE void write_sixteen(__m128i each, Half* out) const {
        const __m128i low = _mm_shuffle_epi8(lower, each);
        const __m128i high = _mm_shuffle_epi8(upper, each);
        _mm_storeu_si128((__m128i*)out, _mm_unpacklo_epi8(low, high));
        _mm_storeu_si128((__m128i*)(out + 8), _mm_unpackhi_epi8(low, high));
    }
};

// How many weights of the run were written by lookups.
template <class Codes, class Out>
DSPARK_DEVICE int64_t look_up_run(const uint8_t* codes, float scale, Out* out, int64_t count) {
    if constexpr (!std::is_same_v<Codes, CodePairs>) return 0;
    constexpr bool kIsFloat = std::is_same_v<Out, float>;
    constexpr int64_t kStep = kIsFloat ? 2 * kLanes : 32;
    if (count < kStep) return 0;
    const std::conditional_t<kIsFloat, ScaledPairs, ScaledHalfPairs<Out>> pairs(scale);
    int64_t done = 0;
    for (; done + kStep <= count; done += kStep) pairs.write(codes + done / 2, out + done);
    return done;
}

#else

template <class Codes, class Out>
DSPARK_DEVICE int64_t look_up_run(const uint8_t*, float, Out*, int64_t) {
    return 0;
}

#endif

// A run of `count` weights that share a scale.
template <class Codes, class Out>
DSPARK_DEVICE void scale_run(const uint8_t* codes, float scale, Out* out, int64_t count) {
    using Code = typename Codes::Code;
    uint8_t each[kChunk];
    int64_t done = look_up_run<Codes>(codes, scale, out, count);
    for (; done + kChunk <= count; done += kChunk) {
        const uint8_t* chunk = Codes::unpack(codes + done / Codes::kPerByte, each);
        for (int i = 0; i < kChunk; ++i) {
            narrow(to_float(Code{chunk[i]}) * scale, &out[done + i]);
        }
    }
    for (; done < count; ++done) narrow(to_float(Codes::at(codes, done)) * scale, &out[done]);
}

}  // namespace dspark::DSPARK_ISA::codes
