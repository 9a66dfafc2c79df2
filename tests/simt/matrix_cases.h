// What the cases of matrix products share: matrices in which a wrong index shows, how they are
// staged, and how sums are judged.
#pragma once

#include <cmath>
#include <random>

#include "device/matrix_wide.h"
#include "device/narrow.h"
#include "planted.h"

namespace dspark::DSPARK_ISA {

// Not multiples of a tile: 16 rows, 8 or 16 columns, 32 depths.
constexpr int kRows = 117;
constexpr int kColumns = 19;
constexpr int kDepth = 72;
template <class Half>
struct ProductArgs {
    Global<const Half> rows;     // [kRows, kDepth]
    Global<const Half> columns;  // [kColumns, kDepth]
    Global<float> sums;          // [kRows, kColumns]
};
constexpr int kRowLines = 128;
constexpr int kColumnTiles = 2;
constexpr int kPiecesPerLine = (kDepth + 31) / 32 * 4;  // 8 elements each
template <int W>
struct ProductShared {
    using Product = MatrixProduct<W, BFloat16>;
    SharedArray<uint32_t, kRowLines * Product::row_words(kDepth)> rows;
    SharedArray<uint32_t, kColumnTiles * Product::column_words(kDepth)> columns;
    SharedArray<float, 16 * Product::sum_words(kRowLines)> sums;
};

// A warp at a time takes a line, zeros behind the depth.
template <int W, class Half>
DSPARK_DEVICE void stage_rows(const HalfMatrix<Half>& from, ProductShared<W>& shared) {
    for (int row = warp_index<W>(); row < kRowLines; row += kWarps<W>) {
        for (int p = lane_index<W>(); p < kPiecesPerLine; p += W) {
            const Bytes16 piece = from.piece(row, 8 * p);
            shared.rows.store4(row * MatrixProduct<W, Half>::row_words(kDepth) + 4 * p,
                               piece.word[0], piece.word[1], piece.word[2], piece.word[3]);
        }
    }
}
template <int W, class Half>
DSPARK_DEVICE void stage_columns(const HalfMatrix<Half>& from, ProductShared<W>& shared) {
    using Product = MatrixProduct<W, Half>;
    for (int i = thread_idx(); i < kColumnTiles * 8 * kPiecesPerLine; i += kThreads) {
        const int tile = i / kPiecesPerLine / 8, column = i / kPiecesPerLine % 8;
        const int first = i % kPiecesPerLine * 8;
        const Bytes16 low = from.piece(tile * 16 + column, first);
        const Bytes16 high = from.piece(tile * 16 + column + 8, first);
        Product::store_columns(low, high, tile * Product::column_words(kDepth), column, first,
                               kDepth, shared.columns);
    }
}

}  // namespace dspark::DSPARK_ISA

namespace dspark::planted {

using namespace dspark::DSPARK_ISA;

template <class Half>
Half half_of(float value) {
    Half half;
    narrow(value, &half);
    return half;
}

// Numbers in which a wrong index shows, and random ones.
enum Kind { kOneHot, kCodes, kPowers, kRandom, kKinds };

inline float row_value(Kind kind, int row, int j, std::mt19937& random) {
    switch (kind) {
        case kOneHot:
            return j == row * 31 % kDepth ? 1.0f : 0.0f;
        case kCodes:
            return static_cast<float>(row + 2 * (j % 3));
        case kPowers:
            return j == 7 ? std::ldexp(1.0f, row % 15) : 0.0f;
        default:
            return std::normal_distribution<float>()(random);
    }
}
inline float column_value(Kind kind, int column, int j, std::mt19937& random) {
    switch (kind) {
        case kOneHot:
            return static_cast<float>(column + 32 * (j % 8)) + (j / 8 % 2 == 0 ? 0.0f : -256.0f);
        case kCodes:
            return static_cast<float>(3 * column + j % 7);
        case kPowers:
            return std::ldexp(1.0f + static_cast<float>(column) / 32.0f, j % 15 - 7);
        default:
            return std::normal_distribution<float>()(random);
    }
}

// Bits as stated; and near the exact sum, within what any order of float32 additions may lose.
template <class Half>
bool sum_is_right(float found, const Half* row, const Half* column, float ordered) {
    double exact = 0.0, magnitude = 0.0;
    for (int j = 0; j < kDepth; ++j) {
        const double product = double(to_float(row[j])) * to_float(column[j]);
        exact += product;
        magnitude += std::fabs(product);
    }
    const double bound = kDepth * std::ldexp(magnitude, -24);
    return found == ordered && std::fabs(found - exact) <= bound;
}

// ordered(row, column): the sum whose bits are to be found. Without a unit there is nothing to run.
template <class Half, class Ordered>
Outcome run_product(void (*kernel)(ProductArgs<Half>), bool has_unit, Ordered ordered) {
    for (int k = 0; k < kKinds; ++k) {
        const Kind kind = static_cast<Kind>(k);
        std::mt19937 random(5);
        DeviceVector<Half> rows("rows", kRows * kDepth, emulator::kReadOnly);
        DeviceVector<Half> columns("columns", kColumns * kDepth, emulator::kReadOnly);
        DeviceVector<float> sums("sums", kRows * kColumns, emulator::kUninitialised);
        for (int i = 0; i < kRows * kDepth; ++i) {
            rows[i] = half_of<Half>(row_value(kind, i / kDepth, i % kDepth, random));
        }
        for (int i = 0; i < kColumns * kDepth; ++i) {
            columns[i] = half_of<Half>(column_value(kind, i / kDepth, i % kDepth, random));
        }
        const ProductArgs<Half> args = {rows.data(), columns.data(), sums.data()};
        const int code = launch("product", kernel, {1, 1, 1}, kBlock, nullptr, args);
        if (code != 0) return {code, false};
        if (!has_unit) return {0, true};
        const bool right = all_of(kRows * kColumns, [&](int i) {
            const Half* row = rows.data() + i / kColumns * kDepth;
            const Half* column = columns.data() + i % kColumns * kDepth;
            return sum_is_right(sums[i], row, column, ordered(row, column));
        });
        if (!right) return {0, false};
    }
    return {0, true};
}

// A lane, and which of its entries.
struct Place {
    int lane, place;
};

#define DSPARK_MATRIX(Name, name, expression)      \
    struct Name {                                  \
        static constexpr const char* kName = name; \
        template <int W>                           \
        static Outcome run() {                     \
            return expression;                     \
        }                                          \
    };

}  // namespace dspark::planted
