// Products of matrices of bfloat16 or float16 by the matrix units of the hardware, a warp at a
// time: 16 rows (of weights) by kColumns columns (tokens, requests), summed in float32 over a depth
// in steps of 32. Both lie with consecutive depth in memory, as [rows, depth] and [columns, depth].
//
// A sum depends on its row, its column and the steps before, not on where in the tile they stand or
// what stands beside them: the same bits for every batch and every tiling. They are not the same
// bits on every chip: in which order the depths of one instruction are added, and with how many
// bits, is the hardware's.
//
// A lane brings a piece of a row or a column, 8 elements of consecutive depth, so that memory is
// read in accesses of 16 bytes. An instruction is 16 deep and takes half of each piece: a step sums
// first over the depths j with j mod 8 < 4, then over the others. To the hardware they have other
// numbers, which does not matter as long as rows and columns agree.
#pragma once

#include <cstdint>

#include "device/float_type.h"
#include "device/lanes.h"

namespace dspark::DSPARK_ISA {

// A matrix in device memory whose rows are 16-byte aligned: the address is, and stride and depth
// are multiples of 8.
template <class Half>
struct HalfMatrix {
    Global<const Half> data;
    int64_t rows;
    int64_t stride;  // elements from one row to the next
    int depth;

    // Eight elements of a row from `first` on, a multiple of 8; zeros outside of the matrix.
    DSPARK_DEVICE Bytes16 piece(int64_t row, int first) const {
        if (row >= rows || first >= depth) return Bytes16{};
        return load16(data, (row * stride + first) * 2);
    }
};

// Kernels take this path `if constexpr (kHasMatrixUnit<W>)` and have another one for the hardware
// without.
template <int W, class Half>
struct MatrixProduct {
    static constexpr int kRows = 16;
    static constexpr int kColumns = W == 64 ? 16 : 8;
    static constexpr int kDepth = 32;
    static constexpr int kPieces = 64 / W;              // of the rows, in one lane
    static constexpr int kSums = kRows * kColumns / W;  // 4 where there is a unit

    // What one lane holds of 16 rows, and of kColumns columns, over a depth of 32.
    struct Rows {
        Bytes16 piece[kPieces];
    };
    struct Columns {
        Bytes16 piece;
    };
    struct Sums {
        float value[kSums];
    };

    // The row of piece i, the column, and the first depth of the pieces of this lane.
    DSPARK_DEVICE static int piece_row(int i) { return piece_column() + 8 * i; }
    DSPARK_DEVICE static int piece_column() {
        return W == 64 ? lane_index<W>() % 16 : lane_index<W>() / 4;
    }
    DSPARK_DEVICE static int piece_depth() {
        return 8 * (W == 64 ? lane_index<W>() / 16 : lane_index<W>() % 4);
    }
    // The row and the column of sum i of this lane.
    DSPARK_DEVICE static int sum_row(int i) {
        return W == 64 ? lane_index<W>() / 16 * 4 + i : lane_index<W>() / 4 + i / 2 * 8;
    }
    DSPARK_DEVICE static int sum_column(int i) {
        return W == 64 ? lane_index<W>() % 16 : lane_index<W>() % 4 * 2 + i % 2;
    }

    // Rows row .. row + 15 of a matrix over the depths depth .. depth + 31.
    DSPARK_DEVICE static Rows load_rows(const HalfMatrix<Half>& matrix, int64_t row, int depth) {
        Rows out;
        for (int i = 0; i < kPieces; ++i) {
            out.piece[i] = matrix.piece(row + piece_row(i), depth + piece_depth());
        }
        return out;
    }
    DSPARK_DEVICE static Columns load_columns(const HalfMatrix<Half>& matrix, int64_t column,
                                              int depth) {
        return {matrix.piece(column + piece_column(), depth + piece_depth())};
    }

    // In shared memory, rows and columns are words of two elements, the first one in the low half,
    // zeros behind the depth up to a multiple of 32; from one to the next it is words_per_line(),
    // with which no two lanes of an access meet in a bank.
    DSPARK_HOST_DEVICE static constexpr int words_per_line(int depth) {
        const int words = (depth + kDepth - 1) / kDepth * (kDepth / 2);
        return W == 64 ? words + 4 : words % 32 == 0 ? words + 16 : words;
    }
    template <int N>
    DSPARK_DEVICE static Rows load_rows(const SharedArray<uint32_t, N>& words, int row, int stride,
                                        int depth) {
        Rows out;
        for (int i = 0; i < kPieces; ++i) {
            out.piece[i] = shared_piece(words, row + piece_row(i), stride, depth);
        }
        return out;
    }
    template <int N>
    DSPARK_DEVICE static Columns load_columns(const SharedArray<uint32_t, N>& words, int column,
                                              int stride, int depth) {
        return {shared_piece(words, column + piece_column(), stride, depth)};
    }

    // sums += rows * columns over one step. All lanes of the warp must call.
    DSPARK_DEVICE static void multiply(const Rows& rows, const Columns& columns, Sums& sums) {
        for (int half = 0; half < 2; ++half) {
            uint32_t row_words[kMatrixRowWords<W>];
            for (int w = 0; w < kMatrixRowWords<W>; ++w) {
                row_words[w] = rows.piece[w % kPieces].word[2 * half + w / kPieces];
            }
            const uint32_t column_words[2] = {columns.piece.word[2 * half],
                                              columns.piece.word[2 * half + 1]};
            matrix_instruction<W, Half>(row_words, column_words, sums.value);
        }
    }

  private:
    template <int N>
    DSPARK_DEVICE static Bytes16 shared_piece(const SharedArray<uint32_t, N>& words, int line,
                                              int stride, int depth) {
        Bytes16 out;
        words.load4(line * stride + (depth + piece_depth()) / 2, out.word[0], out.word[1],
                    out.word[2], out.word[3]);
        return out;
    }
};

}  // namespace dspark::DSPARK_ISA
