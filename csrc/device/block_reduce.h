// Reductions over the threads of a block. All kThreads threads must call; every thread gets the
// result. What holds of the operation in warp_reduce.h holds here.
//
// A call passes sync_block once. Its scratch may be used again, by whatever call, only after a
// further sync_block; two calls in a row take two scratches.
#pragma once

#include "device/warp_reduce.h"

namespace dspark::DSPARK_ISA {

// Member of a kernel's shared struct. T has 4 or 8 bytes.
template <int W, class T>
struct BlockReduceScratch {
    SharedArray<T, kWarps<W>> of_warp;
};

template <int W, class T, class Operation>
DSPARK_DEVICE T block_reduce(T v, Operation operation, BlockReduceScratch<W, T>& scratch) {
    const int lane = lane_index<W>();
    v = warp_reduce<W>(v, operation);
    if (lane == 0) scratch.of_warp[warp_index<W>()] = v;
    sync_block();
    // Each warp reduces the results of all warps. There may be more of them than lanes, or fewer:
    // then lanes repeat the first, so that no neutral element is needed.
    if constexpr (kWarps<W> >= W) {
        v = scratch.of_warp[lane];
        for (int warp = lane + W; warp < kWarps<W>; warp += W) {
            v = operation(v, T(scratch.of_warp[warp]));
        }
        return warp_reduce<W>(v, operation);
    } else {
        v = scratch.of_warp[lane % kWarps<W>];
        for (int distance = kWarps<W> / 2; distance > 0; distance /= 2) {
            v = operation(v, shuffle_xor<W>(v, distance));
        }
        return v;
    }
}

template <int W, class T>
DSPARK_DEVICE T block_sum(T v, BlockReduceScratch<W, T>& scratch) {
    return block_reduce<W>(v, Sum(), scratch);
}
template <int W, class T>
DSPARK_DEVICE T block_max(T v, BlockReduceScratch<W, T>& scratch) {
    return block_reduce<W>(v, Max(), scratch);
}
template <int W, class T>
DSPARK_DEVICE T block_min(T v, BlockReduceScratch<W, T>& scratch) {
    return block_reduce<W>(v, Min(), scratch);
}
// Whether the condition holds in any thread of the block.
template <int W>
DSPARK_DEVICE bool block_any(bool condition, BlockReduceScratch<W, uint32_t>& scratch) {
    const uint32_t of_warp = ballot<W>(condition) != 0 ? 1 : 0;
    if (lane_index<W>() == 0) scratch.of_warp[warp_index<W>()] = of_warp;
    sync_block();
    uint32_t any = 0;
    for (int warp = 0; warp < kWarps<W>; ++warp) any |= scratch.of_warp[warp];
    return any != 0;
}

}  // namespace dspark::DSPARK_ISA
