// The launch sequences of the sampling family: one text for CUDA, HIP and the emulator.
#include "ops/sampling/launch.h"

#include "device/sequence.h"
#include "ops/sampling/kernel.h"
#include "ops/sampling/kernel_filter.h"
#include "ops/sampling/kernel_law.h"
#include "ops/sampling/kernel_verify.h"
#include "ops/sampling/workspace.h"

namespace dspark::DSPARK_ISA {
namespace {

using namespace sampling;
using dspark::sampling::has_filters;

// Statistics of every row, then (if filters cut them, or nothing later does it) their laws.
template <int W, bool kFinish, class Rows>
void find_laws(Sequence& sequence, const Rows& rows) {
    sequence.run("row_statistics", row_statistics_kernel<W, Rows>,
                 rows.size() * rows.scratch().tiles, rows);
    if (has_filters(rows.law_args())) {
        sequence.run("filter_laws", filter_laws_kernel<W, Rows>, rows.filtered_rows(), rows);
    } else if constexpr (kFinish) {
        sequence.run("finish_laws", finish_laws_kernel<W, Rows>,
                     (rows.size() + kWarps<W> - 1) / kWarps<W>, rows);
    }
}

// Up to the tile totals of the residual masses.
template <int W>
void find_masses(Sequence& sequence, const VerifyArgs& args) {
    const VerifyRows rows = {args};
    find_laws<W, false>(sequence, rows);
    sequence.run("decide", decide_kernel<W>, args.batch, rows);
    const bool has_draft = args.draft_logits.data != nullptr || args.draft_probs.data != nullptr;
    if (has_draft) {
        sequence.run("residual_masses", residual_masses_kernel<W>,
                     args.batch * args.num_drafts * args.scratch.tiles, args);
    }
}

int target_probs(const TargetProbsArgs& args, LaunchTarget& target) {
    return with_warp_size([&](auto warp_size) {
        constexpr int W = warp_size;
        Sequence sequence(target);
        find_laws<W, true>(sequence, PlainRows{args.logits, args.law, args.rows, args.scratch});
        sequence.run("target_probs", target_probs_kernel<W>, args.rows * args.scratch.tiles, args);
        return sequence.code();
    });
}

int sample(const SampleArgs& args, LaunchTarget& target) {
    return with_warp_size([&](auto warp_size) {
        constexpr int W = warp_size;
        Sequence sequence(target);
        find_laws<W, true>(sequence, PlainRows{args.logits, args.law, args.rows, args.scratch});
        sequence.run("sample", sample_kernel<W>, args.rows, args);
        return sequence.code();
    });
}

int rejection_sample(const VerifyArgs& args, LaunchTarget& target) {
    return with_warp_size([&](auto warp_size) {
        constexpr int W = warp_size;
        Sequence sequence(target);
        find_masses<W>(sequence, args);
        sequence.run("finalise", finalise_kernel<W>, args.batch, args);
        return sequence.code();
    });
}

int block_acceptance(const VerifyArgs& args, LaunchTarget& target) {
    return with_warp_size([&](auto warp_size) {
        constexpr int W = warp_size;
        Sequence sequence(target);
        find_masses<W>(sequence, args);
        sequence.run("block_acceptance", block_acceptance_kernel<W>, args.batch, args);
        return sequence.code();
    });
}

}  // namespace

const SamplingLaunch& sampling_launch() {
    static const SamplingLaunch functions = {target_probs, sample, rejection_sample,
                                             block_acceptance};
    return functions;
}

}  // namespace dspark::DSPARK_ISA
