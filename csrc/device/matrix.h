// Products of matrices of bfloat16 or float16 by the matrix units of the hardware, a warp at a
// time: 16 rows (of weights) by 16 columns (tokens, requests), summed in float32 over a depth in
// steps of
// 32. Both lie with consecutive depth in memory, as [rows, depth] and [columns, depth].
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
//
// In warps of 32 the columns are the left matrix of an instruction and the rows, eight at a time,
// the right one: then both halves of a piece are registers side by side as they are loaded, and
// need not be moved. In warps of 64 the rows are on the left.
#pragma once

#include <cstdint>

#include "device/float_type.h"
#include "device/lanes.h"

namespace dspark::DSPARK_ISA {

// A matrix in device memory, read once, whose rows are 16-byte aligned: the address is, and stride
// and depth are multiples of 8.
template <class Half>
struct HalfMatrix {
    Global<const Half> data;
    int64_t rows;
    int64_t stride;  // elements from one row to the next
    int depth;

    // Eight elements of a row from `first` on, a multiple of 8; zeros outside of the matrix.
    DSPARK_DEVICE Bytes16 piece(int64_t row, int first) const {
        if (row >= rows || first >= depth) return Bytes16{};
        return load16_once(data, (row * stride + first) * 2);
    }
};

// Kernels take this path `if constexpr (kHasMatrixUnit<W>)` and have another one for the hardware
// without.
template <int W, class Half>
struct MatrixProduct {
    static constexpr int kRows = 16;
    static constexpr int kColumns = 16;
    static constexpr int kDepth = 32;
    static constexpr int kPieces = 64 / W;              // of the rows, in one lane
    static constexpr int kSums = kRows * kColumns / W;  // in one lane: 4 rows of 2 columns or of 1
    static constexpr int kSumRows = 4;

    // What one lane holds of the rows and of the columns over one step, and of the sums.
    struct Rows {
        Bytes16 piece[kPieces];
    };
    struct Columns {
        Bytes16 part[kPieces];  // warps of 32: as an instruction takes it; of 64: a piece
    };
    struct Sums {
        float of[kSums / 4][4];  // of an instruction each; sum i is of[i / 4][i % 4]
    };

    // The row of piece i, and the first depth of the pieces of this lane.
    DSPARK_DEVICE static int piece_row(int i) {
        return W == 64 ? line() : line() / 2 * 4 + line() % 2 + 2 * i;
    }
    DSPARK_DEVICE static int piece_depth() {
        return 8 * (W == 64 ? lane_index<W>() / 16 : lane_index<W>() % 4);
    }
    // The row and the column of sum i of this lane.
    DSPARK_DEVICE static int sum_row(int i) {
        return W == 64 ? lane_index<W>() / 16 * 4 + i : lane_index<W>() % 4 * 4 + i % 2 + i / 4 * 2;
    }
    // Which of the lane's rows, counted from that of sum 0, it is.
    DSPARK_HOST_DEVICE static constexpr int row_of_sum(int i) {
        return W == 64 ? i : i % 2 + i / 4 * 2;
    }
    DSPARK_DEVICE static int sum_column(int i) { return W == 64 ? line() : line() + i / 2 % 2 * 8; }

    // Rows row .. row + 15 of a matrix over the depths depth .. depth + 31.
    DSPARK_DEVICE static Rows load_rows(const HalfMatrix<Half>& matrix, int64_t row, int depth) {
        Rows out;
        for (int i = 0; i < kPieces; ++i) {
            out.piece[i] = matrix.piece(row + piece_row(i), depth + piece_depth());
        }
        return out;
    }

    // ---- shared memory --------------------------------------------------------------------------
    // Elements lie there in words of two, the one of the smaller depth in the low half, with zeros
    // behind the depth up to a multiple of 32. No two lanes of a load, or of a store of sums, meet
    // in a bank.

    // Words from a row to the next.
    DSPARK_HOST_DEVICE static constexpr int row_words(int depth) {
        const int words = padded(depth) / 2;
        return W == 64 ? words + 4 : words % 32 == 0 ? words + 16 : words;
    }
    template <int N>
    DSPARK_DEVICE static Rows load_rows(const SharedArray<uint32_t, N>& words, int row, int stride,
                                        int depth) {
        Rows out;
        for (int i = 0; i < kPieces; ++i) {
            out.piece[i] =
                load_words(words, (row + piece_row(i)) * stride + (depth + piece_depth()) / 2);
        }
        return out;
    }

    // Words that kColumns columns take. In warps of 32 columns c and c + 8 lie together; in warps
    // of 64 a column begins stride(depth) words after the one before.
    DSPARK_HOST_DEVICE static constexpr int column_words(int depth) {
        return W == 64 ? 16 * stride(depth) : 8 * (padded(depth) + 4);
    }
    DSPARK_HOST_DEVICE static constexpr int stride(int depth) { return padded(depth) / 2 + 4; }
    // Puts a piece of column `column`, 0 .. 7, and one of column + 8 from the same depth on, a
    // multiple of 8, into the columns that begin at `begin`. `depth` is that of the matrix.
    template <int N>
    DSPARK_DEVICE static void store_columns(const Bytes16& low, const Bytes16& high, int begin,
                                            int column, int first, int depth,
                                            SharedArray<uint32_t, N>& words) {
        if constexpr (W == 64) {
            const int at = begin + column * stride(depth) + first / 2;
            words.store4(at, low.word[0], low.word[1], low.word[2], low.word[3]);
            words.store4(at + 8 * stride(depth), high.word[0], high.word[1], high.word[2],
                         high.word[3]);
        } else {
            const int at = begin + column * (padded(depth) + 4) + first;
            words.store4(at, low.word[0], high.word[0], low.word[1], high.word[1]);
            words.store4(at + 4, low.word[2], high.word[2], low.word[3], high.word[3]);
        }
    }
    // The depths first .. first + 31 of the columns that begin at `begin`.
    template <int N>
    DSPARK_DEVICE static Columns load_columns(const SharedArray<uint32_t, N>& words, int begin,
                                              int first, int depth) {
        const int at = first + piece_depth();
        Columns out;
        if constexpr (W == 64) {
            out.part[0] = load_words(words, begin + line() * stride(depth) + at / 2);
        } else {
            const int from = begin + line() * (padded(depth) + 4) + at;
            for (int i = 0; i < kPieces; ++i) out.part[i] = load_words(words, from + 4 * i);
        }
        return out;
    }

    // Words from a column of sums to the next, if a column has `rows` of them.
    DSPARK_HOST_DEVICE static constexpr int sum_words(int rows) {
        return (rows + 31) / 32 * 32 + (W == 64 ? 4 : 16);
    }
    // Puts the sum of row r and column c to begin + c * stride + r.
    template <int N>
    DSPARK_DEVICE static void store_sums(const Sums& sums, int begin, int stride,
                                         SharedArray<float, N>& out) {
        const int at = begin + sum_column(0) * stride + sum_row(0);
        if constexpr (W == 64) {
            out.store4(at, sums.of[0][0], sums.of[0][1], sums.of[0][2], sums.of[0][3]);
        } else {
            out.store4(at, sums.of[0][0], sums.of[0][1], sums.of[1][0], sums.of[1][1]);
            out.store4(at + 8 * stride, sums.of[0][2], sums.of[0][3], sums.of[1][2], sums.of[1][3]);
        }
    }

    // ---- the product ----------------------------------------------------------------------------

    // sums += rows * columns over one step. All lanes of the warp must call.
    DSPARK_DEVICE static void multiply(const Rows& rows, const Columns& columns, Sums& sums) {
        for (int half = 0; half < 2; ++half) {
            for (int i = 0; i < kPieces; ++i) {
                const uint32_t row[2] = {rows.piece[i].word[2 * half],
                                         rows.piece[i].word[2 * half + 1]};
                if constexpr (W == 64) {
                    const uint32_t column[2] = {columns.part[0].word[2 * half],
                                                columns.part[0].word[2 * half + 1]};
                    matrix_instruction<W, Half>(row, column, sums.of[i]);
                } else {
                    matrix_instruction<W, Half>(columns.part[half].word, row, sums.of[i]);
                }
            }
        }
    }

  private:
    // The line of the left and of the right matrix that the lane has.
    DSPARK_DEVICE static int line() { return W == 64 ? lane_index<W>() % 16 : lane_index<W>() / 4; }
    DSPARK_HOST_DEVICE static constexpr int padded(int depth) {
        return (depth + kDepth - 1) / kDepth * kDepth;
    }
    template <int N>
    DSPARK_DEVICE static Bytes16 load_words(const SharedArray<uint32_t, N>& words, int at) {
        Bytes16 out;
        words.load4(at, out.word[0], out.word[1], out.word[2], out.word[3]);
        return out;
    }
};

}  // namespace dspark::DSPARK_ISA
