// Prefix sums over the threads of a block, of integers. All kThreads threads must call.
//
// A call passes sync_block once. Its scratch may be used again, by whatever call, only after a
// further sync_block; two calls in a row take two scratches.
#pragma once

#include "device/warp_scan.h"

namespace dspark::DSPARK_ISA {

// Member of a kernel's shared struct. T has 4 or 8 bytes.
template <int W, class T>
struct BlockScanScratch {
    SharedArray<T, kWarps<W>> of_warp;
};

template <class T>
struct BlockScan {
    T before;  // v of the threads of smaller index, summed
    T total;   // v of all threads, summed; the same in every thread
};

template <int W, class T>
DSPARK_DEVICE BlockScan<T> block_exclusive_sum(T v, BlockScanScratch<W, T>& scratch) {
    const int lane = lane_index<W>();
    const int warp = warp_index<W>();
    const T up_to_here = warp_inclusive_sum<W>(v);
    if (lane == W - 1) scratch.of_warp[warp] = up_to_here;
    sync_block();
    // Each warp adds up the totals of all warps, and of those before it.
    T before = 0;
    T total = 0;
    for (int other = lane; other < kWarps<W>; other += W) {
        const T of_other = scratch.of_warp[other];
        total = Sum()(total, of_other);
        if (other < warp) before = Sum()(before, of_other);
    }
    before = Sum()(warp_sum<W>(before), up_to_here);
    return {static_cast<T>(before - v), warp_sum<W>(total)};
}

}  // namespace dspark::DSPARK_ISA
