// Barriers that are missing or too narrow.
#include "device/lanes.h"
#include "planted.h"

namespace dspark::DSPARK_ISA {
namespace {

struct ReverseArgs {
    Global<int> out;  // [256] for each block
};
struct ReverseShared {
    SharedArray<int, kThreads> tile;
};

enum class Barrier { kNone, kWarp, kBlock };

template <int W, Barrier kBarrier>
DSPARK_DEVICE void meet() {
    if constexpr (kBarrier == Barrier::kWarp) sync_warp<W>();
    if constexpr (kBarrier == Barrier::kBlock) sync_block();
}

// Passes each thread's number to the thread across the block.
template <int W, Barrier kBarrier>
DSPARK_KERNEL(kThreads)
void reverse_block(ReverseArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(ReverseShared, shared);
    const int t = thread_idx();
    shared.tile[t] = -1;
    sync_block();
    shared.tile[t] = t;
    meet<W, kBarrier>();
    args.out[t] = shared.tile[kThreads - 1 - t];
}

// The same inside each warp.
template <int W, Barrier kBarrier>
DSPARK_KERNEL(kThreads)
void reverse_warp(ReverseArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(ReverseShared, shared);
    const int t = thread_idx();
    shared.tile[t] = -1;
    sync_warp<W>();
    shared.tile[t] = t;
    meet<W, kBarrier>();
    args.out[t] = shared.tile[warp_index<W>() * W + W - 1 - lane_index<W>()];
}

// A warp operation that moves a value, which does not order memory.
template <int W>
DSPARK_KERNEL(kThreads)
void reverse_warp_by_shuffle(ReverseArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(ReverseShared, shared);
    const int t = thread_idx();
    shared.tile[t] = t;
    const int partner = shuffle_xor<W>(t, W - 1);
    args.out[t] = shared.tile[partner];
}

// Overwrites what others may still read: the second barrier of a loop.
template <int W, Barrier kBarrier>
DSPARK_KERNEL(kThreads)
void rotate_twice(ReverseArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(ReverseShared, shared);
    const int t = thread_idx();
    int value = t;
    for (int round = 0; round < 2; ++round) {
        shared.tile[t] = value;
        sync_block();
        value = shared.tile[(t + 1) % kThreads];
        meet<W, kBarrier>();
    }
    args.out[t] = value;
}

// Through device memory, in one block.
template <int W, Barrier kBarrier>
DSPARK_KERNEL(kThreads)
void reverse_in_device_memory(ReverseArgs args) {
    check_warp_size<W>();
    const int t = thread_idx();
    args.out[t] = t;
    meet<W, kBarrier>();
    const int value = args.out[kThreads - 1 - t];
    sync_block();
    args.out[t] = value;
}

// Every block writes the same place, or its own.
template <int W, bool kApart>
DSPARK_KERNEL(kThreads)
void store_from_blocks(ReverseArgs args) {
    check_warp_size<W>();
    const int block = block_idx().x;
    args.out[(kApart ? block * kThreads : 0) + thread_idx()] = kThreads - 1 - thread_idx();
}

// Block 0 reads what block 1 writes.
template <int W>
DSPARK_KERNEL(kThreads)
void read_other_block(ReverseArgs args) {
    check_warp_size<W>();
    const int t = thread_idx();
    if (block_idx().x == 0) {
        args.out[t] = args.out[kThreads + t];
    } else {
        args.out[kThreads + t] = t;
    }
}

}  // namespace
}  // namespace dspark::DSPARK_ISA

namespace dspark::planted {
namespace {

using namespace dspark::DSPARK_ISA;

template <class Expected>
Outcome run_reverse(void (*kernel)(ReverseArgs), int blocks, Expected expected) {
    DeviceVector<int> out("out", 2 * kBlock);
    const int code =
        launch("reverse", kernel, {blocks, 1, 1}, kBlock, nullptr, ReverseArgs{out.data()});
    return {code, all_of(kBlock * blocks, [&](int i) { return out[i] == expected(i % kBlock); })};
}

int reversed(int t) {
    return kBlock - 1 - t;
}
template <int W>
int reversed_in_warp(int t) {
    return t / W * W + W - 1 - t % W;
}

#define DSPARK_PLANTED(Name, name, kernel, blocks, expected) \
    struct Name {                                            \
        static constexpr const char* kName = name;           \
        template <int W>                                     \
        static Outcome run() {                               \
            return run_reverse(kernel, blocks, expected);    \
        }                                                    \
    };

DSPARK_PLANTED(MissingBarrier, "missing_barrier", (reverse_block<W, Barrier::kNone>), 1, reversed)
DSPARK_PLANTED(NarrowBarrier, "narrow_barrier", (reverse_block<W, Barrier::kWarp>), 1, reversed)
DSPARK_PLANTED(BlockBarrier, "block_barrier", (reverse_block<W, Barrier::kBlock>), 1, reversed)
DSPARK_PLANTED(MissingWarpBarrier, "missing_warp_barrier", (reverse_warp<W, Barrier::kNone>), 1,
               reversed_in_warp<W>)
DSPARK_PLANTED(ShuffleAsBarrier, "shuffle_as_barrier", reverse_warp_by_shuffle<W>, 1,
               reversed_in_warp<W>)
DSPARK_PLANTED(WarpBarrier, "warp_barrier", (reverse_warp<W, Barrier::kWarp>), 1,
               reversed_in_warp<W>)
DSPARK_PLANTED(MissingSecondBarrier, "missing_second_barrier", (rotate_twice<W, Barrier::kNone>), 1,
               [](int t) { return (t + 2) % kBlock; })
DSPARK_PLANTED(SecondBarrier, "second_barrier", (rotate_twice<W, Barrier::kBlock>), 1,
               [](int t) { return (t + 2) % kBlock; })
DSPARK_PLANTED(DeviceMemoryRace, "device_memory_race",
               (reverse_in_device_memory<W, Barrier::kNone>), 1, reversed)
DSPARK_PLANTED(DeviceMemoryBarrier, "device_memory_barrier",
               (reverse_in_device_memory<W, Barrier::kBlock>), 1, reversed)
DSPARK_PLANTED(BlocksStoreTogether, "blocks_store_together", (store_from_blocks<W, false>), 2,
               reversed)
DSPARK_PLANTED(BlocksStoreApart, "blocks_store_apart", (store_from_blocks<W, true>), 2, reversed)
DSPARK_PLANTED(BlockReadsOther, "block_reads_other", read_other_block<W>, 2, reversed)

}  // namespace

std::vector<Case> synchronisation_cases() {
    return {make_case<MissingBarrier>(),       make_case<NarrowBarrier>(),
            make_case<BlockBarrier>(),         make_case<MissingWarpBarrier>(),
            make_case<ShuffleAsBarrier>(),     make_case<WarpBarrier>(),
            make_case<MissingSecondBarrier>(), make_case<SecondBarrier>(),
            make_case<DeviceMemoryRace>(),     make_case<DeviceMemoryBarrier>(),
            make_case<BlocksStoreTogether>(),  make_case<BlocksStoreApart>(),
            make_case<BlockReadsOther>()};
}

}  // namespace dspark::planted
