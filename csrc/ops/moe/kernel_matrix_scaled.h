// grouped_gemm of mxfp4, and of fp8 with E8M0 scales (mxfp8), with bfloat16 by scaled matrix
// instructions (docs/numerics.md section 13): the hardware takes codes and scales of the weights as
// they are stored. It wants x in e4m3, with a scale for 32 columns of a row, which is too coarse
// for a bfloat16; so a row of x becomes two such rows whose sum it is, and is multiplied twice.
#pragma once

#include "ops/moe/kernel_matrix_sums.h"

namespace dspark::DSPARK_ISA::experts {

// A step of 32 columns is half an instruction. The two pieces of a load are operands of one each
// (mxfp4), or both together that of one (fp8).
template <bool kIsFp4>
struct ScaledWeights : WideTiles<BFloat16> {
    static constexpr int kSteps = kIsFp4 ? 4 : 2;
    static constexpr bool kHasScales = true;
    static constexpr bool kHasE8M0 = true;

    struct Operand {
        uint32_t word[kIsFp4 ? 4 : 8];
    };
    template <int W>
    DSPARK_DEVICE static void spread(Bytes16&) {}
    // Of steps `step` and `step` + 1 of a load.
    DSPARK_DEVICE static Operand operand(const Bytes16 (&pieces)[2], int step) {
        Operand out;
        DSPARK_UNROLL
        for (int w = 0; w < 8 / (kIsFp4 ? 2 : 1); ++w) {
            out.word[w] = pieces[kIsFp4 ? step / 2 : w / 4].word[w % 4];
        }
        return out;
    }
};

// What takes the place of a format, if anything does.
template <class Format>
struct ScaledForm {
    using Type = void;
};
template <>
struct ScaledForm<Fp4Weights<BFloat16, WideTiles<BFloat16>>> {
    using Type = ScaledWeights<true>;
};
template <>
struct ScaledForm<Fp8Weights<Fp8E4M3, BFloat16, WideTiles<BFloat16>, true>> {
    using Type = ScaledWeights<false>;
};
template <class Format>
using ScaledFormOf = typename ScaledForm<Format>::Type;

// ---- x ------------------------------------------------------------------------------------------
// A number v becomes high + low / 16: high is v rounded towards 0 to four binary digits, low the
// rest. With the scale of a block its largest number is 128 or more, but less than 256, so that all
// of a bfloat16 is in its two parts if it is at least 2^-13 of the largest, and no more than 2^-21
// of the largest is lost if it is less.

constexpr int kTopExponent = 7;
constexpr uint32_t kLowShift = 4;  // low is scaled by 2^-4 besides
// The least scale, 2^-122, leaves room for that of the low part.
constexpr uint32_t kLeastScale = 5;

// The e8m0 code of the scale of a block whose largest magnitude has these bits; a block with an
// infinity or a NaN gets the code of NaN, which makes NaN of the row's products.
DSPARK_DEVICE uint32_t block_scale(uint32_t largest) {
    const uint32_t exponent = largest >> 7;  // of bfloat16, biased as e8m0 is
    if (exponent == 0xFFu) return 0xFFu;
    return exponent < kLeastScale + kTopExponent ? kLeastScale : exponent - kTopExponent;
}

// The largest magnitude of the bfloat16 in eight words, by its bits.
DSPARK_DEVICE uint32_t largest_magnitude(const Bytes16& a, const Bytes16& b) {
    uint32_t largest = 0;
    DSPARK_UNROLL
    for (int w = 0; w < 8; ++w) {
        const uint32_t word = w < 4 ? a.word[w] : b.word[w - 4];
        const uint32_t low = word & 0x7FFFu, high = (word >> 16) & 0x7FFFu;
        largest = low > largest ? low : largest;
        largest = high > largest ? high : largest;
    }
    return largest;
}

// Codes of two bfloat16 times `factor`: their high and their low parts.
struct SplitPair {
    uint32_t high, low;
};
DSPARK_DEVICE SplitPair split(uint32_t pair, float factor) {
    const float v[2] = {bit_cast<float>(pair << 16) * factor,
                        bit_cast<float>(pair & 0xFFFF0000u) * factor};
    constexpr uint32_t kDigits = 0xFFF00000u;  // sign, exponent and three digits behind the point
    SplitPair out;
    out.high = narrow_pair(bit_cast<float>(bit_cast<uint32_t>(v[0]) & kDigits),
                           bit_cast<float>(bit_cast<uint32_t>(v[1]) & kDigits));
    float high[2];
    widen_pair(out.high, &high[0], &high[1]);
    constexpr float kUp = 1u << kLowShift;
    out.low = narrow_pair((v[0] - high[0]) * kUp, (v[1] - high[1]) * kUp);
    return out;
}

// What a thread brings of each chunk: 16 columns of rows of x. In shared memory a row has the high
// parts of a chunk, its low parts, and a word of scales of either.
template <int W, class Format, int kTiles>
struct SplitPieces {
    using Shape = Chunk<W, Format, kTiles>;
    using Shared = MatrixShared<W, Format>;
    static constexpr int kRowUnits = Shape::kColumns / 16;
    static constexpr int kOwn = 16 * kTiles * kRowUnits / kThreads;
    static constexpr int kPartWords = Shape::kColumns / 4;  // of a part of a row
    static_assert(16 * kTiles * kRowUnits % kThreads == 0);
    Bytes16 first[kOwn], second[kOwn];

    DSPARK_DEVICE void load(const MatrixLaunch& launch, int chunk, Shared& shared) {
        DSPARK_UNROLL
        for (int i = 0; i < kOwn; ++i) {
            const int64_t source = shared.source[row(i)];
            const int column = chunk * Shape::kColumns + 16 * unit();
            first[i] = load_piece(launch, source, column);
            second[i] = load_piece(launch, source, column + 8);
        }
    }
    DSPARK_DEVICE void store(int chunk, Shared& shared) const {
        DSPARK_UNROLL
        for (int i = 0; i < kOwn; ++i) {
            uint32_t largest = largest_magnitude(first[i], second[i]);
            const uint32_t other = shuffle_xor<W>(largest, 1);
            const uint32_t scale = block_scale(other > largest ? other : largest);
            const float factor = bit_cast<float>((254u - (scale == 0xFFu ? 127u : scale)) << 23);
            uint32_t high[4], low[4];
            DSPARK_UNROLL
            for (int w = 0; w < 4; ++w) {
                const Bytes16& from = w < 2 ? first[i] : second[i];
                const SplitPair even = split(from.word[w % 2 * 2], factor);
                const SplitPair odd = split(from.word[w % 2 * 2 + 1], factor);
                high[w] = even.high | odd.high << 16;
                low[w] = even.low | odd.low << 16;
            }
            uint32_t scales = scale << unit() / 2 * 8;
            DSPARK_UNROLL
            for (int mask = 2; mask < kRowUnits; mask *= 2) scales |= shuffle_xor<W>(scales, mask);
            const int at = chunk % 2 * Shape::kWords + row(i) * Shape::kRowWords;
            shared.x.store4(at + 4 * unit(), high[0], high[1], high[2], high[3]);
            shared.x.store4(at + kPartWords + 4 * unit(), low[0], low[1], low[2], low[3]);
            if (unit() == 0) {
                const uint32_t low_scales = scales - kLowShift * 0x01010101u;
                shared.x.store4(at + 2 * kPartWords, scales, low_scales, 0, 0);
            }
        }
    }

  private:
    DSPARK_DEVICE static int unit() { return thread_idx() % kRowUnits; }
    // Eight lanes that store at a time have one row, or two that lie four apart: no two of them
    // meet in a bank.
    DSPARK_DEVICE static int row(int i) {
        const int number = (thread_idx() + i * kThreads) / kRowUnits;
        return number / 8 * 8 + number % 2 * 4 + number % 8 / 2;
    }
};

// ---- products -----------------------------------------------------------------------------------

// Adds the products of 64 columns, from step `step` on, number kStep of its load, with x in the
// chunk at `begin`.
template <int kStep, int W, class Format, int kTiles>
DSPARK_DEVICE void add_scaled(const typename Format::Operand& codes, uint32_t scales, int step,
                              int begin, ItemSums<W, Format, kTiles>& sums,
                              const MatrixShared<W, Format>& shared) {
    using Shape = Chunk<W, Format, kTiles>;
    constexpr int kPartWords = Shape::kColumns / 4;
    constexpr bool kIsWhole = Format::kSteps % Shape::kSteps == 0;  // chunks, a load
    const int in_chunk = (kIsWhole ? kStep : step) % Shape::kSteps;
    const int upper = lane_index<W>() / 32;
    DSPARK_UNROLL
    for (int c = 0; c < kTiles / 2; ++c) {
        const int row = begin + (32 * c + lane_index<W>() % 32) * Shape::kRowWords;
        uint32_t of_x[4];
        shared.x.load4(row + 2 * kPartWords, of_x[0], of_x[1], of_x[2], of_x[3]);
        DSPARK_UNROLL
        for (int part = 0; part < 2; ++part) {
            const int at = row + part * kPartWords + 8 * in_chunk + 4 * upper;
            uint32_t x[8];
            shared.x.load4(at, x[0], x[1], x[2], x[3]);
            shared.x.load4(at + 8, x[4], x[5], x[6], x[7]);
            scaled_matrix_instruction<kStep>(x, of_x[part] >> 8 * (in_chunk + upper), codes.word,
                                             scales >> 8 * upper, sums.of[0][c].of);
        }
    }
}

}  // namespace dspark::DSPARK_ISA::experts
