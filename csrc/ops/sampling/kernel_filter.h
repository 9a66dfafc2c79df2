// Kernels of the sampling family: the laws of rows that filters cut.
#pragma once

#include <cstddef>

#include "ops/sampling/block_measure.h"
#include "ops/sampling/kernel.h"

namespace dspark::DSPARK_ISA::sampling {

// Finishes and stores the law of row r, unfiltered. Called by the whole block, which has it in
// shared memory then.
template <int W>
DSPARK_DEVICE void block_finish_law(const LawScratch& scratch, int64_t r, const RowJob& job,
                                    SharedArray<Law, 1>& shared) {
    if (warp_index<W>() == 0) {
        const Law law = warp_finish_law<W>(new_law(scratch, r, job), tile_statistics(scratch, r));
        if (lane_index<W>() == 0) {
            scratch.laws[r] = law;
            shared[0] = law;
        }
    }
    sync_block();
}

// Finishes the laws of the filtered rows from the statistics of their tiles, and cuts them. One
// block per row.
template <int W, class Rows>
DSPARK_KERNEL(kThreads)
void filter_laws_kernel(Rows rows) {
    check_warp_size<W>();
    DSPARK_SHARED(MeasureShared<W>, shared);
    const LawScratch& scratch = rows.scratch();
    const int64_t r = block_idx().x;
    RowJob job;
    if (!rows.find(r, &job)) return;
    block_finish_law<W>(scratch, r, job, shared.law);
    const Global<const uint64_t> profiles = scratch.profiles + r * scratch.tiles * kProfileWords;
    BlockMeasure<W> measure(profiles, shared);
    const Kept kept = filter_row(rows.law_args(), rows.law_index(r), measure);
    if (thread_idx() != 0) return;
    const Global<char> stored = global_cast<char>(scratch.laws + r);
    global_cast<Cut>(stored + offsetof(Law, cut))[0] = kept.cut;
    global_cast<double>(stored + offsetof(Law, total))[0] = kept.total;
}

}  // namespace dspark::DSPARK_ISA::sampling
