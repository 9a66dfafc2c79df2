// Products of a few rows with a panel of kPanelWidth columns, the inner loop of linear and
// attention.
//
// Every output is one chain of fused multiply-adds over the depth, in ascending order:
//     acc = fma(x[k], panel[k][column], acc),   k = 0, 1, ..., depth - 1
// so its bits depend on its own row and column only: neither on the rows beside it, nor on the
// vector width, nor on how rows and panels are spread over calls and threads.
#pragma once

#include "backends/cpu/simd_pairs.h"

namespace dspark::DSPARK_ISA {

inline constexpr int kPanelWidth = 32;
inline constexpr int kPanelVecs = kPanelWidth / kLanes;

// Rows that share one pass over the panel: as many as the register file holds accumulators for.
#if defined(__AVX512F__)
inline constexpr int kMaxPanelRows = 12;
#else
inline constexpr int kMaxPanelRows = 2;
#endif

// Panel rows in fp32, `stride` floats apart.
struct FloatPanel {
    const float* data;
    int64_t stride;

    void load_row(int64_t k, FloatVector (&columns)[kPanelVecs]) const {
        for (int v = 0; v < kPanelVecs; ++v) columns[v] = load(data + k * stride + v * kLanes);
    }
};

// How far ahead of its use a bf16 panel is fetched. The hardware alone fetches too late once
// several rows share a pass: arithmetic and memory then take turns instead of overlapping. (fp32
// panels, twice as long for the same arithmetic, did not gain.)
inline constexpr int64_t kPrefetchBytes = 4096;

// bf16 panel rows 2i and 2i + 1 in one: the high half of 32-bit word c is row 2i of column c, the
// low half row 2i + 1. An odd last row stands alone, as kPanelWidth bf16 values.
struct PairPanel {
    const BFloat16* data;

    void load_even(int64_t k, FloatVector (&columns)[kPanelVecs]) const {
        const BFloat16* words = data + k * kPanelWidth;
        prefetch(words);
        for (int v = 0; v < kPanelVecs; ++v) columns[v] = load_high(words + 2 * v * kLanes);
    }
    void load_odd(int64_t k, FloatVector (&columns)[kPanelVecs]) const {
        const BFloat16* words = data + (k - 1) * kPanelWidth;
        prefetch(words + kPanelWidth);
        for (int v = 0; v < kPanelVecs; ++v) columns[v] = load_low(words + 2 * v * kLanes);
    }
    void load_last(int64_t k, FloatVector (&columns)[kPanelVecs]) const {
        for (int v = 0; v < kPanelVecs; ++v) columns[v] = load(data + k * kPanelWidth + v * kLanes);
    }

    static void prefetch(const BFloat16* words) {
        __builtin_prefetch(reinterpret_cast<const char*>(words) + kPrefetchBytes);
    }
};

template <int kRows>
struct PanelSums {
    FloatVector sum[kRows][kPanelVecs];

    void set(float value) {
        for (auto& row : sum) {
            for (FloatVector& sums : row) sums = FloatVector(value);
        }
    }
    void load_from(const float* source, int64_t stride) {
        for (int r = 0; r < kRows; ++r) {
            for (int v = 0; v < kPanelVecs; ++v) sum[r][v] = load(source + r * stride + v * kLanes);
        }
    }
    void store_to(float* target, int64_t stride) const {
        for (int r = 0; r < kRows; ++r) {
            for (int v = 0; v < kPanelVecs; ++v) store(target + r * stride + v * kLanes, sum[r][v]);
        }
    }

    // Sums stay in registers only as locals that no call sees: hence the copies in accumulate() and
    // the forced inlining here.

    // One link of every chain: row r adds x[r * x_stride] times the columns.
    DSPARK_DEVICE void add_row(const float* x, int64_t x_stride,
                               const FloatVector (&columns)[kPanelVecs]) {
        for (int r = 0; r < kRows; ++r) {
            const FloatVector value = FloatVector(x[r * x_stride]);
            for (int v = 0; v < kPanelVecs; ++v) sum[r][v] = fma(value, columns[v], sum[r][v]);
        }
    }

    // Continues every chain over panel rows 0 .. depth - 1; row r of x is at x + r * x_stride.
    void accumulate(const float* x, int64_t x_stride, FloatPanel panel, int64_t depth) {
        PanelSums local = *this;
        FloatVector columns[kPanelVecs];
        for (int64_t k = 0; k < depth; ++k) {
            panel.load_row(k, columns);
            local.add_row(x + k, x_stride, columns);
        }
        *this = local;
    }
    void accumulate(const float* x, int64_t x_stride, PairPanel panel, int64_t depth) {
        PanelSums local = *this;
        FloatVector columns[kPanelVecs];
        for (int64_t k = 0; k + 1 < depth; k += 2) {
            panel.load_even(k, columns);
            local.add_row(x + k, x_stride, columns);
            panel.load_odd(k + 1, columns);
            local.add_row(x + k + 1, x_stride, columns);
        }
        if (depth % 2 != 0) {
            panel.load_last(depth - 1, columns);
            local.add_row(x + depth - 1, x_stride, columns);
        }
        *this = local;
    }

#if defined(__AVX512F__)
    // accumulate() for bf16 rows, two links per instruction. x_pairs holds the row in the form of
    // PairPanel's words, an odd last value in the low half of its word. The instruction adds the
    // products of the high halves, then those of the low halves, each sum rounded; a product of two
    // bf16 values is exact in fp32. So this is the same chain, with subnormals taken for zero.
    __attribute__((target("avx512bf16"))) void accumulate_dots(const uint32_t* x_pairs,
                                                               int64_t x_stride, PairPanel panel,
                                                               int64_t depth) {
        PanelSums local = *this;
        const BFloat16* words = panel.data;
        for (int64_t k = 0; k < depth; k += 2, words += 2 * kPanelWidth, ++x_pairs) {
            __m512i left = _mm512_setzero_si512();
            __m512i right = left;
            if (k + 1 < depth) {
                PairPanel::prefetch(words);
                PairPanel::prefetch(words + kPanelWidth);
                left = _mm512_loadu_si512(words);
                right = _mm512_loadu_si512(words + kPanelWidth);
            } else {
                const auto* last = reinterpret_cast<const __m256i*>(words);
                left = _mm512_maskz_cvtepu16_epi32(0xFFFF, _mm256_loadu_si256(last));
                right = _mm512_maskz_cvtepu16_epi32(0xFFFF, _mm256_loadu_si256(last + 1));
            }
            for (int r = 0; r < kRows; ++r) {
                const auto value =
                    (__m512bh)_mm512_set1_epi32(static_cast<int>(x_pairs[r * x_stride]));
                local.sum[r][0].v = _mm512_dpbf16_ps(local.sum[r][0].v, value, (__m512bh)left);
                local.sum[r][1].v = _mm512_dpbf16_ps(local.sum[r][1].v, value, (__m512bh)right);
            }
        }
        *this = local;
    }
#endif
};

template <int kCount>
struct RowCount {
    static constexpr int kValue = kCount;
};

template <int kRows, class Visit>
inline void visit_row_count(int64_t rows, int64_t first_row, const Visit& visit) {
    if (rows == kRows) {
        visit(RowCount<kRows>{}, first_row);
    } else if constexpr (kRows > 1) {
        visit_row_count<kRows - 1>(rows, first_row, visit);
    }
}

// Splits rows first .. end - 1 into groups of at most kMaxPanelRows, as equal as possible, and
// calls visit(RowCount<n>, first row of the group) for each.
template <class Visit>
inline void for_row_groups(int64_t first, int64_t end, const Visit& visit) {
    for (int64_t groups = (end - first + kMaxPanelRows - 1) / kMaxPanelRows; groups > 0; --groups) {
        const int64_t rows = (end - first + groups - 1) / groups;
        visit_row_count<kMaxPanelRows>(rows, first, visit);
        first += rows;
    }
}

}  // namespace dspark::DSPARK_ISA
