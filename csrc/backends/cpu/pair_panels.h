// Panels of 16 rows of weights as vectors of pairs of bf16 numbers: rows transposed in words of
// four bytes, and codes turned into bf16 numbers, which hold them exactly.
#pragma once

#include <cstring>
#include <type_traits>

#include "backends/cpu/simd_pairs.h"
#include "device/formats.h"
#include "device/narrow.h"

#if defined(__AVX512F__)
#define DSPARK_VBMI_TARGET __attribute__((target("avx512vbmi")))
#else
#define DSPARK_VBMI_TARGET
#endif

namespace dspark::DSPARK_ISA::pairs {

constexpr int kPanelRows = 16;
constexpr int kBlockWords = 16;  // of a row that are transposed at a time

// ---- rows to panels -----------------------------------------------------------------------------

#if defined(__AVX512F__)

// out[w][r] = rows[r][w] for 16 words of 16 rows.
DSPARK_DEVICE void transpose_words(const char* const (&rows)[kPanelRows], uint32_t* out) {
    __m512i a[16], b[16];
    for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_si512(rows[i]);
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_maskz_unpacklo_epi32(0xFFFF, a[i], a[i + 1]);
        b[i + 1] = _mm512_maskz_unpackhi_epi32(0xFFFF, a[i], a[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        a[i] = _mm512_maskz_unpacklo_epi64(0xFF, b[i], b[i + 2]);
        a[i + 1] = _mm512_maskz_unpackhi_epi64(0xFF, b[i], b[i + 2]);
        a[i + 2] = _mm512_maskz_unpacklo_epi64(0xFF, b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_maskz_unpackhi_epi64(0xFF, b[i + 1], b[i + 3]);
    }
    // Lane l of a[4 q + w] now has words 4 l + w of rows 4 q .. 4 q + 3.
    for (int w = 0; w < 4; ++w) {
        const __m512i even01 = _mm512_maskz_shuffle_i32x4(0xFFFF, a[w], a[4 + w], 0x88);
        const __m512i odd01 = _mm512_maskz_shuffle_i32x4(0xFFFF, a[w], a[4 + w], 0xDD);
        const __m512i even23 = _mm512_maskz_shuffle_i32x4(0xFFFF, a[8 + w], a[12 + w], 0x88);
        const __m512i odd23 = _mm512_maskz_shuffle_i32x4(0xFFFF, a[8 + w], a[12 + w], 0xDD);
        const auto put = [&](int word, __m512i v) { _mm512_storeu_si512(out + 16 * word, v); };
        put(w, _mm512_maskz_shuffle_i32x4(0xFFFF, even01, even23, 0x88));
        put(8 + w, _mm512_maskz_shuffle_i32x4(0xFFFF, even01, even23, 0xDD));
        put(4 + w, _mm512_maskz_shuffle_i32x4(0xFFFF, odd01, odd23, 0x88));
        put(12 + w, _mm512_maskz_shuffle_i32x4(0xFFFF, odd01, odd23, 0xDD));
    }
}

#else

DSPARK_DEVICE void transpose_words(const char* const (&rows)[kPanelRows], uint32_t* out) {
    for (int r = 0; r < kPanelRows; ++r) {
        uint32_t words[kBlockWords];
        memcpy(words, rows[r], sizeof(words));
        for (int w = 0; w < kBlockWords; ++w) out[w * kPanelRows + r] = words[w];
    }
}

#endif

// Words 0 .. words - 1 of 16 rows, given as the `bytes` that they have; null rows and what lies
// behind those bytes count as zeros. `out` has room for a multiple of kBlockWords words. What lies
// `fetch` bytes behind the rows is needed next.
inline void pack_rows(const char* const (&rows)[kPanelRows], int64_t bytes, int words,
                      int64_t fetch, uint32_t* out) {
    constexpr int64_t kBytes = kBlockWords * sizeof(uint32_t);
    for (int w = 0; w < words; w += kBlockWords, out += kBlockWords * kPanelRows) {
        const int64_t at = w * int64_t{sizeof(uint32_t)};
        const int64_t left = bytes - at;
        char whole[kPanelRows][kBytes];
        const char* from[kPanelRows];
        for (int r = 0; r < kPanelRows; ++r) {
            from[r] = rows[r] + at;
            if (rows[r] != nullptr && left >= kBytes) {
                __builtin_prefetch(from[r] + fetch, 0, 1);
                continue;
            }
            memset(whole[r], 0, kBytes);
            if (rows[r] != nullptr && left > 0) {
                memcpy(whole[r], from[r], static_cast<size_t>(left));
            }
            from[r] = whole[r];
        }
        transpose_words(from, out);
    }
}

// ---- codes to pairs -----------------------------------------------------------------------------

// bf16 numbers of all codes of a byte, and the bytes of the first 128.
template <class Code>
struct ByteTable {
    uint16_t half[256];
    alignas(64) uint8_t low[128];
    alignas(64) uint8_t high[128];
    ByteTable() {
        for (int i = 0; i < 256; ++i) {
            BFloat16 number;
            narrow(to_float(Code{static_cast<uint8_t>(i)}), &number);
            half[i] = number.bits;
            low[i % 128] = static_cast<uint8_t>(half[i % 128]);
            high[i % 128] = static_cast<uint8_t>(half[i % 128] >> 8);
        }
    }
    static const ByteTable& get() {
        static const ByteTable table;
        return table;
    }
};

// Words of four codes each to two vectors of pairs.
template <class Code>
struct ByteCodes {
    static constexpr int kPairsOfWord = 2;

    static void unpack(const uint32_t* words, int count, uint32_t* out) {
        const uint16_t* half = ByteTable<Code>::get().half;
        for (int w = 0; w < count; ++w, words += kPanelRows, out += 2 * kPanelRows) {
            for (int r = 0; r < kPanelRows; ++r) {
                const uint32_t word = words[r];
                out[r] = half[word & 0xFF] | uint32_t{half[word >> 8 & 0xFF]} << 16;
                out[kPanelRows + r] = half[word >> 16 & 0xFF] | uint32_t{half[word >> 24]} << 16;
            }
        }
    }

#if defined(__AVX512F__)
    // The same by lookups of the two bytes of the magnitudes.
    DSPARK_VBMI_TARGET static void look_up(const uint32_t* words, int count, uint32_t* out) {
        const ByteTable<Code>& table = ByteTable<Code>::get();
        const __m512i low0 = _mm512_load_si512(table.low);
        const __m512i low1 = _mm512_load_si512(table.low + 64);
        const __m512i high0 = _mm512_load_si512(table.high);
        const __m512i high1 = _mm512_load_si512(table.high + 64);
        const __m512i sign = _mm512_set1_epi8(-128);
        // Of each word the bytes 0 and 1, then 2 and 3, each before its high byte (+ 64).
        const __m512i pick0 = _mm512_add_epi32(
            _mm512_set1_epi32(0x41014000),
            _mm512_maskz_mullo_epi32(
                0xFFFF, _mm512_set1_epi32(0x04040404),
                _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)));
        const __m512i pick1 = _mm512_add_epi32(pick0, _mm512_set1_epi32(0x02020202));
        for (int w = 0; w < count; ++w, words += kPanelRows, out += 2 * kPanelRows) {
            const __m512i codes = _mm512_loadu_si512(words);
            __m512i lows = _mm512_permutex2var_epi8(low0, codes, low1);
            __m512i highs = _mm512_permutex2var_epi8(high0, codes, high1);
            highs = _mm512_or_si512(highs, _mm512_and_si512(codes, sign));
            if (kMinusZeroIsNaN) {
                const __mmask64 is_nan = _mm512_cmpeq_epi8_mask(codes, sign);
                highs = _mm512_mask_mov_epi8(highs, is_nan, _mm512_set1_epi8(0x7F));
                lows = _mm512_mask_mov_epi8(lows, is_nan, _mm512_set1_epi8(-64));
            }
            _mm512_storeu_si512(out, _mm512_permutex2var_epi8(lows, pick0, highs));
            _mm512_storeu_si512(out + kPanelRows, _mm512_permutex2var_epi8(lows, pick1, highs));
        }
    }

  private:
    static constexpr bool kMinusZeroIsNaN = std::is_same_v<Code, Fp8E4M3Fnuz>;
#endif
};

// Words of eight codes each to four vectors of pairs; as many words from `next` on are fetched.
// Here, since rows meet a byte of weights so often that fetching meanwhile takes more than it
// gives.
struct HalfByteCodes {
    static constexpr int kPairsOfWord = 4;

#if defined(__AVX512F__)
    static void unpack(const uint32_t* words, int count, const char* next, uint32_t* out) {
        const uint16_t* half = Table::get().half;
        alignas(64) uint32_t even[16], odd[16];
        for (int i = 0; i < 16; ++i) {
            even[i] = half[i];
            odd[i] = even[i] << 16;
        }
        // The lookup takes the low four bits of each word and leaves out the others.
        const __m512i low = _mm512_load_si512(even), high = _mm512_load_si512(odd);
        for (int w = 0; w < count; ++w, words += kPanelRows) {
            __builtin_prefetch(next + w * 64);
            __m512i codes = _mm512_loadu_si512(words);
            for (int pair = 0; pair < kPairsOfWord; ++pair, out += kPanelRows) {
                const __m512i next = _mm512_maskz_srli_epi32(0xFFFF, codes, 4);
                _mm512_storeu_si512(
                    out, _mm512_or_si512(_mm512_maskz_permutexvar_epi32(0xFFFF, codes, low),
                                         _mm512_maskz_permutexvar_epi32(0xFFFF, next, high)));
                codes = _mm512_maskz_srli_epi32(0xFFFF, codes, 8);
            }
        }
    }
#else
    static void unpack(const uint32_t* words, int count, const char*, uint32_t* out) {
        const uint16_t* half = Table::get().half;
        for (int w = 0; w < count; ++w, words += kPanelRows) {
            for (int pair = 0; pair < kPairsOfWord; ++pair, out += kPanelRows) {
                for (int r = 0; r < kPanelRows; ++r) {
                    const uint32_t codes = words[r] >> 8 * pair;
                    out[r] = half[codes & 0xF] | uint32_t{half[codes >> 4 & 0xF]} << 16;
                }
            }
        }
    }
#endif

  private:
    using Table = ByteTable<Fp4E2M1>;
};

}  // namespace dspark::DSPARK_ISA::pairs
