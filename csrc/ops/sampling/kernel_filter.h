// Kernels of the sampling family: the laws of rows that filters cut.
#pragma once

#include <cstddef>

#include "ops/sampling/block_measure.h"
#include "ops/sampling/kernel.h"

namespace dspark::DSPARK_ISA::sampling {

template <int W>
struct FilterShared {
    MeasureShared<W> measure;
    // What the first warp finds out about the unfiltered law.
    SharedArray<float, 1> maximum;
    SharedArray<double, 1> total;
    SharedArray<int32_t, 1> is_empty;
};

// Finishes and stores the law of row r, unfiltered. Every thread returns what filters need of it.
template <int W>
DSPARK_DEVICE Law block_finish_law(const LawScratch& scratch, int64_t r, const RowJob& job,
                                   FilterShared<W>& shared) {
    Law law = new_law(scratch, r, job);
    if (warp_index<W>() == 0) {
        const Law finished = warp_finish_law<W>(law, tile_statistics(scratch, r));
        if (lane_index<W>() == 0) {
            scratch.laws[r] = finished;
            shared.maximum[0] = finished.maximum;
            shared.total[0] = finished.total;
            shared.is_empty[0] = finished.is_empty;
        }
    }
    sync_block();
    law.maximum = shared.maximum[0];
    law.total = shared.total[0];
    law.is_empty = shared.is_empty[0];
    return law;
}

// Finishes the laws of the filtered rows from the statistics of their tiles, and cuts them. One
// block per row.
template <int W, class Rows>
DSPARK_KERNEL(kThreads)
void filter_laws_kernel(Rows rows) {
    check_warp_size<W>();
    DSPARK_SHARED(FilterShared<W>, shared);
    const LawScratch& scratch = rows.scratch();
    const int64_t r = block_idx().x;
    RowJob job;
    if (!rows.find(r, &job)) return;
    Law law = block_finish_law<W>(scratch, r, job, shared);
    BlockMeasure<W> measure(law, scratch, r, shared.measure);
    filter_cut(law, rows.law_args(), rows.law_index(r), measure);
    if (thread_idx() != 0) return;
    // Field by field: what else the law says need not be kept in registers until here.
    const Global<char> stored = global_cast<char>(scratch.laws + r);
    global_cast<Cut>(stored + offsetof(Law, cut))[0] = law.cut;
    global_cast<double>(stored + offsetof(Law, total))[0] = law.total;
}

}  // namespace dspark::DSPARK_ISA::sampling
