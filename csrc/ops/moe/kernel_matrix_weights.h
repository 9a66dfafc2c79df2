// Weights on their way from device memory into the operands of matrix units.
//
// A load brings 64 bytes of each row of a warp, 16 bytes to a lane: one, two or four steps of 32
// columns, by the size of a weight. All weights of a step belong to one block of scales, so their
// products can be summed before they are scaled. Of codes, the 16 bytes of a lane lie in several
// steps: lanes exchange them, until each has 8 codes of every step.
#pragma once

#include "device/half_codes.h"
#include "device/matrix.h"
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

// ---- formats ------------------------------------------------------------------------------------
// A format has
//     Half                  the type that x has, too
//     kSteps                steps of a load
//     spread<W>(piece)      the 16 bytes of a lane become the weights that it has of each step
//     halves(piece, step)   those of one step
//     place(i)              where lanes find columns 8 i .. 8 i + 7 of 32: as piece place(i)
//     kHasScales
//     load_scale(...)       the scale of a block as it is stored, of a row whose scales begin there
//     scale(..., stored)    its value

template <class HalfType>
struct PlainWeights {
    using Half = HalfType;
    static constexpr int kSteps = 1;
    static constexpr bool kHasScales = false;

    template <int W>
    DSPARK_DEVICE static void spread(Bytes16&) {}
    DSPARK_DEVICE static Bytes16 halves(const Bytes16& piece, int) { return piece; }
    DSPARK_DEVICE static int place(int i) { return i; }
};

// Lanes 0, 1, 2, 3 of a row load columns 0 .. 15, 16 .. 31, ...: two lanes have the columns of a
// step. Lanes two apart exchange 8 codes, after which they have columns 0, 16, 8 and 24 .. of both.
template <class Code, class HalfType>
struct Fp8Weights {
    using Half = HalfType;
    static constexpr int kSteps = 2;
    static constexpr bool kHasScales = true;

    template <int W>
    DSPARK_DEVICE static void spread(Bytes16& piece) {
        const bool is_upper = lane_of_row<W>() >= 2;
        uint32_t other[2];
        DSPARK_UNROLL
        for (int i = 0; i < 2; ++i) other[i] = is_upper ? piece.word[i] : piece.word[2 + i];
        exchange<W>(other, 2 * kApart<W>);
        DSPARK_UNROLL
        for (int i = 0; i < 2; ++i) {
            if (is_upper) {
                piece.word[i] = other[i];
            } else {
                piece.word[2 + i] = other[i];
            }
        }
    }
    DSPARK_DEVICE static Bytes16 halves(const Bytes16& piece, int step) {
        const uint32_t codes[2] = {piece.word[2 * step], piece.word[2 * step + 1]};
        return widen_fp8<Code, Half>(codes);
    }
    DSPARK_DEVICE static int place(int i) { return i == 1 ? 2 : i == 2 ? 1 : i; }

    DSPARK_DEVICE static uint32_t load_scale(const ExpertWeights& weight, int64_t begin,
                                             int block) {
        if (weight.scale_is_e8m0) return global_cast<const uint8_t>(weight.scale)[begin + block];
        return global_cast<const uint32_t>(weight.scale)[begin + block];
    }
    DSPARK_DEVICE static float scale(const ExpertWeights& weight, uint32_t stored) {
        if (weight.scale_is_e8m0) return to_float(E8M0{static_cast<uint8_t>(stored)});
        return bit_cast<float>(stored);
    }
};

// Each of the four lanes of a row loads the codes of one step; afterwards each has a word of every
// step, those of columns 8 q .. 8 q + 7 in lane q.
template <class HalfType>
struct Fp4Weights {
    using Half = HalfType;
    static constexpr int kSteps = 4;
    static constexpr bool kHasScales = true;

    template <int W>
    DSPARK_DEVICE static void spread(Bytes16& piece) {
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
    DSPARK_DEVICE static Bytes16 halves(const Bytes16& piece, int step) {
        return widen_fp4<Half>(piece.word[step]);
    }
    DSPARK_DEVICE static int place(int i) { return i; }

    DSPARK_DEVICE static uint32_t load_scale(const ExpertWeights& weight, int64_t begin,
                                             int block) {
        return global_cast<const uint8_t>(weight.scale)[begin + scale_distance(weight, block)];
    }
    DSPARK_DEVICE static float scale(const ExpertWeights&, uint32_t stored) {
        return to_float(E8M0{static_cast<uint8_t>(stored)});
    }
};

// ---- the rows of a warp -------------------------------------------------------------------------

template <int W>
constexpr int kRowTiles = kItemRows / kWarps<W> / 16;
// The first row, in an item, of tile `tile` of the calling warp.
template <int W>
DSPARK_DEVICE int tile_row(int tile) {
    return (warp_index<W>() * kRowTiles<W> + tile) * 16;
}

// Where what a lane loads of the rows of a warp lies in one item. Rows that are an even number
// apart in turns lie a fixed distance apart.
template <int W, class Format>
struct WeightPlaces {
    using Product = MatrixProduct<W, typename Format::Half>;
    int64_t begin;  // of the first row
    int rows_left;  // rows from there on, in turns; 0 or less: there is none

    // first < 0: nothing.
    DSPARK_DEVICE void move_to(const GroupedGemmArgs& args, int64_t expert, int64_t first) {
        const int64_t v = first + tile_row<W>(0) + Product::piece_row(0);
        rows_left = first < 0 ? 0 : static_cast<int>(args.weight.rows - v);
        begin = rows_left > 0 ? row_begin(args, expert, v) : 0;
    }
    // How far piece i of tile t is from the first one, in rows.
    DSPARK_DEVICE static int distance(int t, int i) {
        return 16 * t + Product::piece_row(i) - Product::piece_row(0);
    }
};

// The loads of a warp: kLoads are on their way, and take their turns.
template <int W, class Format>
struct WeightRing {
    using Product = MatrixProduct<W, typename Format::Half>;
    static constexpr int kLoads = loads_on_their_way(16 / Format::kSteps);
    static constexpr int kTiles = kRowTiles<W>;
    Bytes16 piece[kLoads][kTiles][Product::kPieces];

    // Load `number` of the rows takes the turn.
    template <int kTurn>
    DSPARK_DEVICE void load(const GroupedGemmArgs& args, const WeightPlaces<W, Format>& places,
                            int number) {
        const ExpertWeights& weight = args.weight;
        const int64_t byte = int64_t{64} * number + 16 * lane_of_row<W>();
        const int64_t begin = places.begin + byte_distance(weight, byte);
        const bool is_inside = byte < weight.row_bytes;
        DSPARK_UNROLL
        for (int t = 0; t < kTiles; ++t) {
            DSPARK_UNROLL
            for (int i = 0; i < Product::kPieces; ++i) {
                const int rows = places.distance(t, i);
                piece[kTurn][t][i] = is_inside && rows < places.rows_left
                                         ? load16(weight.data, begin + row_distance(args, rows))
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
                out[t].piece[i] = Format::halves(piece[kTurn][t][i], kStep);
            }
        }
    }
};

// The scales of the four rows whose sums a lane has, of each tile: those of one step, and those
// that come next, on their way while the others are used.
template <int W, class Format>
struct WeightScales {
    using Product = MatrixProduct<W, typename Format::Half>;
    static constexpr int kTiles = kRowTiles<W>;
    int64_t expert_begin;
    int begin[kTiles][4];  // from there on; those of the first row where there is none
    int next_block;        // to be fetched
    uint32_t now[kTiles][4];
    uint32_t next[kTiles][4];

    DSPARK_DEVICE void move_to(const GroupedGemmArgs& args, int64_t expert, int64_t first) {
        expert_begin = scale_begin(args, expert, 0);
        next_block = 0;
        DSPARK_UNROLL
        for (int t = 0; t < kTiles; ++t) {
            DSPARK_UNROLL
            for (int r = 0; r < 4; ++r) {
                const int64_t v = first + tile_row<W>(t) + Product::sum_row(0) + r;
                const bool is_row = v < args.weight.rows;
                begin[t][r] = static_cast<int>(scale_begin(args, 0, is_row ? v : 0));
                next[t][r] = 0;
            }
        }
        fetch(args.weight, 0);
    }
    // Before step `step` is multiplied.
    DSPARK_DEVICE void advance(const ExpertWeights& weight, int step) {
        DSPARK_UNROLL
        for (int t = 0; t < kTiles; ++t) {
            DSPARK_UNROLL
            for (int r = 0; r < 4; ++r) now[t][r] = next[t][r];
        }
        fetch(weight, step + 1);
    }
    DSPARK_DEVICE float scale(const ExpertWeights& weight, int tile, int row) const {
        return Format::scale(weight, now[tile][row]);
    }

  private:
    // The scales of `step`, unless they are there already.
    DSPARK_DEVICE void fetch(const ExpertWeights& weight, int step) {
        if (32 * step < next_block * static_cast<int>(weight.block_columns)) return;
        if (next_block >= weight.scale_columns) return;
        DSPARK_UNROLL
        for (int t = 0; t < kTiles; ++t) {
            DSPARK_UNROLL
            for (int r = 0; r < 4; ++r) {
                next[t][r] = Format::load_scale(weight, expert_begin + begin[t][r], next_block);
            }
        }
        ++next_block;
    }
};
template <int W, class Half>
struct WeightScales<W, PlainWeights<Half>> {
    DSPARK_DEVICE void move_to(const GroupedGemmArgs&, int64_t, int64_t) {}
    DSPARK_DEVICE void advance(const ExpertWeights&, int) {}
};

}  // namespace dspark::DSPARK_ISA::experts
