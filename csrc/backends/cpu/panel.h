// Products of a few rows with a panel of kPanelWidth columns, the inner loop of linear and
// attention.
//
// Every output is one chain of fused multiply-adds over the depth, in ascending order:
//     acc = fma(x[k], panel[k][column], acc),   k = 0, 1, ..., depth - 1
// so its bits depend on its own row and column only: neither on the rows beside it, nor on the
// vector width, nor on how rows and panels are spread over calls and threads.
#pragma once

#include "backends/cpu/vec.h"

namespace dspark::DSPARK_ISA {

inline constexpr int kPanelWidth = 32;
inline constexpr int kPanelVecs = kPanelWidth / kLanes;

// Rows that share one pass over the panel: as many as the register file holds accumulators for.
inline constexpr int kMaxPanelRows = kLanes == 16 ? 12 : 2;

// Panel rows in fp32, `stride` floats apart.
struct FloatPanel {
    const float* data;
    int64_t stride;

    void load_row(int64_t k, Vec (&columns)[kPanelVecs]) const {
        for (int v = 0; v < kPanelVecs; ++v) columns[v] = load(data + k * stride + v * kLanes);
    }
};

// How far ahead of its use a bf16 panel is fetched. The hardware alone fetches too late once several
// rows share a pass: arithmetic and memory then take turns instead of overlapping. (fp32 panels, twice
// as long for the same arithmetic, did not gain.)
inline constexpr int64_t kPrefetchBytes = 4096;

// Contiguous panel rows of bf16 pairs: element 2j is column j, element 2j + 1 is column j + 16.
struct PairPanel {
    const uint16_t* data;

    void load_row(int64_t k, Vec (&columns)[kPanelVecs]) const {
        constexpr int kHalf = kPanelVecs / 2;
        __builtin_prefetch(reinterpret_cast<const char*>(data + k * kPanelWidth) + kPrefetchBytes);
        for (int v = 0; v < kHalf; ++v) {
            load_bf16_pairs(data + k * kPanelWidth + 2 * v * kLanes, columns[v],
                            columns[kHalf + v]);
        }
    }
};

template <int kRows>
struct PanelSums {
    Vec sum[kRows][kPanelVecs];

    void set(float value) {
        for (auto& row : sum) {
            for (Vec& vec : row) vec = broadcast(value);
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

    // Continues every chain over panel rows 0 .. depth - 1; row r of x is at x + r * x_stride.
    template <class Panel>
    void accumulate(const float* x, int64_t x_stride, Panel panel, int64_t depth) {
        for (int64_t k = 0; k < depth; ++k) {
            Vec columns[kPanelVecs];
            panel.load_row(k, columns);
            for (int r = 0; r < kRows; ++r) {
                const Vec value = broadcast(x[r * x_stride + k]);
                for (int v = 0; v < kPanelVecs; ++v) sum[r][v] = fma(value, columns[v], sum[r][v]);
            }
        }
    }
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
