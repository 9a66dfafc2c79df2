// Collectives and barriers that not all threads reach, and waits that never end.
#include "device/block_reduce.h"
#include "planted.h"

namespace dspark::DSPARK_ISA {
namespace {

struct CountArgs {
    Global<int> out;  // [256]
};
struct CountShared {
    SharedArray<int, 1> flag;
};

// Sums the lanes below `lanes` of each warp; right for `lanes` = W only.
template <int W, int kLanesIn>
DSPARK_KERNEL(kThreads)
void sum_part_of_warp(CountArgs args) {
    check_warp_size<W>();
    int sum = W;
    if (lane_index<W>() < kLanesIn) sum = warp_sum<W>(1);
    args.out[thread_idx()] = sum;
}

// Half of the lanes at one operation, half at another, or all at the first.
template <int W, bool kDiverge>
DSPARK_KERNEL(kThreads)
void two_operations(CountArgs args) {
    check_warp_size<W>();
    int count = 0;
    if (!kDiverge || lane_index<W>() % 2 == 0) {
        count = __builtin_popcountll(ballot<W>(true));
    } else {
        count = shuffle<W>(W, 0);
    }
    args.out[thread_idx()] = count;
}

// The two halves of each warp call the same function from two places.
template <int W, bool kDiverge>
DSPARK_KERNEL(kThreads)
void two_calls(CountArgs args) {
    check_warp_size<W>();
    int sum = 0;
    if (!kDiverge || lane_index<W>() < W / 2) {
        sum = warp_sum<W>(1);
    } else {
        sum = warp_sum<W>(1);
    }
    args.out[thread_idx()] = sum;
}

// Lane `kLeaves` of each warp returns before the others exchange values.
template <int W, int kLeaves>
DSPARK_KERNEL(kThreads)
void leave_before_shuffle(CountArgs args) {
    check_warp_size<W>();
    args.out[thread_idx()] = W;
    if (lane_index<W>() == kLeaves) return;
    args.out[thread_idx()] = warp_max<W>(W);
}

// Threads from kStay on return before a barrier.
template <int W, int kStay>
DSPARK_KERNEL(kThreads)
void leave_before_barrier(CountArgs args) {
    check_warp_size<W>();
    args.out[thread_idx()] = W;
    if (thread_idx() >= kStay) return;
    sync_block();
}

// Half of the block waits at each of two barriers, or all at one.
template <int W, bool kDiverge>
DSPARK_KERNEL(kThreads)
void two_barriers(CountArgs args) {
    check_warp_size<W>();
    args.out[thread_idx()] = W;
    if (!kDiverge || thread_idx() < kThreads / 2) {
        sync_block();
    } else {
        sync_block();
    }
}

// A warp at a shuffle while one of its lanes is at a barrier.
template <int W>
DSPARK_KERNEL(kThreads)
void shuffle_against_barrier(CountArgs args) {
    check_warp_size<W>();
    int v = W;
    if (lane_index<W>() == 1) sync_block();
    v = shuffle<W>(v, 0);
    if (lane_index<W>() != 1) sync_block();
    args.out[thread_idx()] = v;
}

// Thread 0 waits for a flag that the last thread sets only after the barrier thread 0 is due at.
template <int W, bool kBug>
DSPARK_KERNEL(kThreads)
void wait_for_flag(CountArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(CountShared, shared);
    if (thread_idx() == 0) shared.flag[0] = 0;
    sync_block();
    if (!kBug && thread_idx() == kThreads - 1) shared.flag[0] = 1;
    if (!kBug) sync_block();
    if (thread_idx() == 0) {
        while (shared.flag[0] == 0) {
        }
    }
    sync_block();
    if (kBug && thread_idx() == kThreads - 1) shared.flag[0] = 1;
    args.out[thread_idx()] = W;
}

template <int W>
DSPARK_KERNEL(kThreads)
void two_warp_sizes(CountArgs args) {
    check_warp_size<W>();
    args.out[thread_idx()] = shuffle<W == 4 ? 32 : 4>(W, 0);
}

template <int W, int kSource>
DSPARK_KERNEL(kThreads)
void shuffle_from(CountArgs args) {
    check_warp_size<W>();
    args.out[thread_idx()] = shuffle<W>(W, kSource);
}

template <int W>
DSPARK_KERNEL(kThreads)
void trap_in_one_thread(CountArgs args) {
    check_warp_size<W>();
    if (thread_idx() == 77) trap();
    args.out[thread_idx()] = W;
}

}  // namespace
}  // namespace dspark::DSPARK_ISA

namespace dspark::planted {
namespace {

using namespace dspark::DSPARK_ISA;

template <int W>
Outcome run_count(void (*kernel)(CountArgs)) {
    DeviceVector<int> out("out", kBlock);
    const int code = launch("count", kernel, {1, 1, 1}, kBlock, nullptr, CountArgs{out.data()});
    return {code, all_of(kBlock, [&](int i) { return out[i] == W; })};
}

#define DSPARK_PLANTED(Name, name, kernel)         \
    struct Name {                                  \
        static constexpr const char* kName = name; \
        template <int W>                           \
        static Outcome run() {                     \
            return run_count<W>(kernel);           \
        }                                          \
    };

DSPARK_PLANTED(HalfWarpSum, "half_warp_sum", (sum_part_of_warp<W, W / 2>))
DSPARK_PLANTED(WarpSum, "warp_sum", (sum_part_of_warp<W, W>))
DSPARK_PLANTED(TwoOperations, "two_operations", (two_operations<W, true>))
DSPARK_PLANTED(OneOperation, "one_operation", (two_operations<W, false>))
DSPARK_PLANTED(TwoCalls, "two_calls", (two_calls<W, true>))
DSPARK_PLANTED(OneCall, "one_call", (two_calls<W, false>))
DSPARK_PLANTED(LaneLeaves, "lane_leaves", (leave_before_shuffle<W, 1>))
DSPARK_PLANTED(NoLaneLeaves, "no_lane_leaves", (leave_before_shuffle<W, W>))
DSPARK_PLANTED(ThreadsLeave, "threads_leave", (leave_before_barrier<W, 128>))
DSPARK_PLANTED(NoThreadLeaves, "no_thread_leaves", (leave_before_barrier<W, 256>))
DSPARK_PLANTED(TwoBarriers, "two_barriers", (two_barriers<W, true>))
DSPARK_PLANTED(OneBarrier, "one_barrier", (two_barriers<W, false>))
DSPARK_PLANTED(ShuffleAgainstBarrier, "shuffle_against_barrier", shuffle_against_barrier<W>)
DSPARK_PLANTED(EndlessWait, "endless_wait", (wait_for_flag<W, true>))
DSPARK_PLANTED(ShortWait, "short_wait", (wait_for_flag<W, false>))
DSPARK_PLANTED(TwoWarpSizes, "two_warp_sizes", two_warp_sizes<W>)
DSPARK_PLANTED(ShuffleFromNowhere, "shuffle_from_nowhere", (shuffle_from<W, W>))
DSPARK_PLANTED(ShuffleFromLast, "shuffle_from_last", (shuffle_from<W, W - 1>))
DSPARK_PLANTED(Trap, "trap", trap_in_one_thread<W>)

}  // namespace

std::vector<Case> divergence_cases() {
    return {make_case<HalfWarpSum>(),    make_case<WarpSum>(),
            make_case<TwoOperations>(),  make_case<OneOperation>(),
            make_case<TwoCalls>(),       make_case<OneCall>(),
            make_case<LaneLeaves>(),     make_case<NoLaneLeaves>(),
            make_case<ThreadsLeave>(),   make_case<NoThreadLeaves>(),
            make_case<TwoBarriers>(),    make_case<OneBarrier>(),
            make_case<EndlessWait>(),    make_case<ShortWait>(),
            make_case<TwoWarpSizes>(),   make_case<ShuffleAgainstBarrier>(),
            make_case<Trap>(),           make_case<ShuffleFromNowhere>(),
            make_case<ShuffleFromLast>()};
}

}  // namespace dspark::planted
