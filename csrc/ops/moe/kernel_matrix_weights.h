// Weights on their way from device memory into the operands of matrix units.
//
// A load brings 64 bytes of each row of a warp, 16 bytes to a lane: one, two or four steps of 32
// columns, by the size of a weight. All weights of a step belong to one block of scales, so their
// products can be summed before they are scaled. Of codes, the 16 bytes of a lane lie in several
// steps: lanes exchange them, until each has 8 codes of every step.
#pragma once

#include "device/half_codes.h"
#include "device/matrix.h"
#include "device/matrix_wide.h"
#include "ops/moe/kernel_matrix_items.h"

namespace dspark::DSPARK_ISA::experts {

using dspark::experts::loads_on_their_way;

// The four lanes that share a row stand kApart lanes from each other.
template <int W>
constexpr int kApart = W == 64 ? 16 : 1;
template <int W>
DSPARK_DEVICE int lane_of_row() {
    return W == 64 ? lane_index<W>() / 16 : lane_index<W>() % 4;
}

// Two words for two of the lane `mask` away.
template <int W>
DSPARK_DEVICE void exchange(uint32_t (&words)[2], int mask) {
    for (uint32_t& word : words) word = shuffle_xor<W>(word, mask);
}

// Of two lanes `mask` apart the lower one gets the first half of both pieces, the upper one the
// second half of both.
template <int W>
DSPARK_DEVICE void exchange_halves(Bytes16& piece, bool is_upper, int mask) {
    uint32_t other[2];
    DSPARK_UNROLL
    for (int i = 0; i < 2; ++i) other[i] = is_upper ? piece.word[i] : piece.word[2 + i];
    exchange<W>(other, mask);
    DSPARK_UNROLL
    for (int i = 0; i < 2; ++i) {
        if (is_upper) {
            piece.word[i] = other[i];
        } else {
            piece.word[2 + i] = other[i];
        }
    }
}

// ---- formats ------------------------------------------------------------------------------------
// A format has
//     Half                     the type that x has, too
//     Product<W>               how it is multiplied
//     kSteps                   steps of a load
//     chunk<W>(i)              which 16 of the 64 bytes of a row are piece i of a lane
//     spread<W>(piece)         they become the weights that it has of each step
//     halves(pieces, i, step)  piece i of the operand in one step, from those of a load
//     place(i)                 where lanes find columns 8 i .. 8 i + 7 of 32: as piece place(i)
//     kHasScales
//     kHasE8M0                 its scales are E8M0 and taken a load at a time

// The lanes of a row, 4 or 2 (wide), load the chunks of a row in turns.
template <class HalfType>
struct NarrowTiles {
    using Half = HalfType;
    template <int W>
    using Product = MatrixProduct<W, Half>;
    template <int W>
    DSPARK_DEVICE static int chunk(int) {
        return lane_of_row<W>();
    }
};
template <class HalfType>
struct WideTiles {
    using Half = HalfType;
    template <int W>
    using Product = WideProduct<Half>;
    template <int W>
    DSPARK_DEVICE static int chunk(int i) {
        return 2 * i + lane_index<W>() / 32;
    }
};

template <class HalfType>
struct PlainWeights : NarrowTiles<HalfType> {
    static constexpr int kSteps = 1;
    static constexpr bool kHasScales = false;
    static constexpr bool kHasE8M0 = false;

    template <int W>
    DSPARK_DEVICE static void spread(Bytes16&) {}
    template <int N>
    DSPARK_DEVICE static Bytes16 halves(const Bytes16 (&pieces)[N], int i, int) {
        return pieces[i];
    }
    DSPARK_DEVICE static int place(int i) { return i; }
};

// Narrow: lanes 0, 1, 2, 3 of a row load columns 0 .. 15, 16 .. 31, ...: two lanes have the columns
// of a step. Lanes two apart exchange 8 codes, after which they have columns 0, 16, 8 and 24 .. of
// both. Wide: lanes 0 and 1 load the columns 0 .. 15 and 16 .. 31 of each step. kMayBeScaled: all
// scales are E8M0; it only tells kernels apart.
template <class Code, class HalfType, class Tiles = NarrowTiles<HalfType>,
          bool kMayBeScaled = false>
struct Fp8Weights : Tiles {
    using Half = HalfType;
    static constexpr int kSteps = 2;
    static constexpr bool kHasScales = true;
    static constexpr bool kHasE8M0 = false;
    static constexpr bool kIsWide = std::is_same_v<Tiles, WideTiles<Half>>;

    template <int W>
    DSPARK_DEVICE static void spread(Bytes16& piece) {
        if (!kIsWide) exchange_halves<W>(piece, lane_of_row<W>() >= 2, 2 * kApart<W>);
    }
    template <int N>
    DSPARK_DEVICE static Bytes16 halves(const Bytes16 (&pieces)[N], int i, int step) {
        const uint32_t* words = kIsWide ? pieces[step].word + 2 * i : pieces[i].word + 2 * step;
        const uint32_t codes[2] = {words[0], words[1]};
        return widen_fp8<Code, Half>(codes);
    }
    DSPARK_DEVICE static int place(int i) { return i == 1 ? 2 : i == 2 ? 1 : i; }
};

// Narrow: each of the four lanes of a row loads the codes of one step; afterwards each has a word
// of every step, those of columns 8 q .. 8 q + 7 in lane q. Wide: lanes 0 and 1 load steps 0 and 1,
// then 2 and 3; afterwards they have the columns 0 .. 15 and 16 .. 31 of both.
template <class HalfType, class Tiles = NarrowTiles<HalfType>>
struct Fp4Weights : Tiles {
    using Half = HalfType;
    static constexpr int kSteps = 4;
    static constexpr bool kHasScales = true;
    static constexpr bool kHasE8M0 = true;
    static constexpr bool kIsWide = std::is_same_v<Tiles, WideTiles<Half>>;

    template <int W>
    DSPARK_DEVICE static void spread(Bytes16& piece) {
        if (kIsWide) return exchange_halves<W>(piece, lane_index<W>() >= 32, 32);
        const bool is_upper = lane_of_row<W>() >= 2;
        const bool is_odd = lane_of_row<W>() % 2 != 0;
        uint32_t other[2], first[2], second[2];
        DSPARK_UNROLL
        for (int i = 0; i < 2; ++i) other[i] = is_upper ? piece.word[i] : piece.word[2 + i];
        exchange<W>(other, 2 * kApart<W>);
        DSPARK_UNROLL
        for (int i = 0; i < 2; ++i) {  // of two steps two apart: two words of each
            first[i] = is_upper ? other[i] : piece.word[i];
            second[i] = is_upper ? piece.word[2 + i] : other[i];
        }
        other[0] = is_odd ? first[0] : first[1];
        other[1] = is_odd ? second[0] : second[1];
        exchange<W>(other, kApart<W>);
        const uint32_t own[2] = {is_odd ? first[1] : first[0], is_odd ? second[1] : second[0]};
        DSPARK_UNROLL
        for (int i = 0; i < 2; ++i) {
            piece.word[2 * i] = is_odd ? other[i] : own[i];
            piece.word[2 * i + 1] = is_odd ? own[i] : other[i];
        }
    }
    template <int N>
    DSPARK_DEVICE static Bytes16 halves(const Bytes16 (&pieces)[N], int i, int step) {
        return widen_fp4<Half>(kIsWide ? pieces[step / 2].word[step % 2 * 2 + i]
                                       : pieces[i].word[step]);
    }
    DSPARK_DEVICE static int place(int i) { return kIsWide && (i == 1 || i == 2) ? 3 - i : i; }
};

// ---- the rows of a warp -------------------------------------------------------------------------

template <int W, class Format>
using ProductOf = typename Format::template Product<W>;
template <int W, class Format>
constexpr int kRowTiles = kItemRows / kWarps<W> / ProductOf<W, Format>::kRows;
// The first row, in an item, of tile `tile` of the calling warp.
template <int W, class Format>
DSPARK_DEVICE int tile_row(int tile) {
    return (warp_index<W>() * kRowTiles<W, Format> + tile) * ProductOf<W, Format>::kRows;
}

// Where what a lane loads of the rows of a warp lies in one item. Rows that are an even number
// apart in turns lie a fixed distance apart.
template <int W, class Format>
struct WeightPlaces {
    using Product = ProductOf<W, Format>;
    int64_t begin;  // of the first row
    int rows_left;  // rows from there on, in turns; 0 or less: there is none

    // first < 0: nothing.
    DSPARK_DEVICE void move_to(const GroupedGemmArgs& args, int64_t expert, int64_t first) {
        const int64_t v = first + tile_row<W, Format>(0) + Product::piece_row(0);
        rows_left = first < 0 ? 0 : static_cast<int>(args.weight.rows - v);
        begin = rows_left > 0 ? row_begin(args, expert, v) : 0;
    }
    // How far piece i of tile t is from the first one, in rows.
    DSPARK_DEVICE static int distance(int t, int i) {
        return Product::kRows * t + Product::piece_row(i) - Product::piece_row(0);
    }
};

// The loads of a warp: kLoads are on their way, and take their turns.
template <int W, class Format>
struct WeightRing {
    using Product = ProductOf<W, Format>;
    static constexpr int kLoads = loads_on_their_way(16 / Format::kSteps);
    static constexpr int kTiles = kRowTiles<W, Format>;
    Bytes16 piece[kLoads][kTiles][Product::kPieces];

    // Load `number` of the rows takes the turn.
    template <int kTurn>
    DSPARK_DEVICE void load(const GroupedGemmArgs& args, const WeightPlaces<W, Format>& places,
                            int number) {
        const ExpertWeights& weight = args.weight;
        DSPARK_UNROLL
        for (int t = 0; t < kTiles; ++t) {
            DSPARK_UNROLL
            for (int i = 0; i < Product::kPieces; ++i) {
                const int64_t byte = int64_t{64} * number + 16 * Format::template chunk<W>(i);
                const int64_t begin = places.begin + byte_distance(weight, byte);
                const int rows = places.distance(t, i);
                piece[kTurn][t][i] =
                    byte < weight.row_bytes && rows < places.rows_left
                        ? load16_once(weight.data, begin + row_distance(args, rows))
                        : Bytes16{};
            }
        }
    }
    // The first loads, all turns.
    template <int kTurn = 0>
    DSPARK_DEVICE void start(const GroupedGemmArgs& args, const WeightPlaces<W, Format>& places) {
        if constexpr (kTurn < kLoads) {
            load<kTurn>(args, places, kTurn);
            start<kTurn + 1>(args, places);
        }
    }
    template <int kTurn>
    DSPARK_DEVICE void spread() {
        DSPARK_UNROLL
        for (int t = 0; t < kTiles; ++t) {
            DSPARK_UNROLL
            for (int i = 0; i < Product::kPieces; ++i) {
                Format::template spread<W>(piece[kTurn][t][i]);
            }
        }
    }
    template <int kTurn, int kStep>
    DSPARK_DEVICE void rows(typename Product::Rows (&out)[kTiles]) const {
        DSPARK_UNROLL
        for (int t = 0; t < kTiles; ++t) {
            DSPARK_UNROLL
            for (int i = 0; i < Product::kPieces; ++i) {
                out[t].piece[i] = Format::halves(piece[kTurn][t], i, kStep);
            }
        }
    }
};

}  // namespace dspark::DSPARK_ISA::experts
