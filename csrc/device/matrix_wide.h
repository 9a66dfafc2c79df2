// Products of matrices as in matrix.h by the wide instructions of warps of 64: 32 rows (of weights)
// by 32 columns (tokens). An instruction does twice the work of one of matrix.h, and a lane has the
// sums of one row. In which order products are added differs, so the bits are not those of
// matrix.h.
#pragma once

#include <cstdint>

#include "device/matrix.h"

namespace dspark::DSPARK_ISA {

// The columns are the left matrix of an instruction, the rows the right one. A lane brings two
// pieces of its row; a step sums over the first pieces of all lanes, then over the second.
template <class Half>
struct WideProduct {
    static constexpr int kRows = 32;
    static constexpr int kColumns = 32;
    static constexpr int kDepth = 32;
    static constexpr int kPieces = 2;   // of the row, in one lane
    static constexpr int kSumRows = 1;  // of which a lane has sums
    static constexpr int kSums = 16;    // in one lane

    struct Rows {
        Bytes16 piece[kPieces];
    };
    struct Columns {
        Bytes16 part[kPieces];
    };
    struct Sums {
        float of[4][4];  // sum i is of[i / 4][i % 4]
    };

    // The row of all pieces of this lane, and the first depth of piece i.
    DSPARK_DEVICE static int piece_row(int) { return lane_index<64>() % 32; }
    DSPARK_DEVICE static int piece_depth(int i) { return 8 * (2 * i + lane_index<64>() / 32); }
    // The row of sum i of this lane: its first, counted from there, and its column.
    DSPARK_DEVICE static int sum_row(int) { return lane_index<64>() % 32; }
    DSPARK_HOST_DEVICE static constexpr int row_of_sum(int) { return 0; }
    DSPARK_DEVICE static int sum_column(int i) {
        return 8 * (i / 4) + 4 * (lane_index<64>() / 32) + i % 4;
    }

    // The depths first .. first + 31 of two times 16 columns, as MatrixProduct<64, Half> has put
    // them side by side into shared memory. No lanes meet in a bank.
    template <int N>
    DSPARK_DEVICE static Columns load_columns(const SharedArray<uint32_t, N>& words, int begin,
                                              int first, int depth) {
        const int column = begin + lane_index<64>() % 32 * MatrixProduct<64, Half>::stride(depth);
        Columns out;
        DSPARK_UNROLL
        for (int i = 0; i < kPieces; ++i) {
            Bytes16& part = out.part[i];
            words.load4(column + (first + piece_depth(i)) / 2, part.word[0], part.word[1],
                        part.word[2], part.word[3]);
        }
        return out;
    }

    // sums += rows * columns over one step. All lanes of the warp must call.
    DSPARK_DEVICE static void multiply(const Rows& rows, const Columns& columns, Sums& sums) {
        DSPARK_UNROLL
        for (int i = 0; i < kPieces; ++i) {
            wide_matrix_instruction<Half>(columns.part[i].word, rows.piece[i].word, sums.of);
        }
    }
};

}  // namespace dspark::DSPARK_ISA
