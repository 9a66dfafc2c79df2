// The sums of an item: what is added to them, and what becomes of them.
#pragma once

#include "ops/moe/kernel_matrix_rows.h"
#include "ops/moe/kernel_matrix_scales.h"

namespace dspark::DSPARK_ISA::experts {

// ---- products -----------------------------------------------------------------------------------

template <int W, class Format, int kTiles>
struct ItemSums {
    using Shape = Chunk<W, Format, kTiles>;
    using Product = ProductOf<W, Format>;
    static constexpr int kWidth = Product::kColumns / 16;
    typename Product::Sums of[kRowTiles<W, Format>][kTiles / kWidth];

    // Adds the products of a step: of rows in registers with x, which lies in the chunk at `begin`.
    DSPARK_DEVICE void add(const typename Product::Rows (&rows)[kRowTiles<W, Format>],
                           const ExpertWeights& weight, const WeightScales<W, Format>& scales,
                           int step, int begin, const MatrixShared<W, Format>& shared) {
        DSPARK_UNROLL
        for (int c = 0; c < kTiles / kWidth; ++c) {
            const typename Product::Columns columns =
                Product::load_columns(shared.x, begin + c * kWidth * Shape::kTileWords,
                                      32 * (step % Shape::kSteps), Shape::kColumns);
            DSPARK_UNROLL
            for (int t = 0; t < kRowTiles<W, Format>; ++t) {
                if constexpr (Format::kHasScales) {
                    typename Product::Sums part = {};
                    Product::multiply(rows[t], columns, part);
                    DSPARK_UNROLL
                    for (int i = 0; i < Product::kSums; ++i) {
                        const float scale = scales.scale(weight, t, Product::row_of_sum(i));
                        float& sum = of[t][c].of[i / 4][i % 4];
                        sum = fma(part.of[i / 4][i % 4], scale, sum);
                    }
                } else {
                    Product::multiply(rows[t], columns, of[t][c]);
                }
            }
        }
    }
};

// ---- results ------------------------------------------------------------------------------------

// Two results side by side, of which the first has an even place.
DSPARK_DEVICE void store_pair(const GroupedGemmArgs& args, int64_t at, float first, float second) {
    if (args.out_dtype == FloatType::kFloat32) {
        store_rounded(args, at, first);
        return store_rounded(args, at + 1, second);
    }
    uint32_t word;
    if (args.out_dtype == FloatType::kBFloat16) {
        BFloat16 low, high;
        narrow(first, &low);
        narrow(second, &high);
        word = low.bits | static_cast<uint32_t>(high.bits) << 16;
    } else {
        Float16 low, high;
        narrow(first, &low);
        narrow(second, &high);
        word = low.bits | static_cast<uint32_t>(high.bits) << 16;
    }
    global_cast<uint32_t>(args.out)[at / 2] = word;
}

template <int kCount>
DSPARK_DEVICE void store_run(const GroupedGemmArgs& args, int64_t at, const float (&value)[kCount],
                             int count) {
    DSPARK_UNROLL
    for (int i = 0; i < kCount; i += 2) {
        if (i + 1 < count && (at + i) % 2 == 0) {
            store_pair(args, at + i, value[i], value[i + 1]);
        } else {
            if (i < count) store_rounded(args, at + i, value[i]);
            if (i + 1 < count) store_rounded(args, at + i + 1, value[i + 1]);
        }
    }
}

// What becomes of the products of one row of x with four rows of weights, the first of them v.
DSPARK_DEVICE void store_four(const GroupedGemmArgs& args, int64_t row, int64_t v,
                              const float (&product)[4]) {
    const int64_t columns = out_columns(args.activation, args.weight.rows);
    const int64_t left = args.weight.rows - v;
    if (args.activation == Activation::kNone) {
        return store_run(args, row * columns + v, product, left < 4 ? static_cast<int>(left) : 4);
    }
    const float value[2] = {clamped_swiglu(product[0], product[1], args.limit),
                            clamped_swiglu(product[2], product[3], args.limit)};
    store_run(args, row * columns + v / 2, value, left < 4 ? static_cast<int>(left / 2) : 2);
}

// What becomes of the products of one row of x with two rows of weights, of which v is even.
DSPARK_DEVICE void store_two(const GroupedGemmArgs& args, int64_t row, int64_t v, float first,
                             float second) {
    const int64_t columns = out_columns(args.activation, args.weight.rows);
    if (args.activation == Activation::kNone) {
        const float product[2] = {first, second};
        return store_run(args, row * columns + v, product, v + 1 < columns ? 2 : 1);
    }
    store_rounded(args, row * columns + v / 2, clamped_swiglu(first, second, args.limit));
}

// A lane has one row of weights; two lanes side by side exchange sums, so that one has both rows
// of a pair with the even, the other with the odd rows of x.
template <int W, class Format, int kTiles>
DSPARK_DEVICE void store_wide_item(const GroupedGemmArgs& args, const MatrixItem& item,
                                   const ItemSums<W, Format, kTiles>& sums) {
    using Product = ProductOf<W, Format>;
    const bool is_odd = Product::sum_row(0) % 2 != 0;
    const int64_t v = item.first_weight() + tile_row<W, Format>(0) + Product::sum_row(0) / 2 * 2;
    DSPARK_UNROLL
    for (int c = 0; c < kTiles / 2; ++c) {
        DSPARK_UNROLL
        for (int i = 0; i < Product::kSums; i += 2) {
            const float even = sums.of[0][c].of[i / 4][i % 4];
            const float odd = sums.of[0][c].of[i / 4][i % 4 + 1];
            const float other = shuffle_xor<W>(is_odd ? even : odd, 1);
            const int row = 32 * c + Product::sum_column(i) + (is_odd ? 1 : 0);
            if (row >= item.num_rows || v >= args.weight.rows) continue;
            store_two(args, item.first_row + row, v, is_odd ? other : even, is_odd ? odd : other);
        }
    }
}

template <int W, class Format, int kTiles>
DSPARK_DEVICE void store_item(const GroupedGemmArgs& args, const MatrixItem& item,
                              const ItemSums<W, Format, kTiles>& sums) {
    using Product = ProductOf<W, Format>;
    if constexpr (kIsWide<Format>) {
        return store_wide_item(args, item, sums);
    } else {
        DSPARK_UNROLL
        for (int t = 0; t < kRowTiles<W, Format>; ++t) {
            const int64_t v = item.first_weight() + tile_row<W, Format>(t) + Product::sum_row(0);
            if (v >= args.weight.rows) continue;
            DSPARK_UNROLL
            for (int c = 0; c < kTiles; ++c) {
                DSPARK_UNROLL
                for (int half = 0; half < Product::kSums / 4; ++half) {
                    const int row = 16 * c + Product::sum_column(2 * half);
                    if (row >= item.num_rows) continue;
                    float product[4];
                    DSPARK_UNROLL
                    for (int r = 0; r < 4; ++r) {
                        product[r] = W == 64 ? sums.of[t][c].of[0][r]
                                             : sums.of[t][c].of[r / 2][r % 2 + 2 * half];
                    }
                    store_four(args, item.first_row + row, v, product);
                }
            }
        }
    }
}

}  // namespace dspark::DSPARK_ISA::experts
