// The threads that route one token: a warp where its lanes can hold the experts, else a block. Team
// member `rank` holds the experts rank, rank + kSize, rank + 2 kSize, ...
//
// All members must call each function; all get its result. sync() orders the shared memory of the
// team.
#pragma once

#include "device/block_reduce.h"

namespace dspark::DSPARK_ISA::router {

template <int W>
struct WarpTeam {
    static constexpr int kSize = W;
    struct Scratch {};
    Scratch& scratch;

    DSPARK_DEVICE static int index() { return warp_index<W>(); }  // in the block
    DSPARK_DEVICE static int rank() { return lane_index<W>(); }
    DSPARK_DEVICE void sync() const { sync_warp<W>(); }
    DSPARK_DEVICE bool any(bool condition) const { return ballot<W>(condition) != 0; }
    template <class T>
    DSPARK_DEVICE T max(T v) const {
        return warp_max<W>(v);
    }
    // for h = kSize / 2, ..., 1: v of rank r += v of rank r + h.
    DSPARK_DEVICE float tree_sum(float v) const {
        for (int half = W / 2; half > 0; half /= 2) v += shuffle_xor<W>(v, half);
        return v;
    }
};

template <int W>
struct BlockTeam {
    static constexpr int kSize = kThreads;
    struct Scratch {
        BlockReduceScratch<W, uint32_t> condition;
        BlockReduceScratch<W, float> floats;
        BlockReduceScratch<W, uint64_t> keys;
        SharedArray<float, kThreads> lanes;
    };
    Scratch& scratch;

    DSPARK_DEVICE static int index() { return 0; }
    DSPARK_DEVICE static int rank() { return thread_idx(); }
    DSPARK_DEVICE void sync() const { sync_block(); }
    DSPARK_DEVICE bool any(bool condition) const {
        const bool result = block_any<W>(condition, scratch.condition);
        sync_block();
        return result;
    }
    DSPARK_DEVICE float max(float v) const {
        const float result = block_max<W>(v, scratch.floats);
        sync_block();
        return result;
    }
    DSPARK_DEVICE uint64_t max(uint64_t v) const {
        const uint64_t result = block_max<W>(v, scratch.keys);
        sync_block();
        return result;
    }
    DSPARK_DEVICE float tree_sum(float v) const {
        scratch.lanes[rank()] = v;
        sync_block();
        for (int half = kSize / 2; half > 0; half /= 2) {
            if (rank() < half) {
                scratch.lanes[rank()] = v = v + scratch.lanes[rank() + half];
            }
            sync_block();
        }
        return scratch.lanes[0];
    }
};

}  // namespace dspark::DSPARK_ISA::router
