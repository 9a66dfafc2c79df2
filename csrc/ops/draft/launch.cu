// The launch sequences of the draft family: one text for every device compiler and the emulator.
#include "ops/draft/launch.h"

#include "device/sequence.h"
#include "ops/draft/kernel_hidden.h"
#include "ops/draft/kernel_matrix.h"
#include "ops/draft/kernel_shards.h"
#include "ops/draft/kernel_step.h"

namespace dspark::DSPARK_ISA {
namespace {

using namespace draft;
using dspark::draft::LogitsPlan;
using dspark::draft::MarkovCall;
using dspark::draft::plan_logits;
using dspark::draft::plan_matrix;
using dspark::draft::suits_matrix_units;

using StepKernel = void (*)(MarkovStep);

template <int W>
StepKernel step_kernel(const MarkovCall& call, const LogitsPlan& plan, const MatrixPlan& matrix) {
    if constexpr (kCanHaveMatrixUnit<W>) {
        if (matrix.tiles > 0) {
            return call.args.w2_type == FloatType::kBFloat16 ? matrix_step_kernel<W, BFloat16>
                                                             : matrix_step_kernel<W, Float16>;
        }
    }
    switch (plan.requests_of_team) {
        case 1:
            return markov_step_kernel<W, 1, false>;
        case 4:
            return markov_step_kernel<W, 4, false>;
        default:
            return plan.narrow_inputs != 0 ? markov_step_kernel<W, 8, true>
                                           : markov_step_kernel<W, 8, false>;
    }
}

int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

// Launch k draws draft k - 1 and computes the logits of draft k, 0 <= k <= n.
MarkovStep step_of(const MarkovCall& call, const LogitsPlan& plan, const MatrixPlan& matrix,
                   int64_t k) {
    const MarkovArgs& args = call.args;
    MarkovStep step = {args, call.scratch, plan, matrix, k, args.batch, 0, 0, 0, false};
    // The first inputs of a vanilla head are embeddings that exist already.
    step.is_ordered = k > 0 || args.head != MarkovHead::kVanilla;
    if (k > 0) step.producers = args.batch * args.tiles;
    if (k < args.num_drafts) {
        step.lane_jobs = plan.ranges * plan.groups;
        step.logits_jobs = matrix.tiles > 0 ? matrix.ranges * matrix.groups : step.lane_jobs;
    }
    const bool has_gaps = args.vocab > args.draft_vocab || args.d2t != nullptr;
    if (k == 0 && has_gaps) {
        step.fill_jobs = ceil_div(args.batch * args.num_drafts, kFillRows) * args.tiles;
    }
    return step;
}

// The launches up to the one that computes the logits of draft `last`.
int markov_steps(const MarkovCall& call, int64_t last, LaunchTarget& target) {
    const MarkovArgs& args = call.args;
    if (args.batch == 0 || args.num_drafts == 0) return 0;
    return with_warp_size([&](auto warp_size) {
        constexpr int W = warp_size;
        MatrixPlan matrix = {};
        if (kCanHaveMatrixUnit<W> && suits_matrix_units(args)) matrix = plan_matrix(args, W);
        const LogitsPlan plan = plan_logits(args, W, matrix.tiles > 0);
        Sequence sequence(target);
        if (args.head != MarkovHead::kVanilla) {
            const int64_t rows = args.head == MarkovHead::kRnn ? 3 * args.rank : args.rank;
            const int64_t blocks = rows > 0 ? ceil_div(rows, kHiddenOutputs) : 1;  // to clear
            sequence.run("hidden_dots", hidden_dots_kernel<W>, blocks,
                         step_of(call, plan, matrix, 0));
        }
        for (int64_t k = 0; k <= last; ++k) {
            const MarkovStep step = step_of(call, plan, matrix, k);
            sequence.run("markov_step", step_kernel<W>(call, plan, matrix),
                         step.producers + step.logits_jobs + step.fill_jobs, step);
        }
        return sequence.code();
    });
}

int markov_sample(const MarkovCall& call, LaunchTarget& target) {
    return markov_steps(call, call.args.num_drafts, target);
}

int markov_logits(const MarkovCall& call, LaunchTarget& target) {
    return markov_steps(call, 0, target);
}

int row_statistics(const RowStatisticsArgs& args, LaunchTarget& target) {
    return with_warp_size([&](auto warp_size) {
        Sequence sequence(target);
        sequence.run("shard_statistics", shard_statistics_kernel<warp_size>, args.rows * args.tiles,
                     args);
        return sequence.code();
    });
}

int draw_shard(const DrawShardArgs& args, LaunchTarget& target) {
    return with_warp_size([&](auto warp_size) {
        Sequence sequence(target);
        sequence.run("draw_shard", draw_shard_kernel<warp_size>, args.rows, args);
        return sequence.code();
    });
}

int confidence(const ConfidenceArgs& args, LaunchTarget& target) {
    return with_warp_size([&](auto warp_size) {
        Sequence sequence(target);
        sequence.run("confidence", confidence_kernel<warp_size>, args.rows, args);
        return sequence.code();
    });
}

int calibrate(const CalibrateArgs& args, LaunchTarget& target) {
    return with_warp_size([&](auto warp_size) {
        Sequence sequence(target);
        sequence.run("calibrate", calibrate_kernel<warp_size>, ceil_div(args.rows, kThreads), args);
        return sequence.code();
    });
}

}  // namespace

const DraftLaunch& draft_launch() {
    static const DraftLaunch functions = {markov_sample, markov_logits, row_statistics,
                                          draw_shard,    confidence,    calibrate};
    return functions;
}

}  // namespace dspark::DSPARK_ISA
