// The launch sequences of the verify family: one text for every device compiler and the emulator.
#include "ops/verify/launch.h"

#include "device/sequence.h"
#include "ops/verify/kernel_rows.h"
#include "ops/verify/kernel_schedule.h"

namespace dspark::DSPARK_ISA {
namespace {

using namespace verify;

int64_t blocks_for(int64_t threads) {
    return (threads + kThreads - 1) / kThreads;
}

// Sorts, merges and searches tiles of candidates.
template <int W>
void schedule_tiles(Sequence& sequence, const ScheduleArgs& args) {
    const int64_t tiles = args.scratch.tiles;
    const int64_t all = args.mode == ScheduleMode::kLagged ? 2 * tiles : tiles;
    sequence.run("sort_tiles", sort_tiles_kernel<W>, all, args);
    sequence.run("merge_tiles", merge_tiles_kernel<W>, blocks_for(all * kTileCandidates), args);
    if (is_searched(args.mode)) {
        sequence.run("sum_runs", sum_runs_kernel<W>, tiles, args);
        sequence.run("search_runs", search_runs_kernel<W>, tiles, args);
    }
    sequence.run("finish_schedule", finish_schedule_kernel<W>, 1, args);
}

int schedule(const ScheduleArgs& args, LaunchTarget& target) {
    return with_warp_size([&](auto warp_size) {
        constexpr int W = warp_size;
        Sequence sequence(target);
        if (args.mode == ScheduleMode::kUniform) {
            sequence.run("uniform_schedule", uniform_schedule_kernel<W>, 1, args);
        } else if (dspark::verify::fits_one_block(args)) {
            sequence.run("schedule", schedule_kernel<W>, 1, args);
        } else {
            schedule_tiles<W>(sequence, args);
        }
        return sequence.code();
    });
}

int pack(const PackArgs& args, LaunchTarget& target) {
    return with_warp_size([&](auto warp_size) {
        Sequence sequence(target);
        sequence.run("pack", pack_kernel<warp_size>, blocks_for(args.max_rows), args);
        return sequence.code();
    });
}

int unpack(const UnpackArgs& args, LaunchTarget& target) {
    const int64_t row_bytes = args.row_size * args.element_size;
    const UnpackPieces pieces = {args, row_bytes, (row_bytes + kPieceBytes - 1) / kPieceBytes};
    const int64_t entries = args.layout.batch * (args.num_drafts + 1);
    return with_warp_size([&](auto warp_size) {
        Sequence sequence(target);
        sequence.run("unpack", unpack_kernel<warp_size>, entries * pieces.pieces, pieces);
        return sequence.code();
    });
}

int commit(const CommitArgs& args, LaunchTarget& target) {
    const int64_t threads = args.num_rows > args.layout.batch ? args.num_rows : args.layout.batch;
    return with_warp_size([&](auto warp_size) {
        Sequence sequence(target);
        sequence.run("commit", commit_kernel<warp_size>, blocks_for(threads), args);
        return sequence.code();
    });
}

int accumulate_stats(const AccumulateStatsArgs& args, LaunchTarget& target) {
    return with_warp_size([&](auto warp_size) {
        Sequence sequence(target);
        sequence.run("accumulate_stats", accumulate_stats_kernel<warp_size>, args.batch, args);
        return sequence.code();
    });
}

}  // namespace

const VerifyLaunch& verify_launch() {
    static const VerifyLaunch functions = {schedule, pack, unpack, commit, accumulate_stats};
    return functions;
}

}  // namespace dspark::DSPARK_ISA
