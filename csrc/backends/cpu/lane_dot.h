// Dot products in 16 lanes: lane = index mod 16, each acc = fma(w, x, acc) in index order from 0,
// then the halving tree 8, 4, 2, 1. Some rows meet some vectors at a time, in registers; how many
// does not change a bit of any product.
#pragma once

#include "backends/cpu/simd.h"

namespace dspark::DSPARK_ISA {

constexpr int kDotLanes = 16;
constexpr int kDotVectors = kDotLanes / FloatVector::kWidth;  // that hold the lanes of one product
constexpr int kQuads = FloatVector::kWidth / 4;               // quarters of 16 lanes in a vector

// Vectors that share a pass over the rows, as the register file has room for.
#if defined(__AVX512F__)
constexpr int kDotColumns = 4;
#else
constexpr int kDotColumns = 2;
#endif

// The lanes of one product.
struct DotLanes {
    FloatVector v[kDotVectors];
};

#if defined(__AVX512F__)

// Of kQuads products the lanes after the levels 8 and 4 of the tree: four of each.
DSPARK_DEVICE FloatVector fold_to_quads(const DotLanes* rows) {
    const __m512 a = rows[0].v[0].v, b = rows[1].v[0].v, c = rows[2].v[0].v, d = rows[3].v[0].v;
    const __m512 ab =
        _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
    const __m512 cd =
        _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xEE));
    return FloatVector(
        _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD)));
}

// The levels 2 and 1: entry 4q + j of the result is the product in quad q of quads[j].
DSPARK_DEVICE FloatVector fold_quads(const FloatVector (&quads)[4]) {
    const auto pairs = [](FloatVector a, FloatVector b) {
        const __m512d x = _mm512_castps_pd(a.v), y = _mm512_castps_pd(b.v);
        return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    };
    const __m512 x = pairs(quads[0], quads[1]), y = pairs(quads[2], quads[3]);
    return FloatVector(_mm512_add_ps(_mm512_shuffle_ps(x, y, 0x88), _mm512_shuffle_ps(x, y, 0xDD)));
}

#elif defined(__AVX2__)

DSPARK_DEVICE FloatVector fold_to_quads(const DotLanes* rows) {
    const __m256 a = _mm256_add_ps(rows[0].v[0].v, rows[0].v[1].v);
    const __m256 b = _mm256_add_ps(rows[1].v[0].v, rows[1].v[1].v);
    return FloatVector(
        _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31)));
}

DSPARK_DEVICE FloatVector fold_quads(const FloatVector (&quads)[4]) {
    const auto pairs = [](FloatVector a, FloatVector b) {
        const __m256d x = _mm256_castps_pd(a.v), y = _mm256_castps_pd(b.v);
        return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)),
                             _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
    };
    const __m256 x = pairs(quads[0], quads[1]), y = pairs(quads[2], quads[3]);
    return FloatVector(_mm256_add_ps(_mm256_shuffle_ps(x, y, 0x88), _mm256_shuffle_ps(x, y, 0xDD)));
}

#else

DSPARK_DEVICE FloatVector fold_to_quads(const DotLanes* rows) {
    FloatVector quads;
    for (int q = 0; q < kQuads; ++q) {
        const float* lane = rows[q].v[0].v;
        for (int l = 0; l < 4; ++l) {
            quads.v[4 * q + l] = (lane[l] + lane[l + 8]) + (lane[l + 4] + lane[l + 12]);
        }
    }
    return quads;
}

DSPARK_DEVICE FloatVector fold_quads(const FloatVector (&quads)[4]) {
    FloatVector out;
    for (int q = 0; q < kQuads; ++q) {
        for (int j = 0; j < 4; ++j) {
            const float* lane = quads[j].v + 4 * q;
            out.v[4 * q + j] = (lane[0] + lane[2]) + (lane[1] + lane[3]);
        }
    }
    return out;
}

#endif

// Rows of a matrix, `stride` entries apart, of which `size` count.
template <class Weight>
struct DotRows {
    const Weight* data;
    int64_t stride;
    int64_t size;
    int count;  // 1 .. FloatVector::kWidth

    // Rows past the end repeat the last one; their products are for nobody.
    DSPARK_DEVICE const Weight* row(int r) const {
        return data + (r < count ? r : count - 1) * stride;
    }
};

// Vectors `stride` floats apart, zeros behind `size` of the rows up to a multiple of kDotLanes.
struct DotColumns {
    const float* data;
    int64_t stride;

    DSPARK_DEVICE DotColumns from(int64_t column) const { return {data + column * stride, stride}; }
};

// Adds entries begin, begin + step, ... below end, with the 15 behind each, to the lanes of kRows
// rows against kColumns vectors.
template <int kRows, int kColumns, class Weight>
DSPARK_DEVICE void add_products(const Weight* const (&rows)[kRows], const DotColumns& columns,
                                int64_t begin, int64_t end, int64_t step,
                                DotLanes (&sum)[kColumns][kRows]) {
    FloatVector acc[kColumns][kRows][kDotVectors];
    for (int c = 0; c < kColumns; ++c) {
        for (int r = 0; r < kRows; ++r) {
            for (int v = 0; v < kDotVectors; ++v) acc[c][r][v] = sum[c][r].v[v];
        }
    }
    for (int64_t i = begin; i < end; i += step) {
        for (int v = 0; v < kDotVectors; ++v) {
            FloatVector x[kColumns];
            for (int c = 0; c < kColumns; ++c) {
                x[c] = load(columns.data + c * columns.stride + i + v * FloatVector::kWidth);
            }
            for (int r = 0; r < kRows; ++r) {
                const FloatVector w = load(rows[r] + i + v * FloatVector::kWidth);
                for (int c = 0; c < kColumns; ++c) acc[c][r][v] = fma(w, x[c], acc[c][r][v]);
            }
        }
    }
    for (int c = 0; c < kColumns; ++c) {
        for (int r = 0; r < kRows; ++r) {
            for (int v = 0; v < kDotVectors; ++v) sum[c][r].v[v] = acc[c][r][v];
        }
    }
}

// The lanes of kRows rows over their whole size; the rows are not padded.
template <int kRows, int kColumns, class Weight>
DSPARK_DEVICE void dot_lanes(const Weight* const (&rows)[kRows], int64_t size,
                             const DotColumns& columns, DotLanes (&sum)[kColumns][kRows]) {
    for (auto& column : sum) {
        for (DotLanes& lanes : column) {
            for (FloatVector& v : lanes.v) v = FloatVector(0.0f);
        }
    }
    const int64_t whole = size / kDotLanes * kDotLanes;
    add_products(rows, columns, 0, whole, kDotLanes, sum);
    if (whole == size) return;
    Weight tail[kRows][kDotLanes] = {};
    const Weight* tails[kRows];
    for (int r = 0; r < kRows; ++r) {
        for (int64_t i = whole; i < size; ++i) tail[r][i - whole] = rows[r][i];
        tails[r] = tail[r];
    }
    add_products(tails, {columns.data + whole, columns.stride}, 0, kDotLanes, kDotLanes, sum);
}

// The products of up to FloatVector::kWidth rows with kColumns vectors: entry r of out[c].
template <int kColumns, class Weight>
DSPARK_DEVICE void dot_rows(const DotRows<Weight>& matrix, const DotColumns& columns,
                            FloatVector (&out)[kColumns]) {
    constexpr int kBlocks = kColumns == 1 ? 2 : 1;  // enough sums to hide the latency of an fma
    FloatVector quads[kColumns][4];
    for (int j = 0; j < 4; j += kBlocks) {
        const Weight* rows[kBlocks * kQuads];
        for (int r = 0; r < kBlocks * kQuads; ++r) {
            rows[r] = matrix.row(4 * (r % kQuads) + j + r / kQuads);
        }
        DotLanes sum[kColumns][kBlocks * kQuads];
        dot_lanes(rows, matrix.size, columns, sum);
        for (int c = 0; c < kColumns; ++c) {
            for (int block = 0; block < kBlocks; ++block) {
                quads[c][j + block] = fold_to_quads(sum[c] + block * kQuads);
            }
        }
    }
    for (int c = 0; c < kColumns; ++c) out[c] = fold_quads(quads[c]);
}

// dot_rows with `count` vectors; visit(first column, out) takes them a few at a time.
template <class Weight, class Visit>
DSPARK_DEVICE void dot_columns(const DotRows<Weight>& matrix, const DotColumns& columns,
                               int64_t count, const Visit& visit) {
    int64_t c = 0;
    for (; c + kDotColumns <= count; c += kDotColumns) {
        FloatVector out[kDotColumns];
        dot_rows(matrix, columns.from(c), out);
        visit(c, out, kDotColumns);
    }
    for (; c < count; ++c) {
        FloatVector out[1];
        dot_rows(matrix, columns.from(c), out);
        visit(c, out, 1);
    }
}

}  // namespace dspark::DSPARK_ISA
