// Where a thread stands in its block and its warp. Blocks have kThreads threads; warps have W
// lanes, which are threads of consecutive index.
#pragma once

#include "device/backend.h"

namespace dspark::DSPARK_ISA {

constexpr int kThreads = 256;

template <int W>
constexpr int kWarps = kThreads / W;

template <int W>
DSPARK_DEVICE int lane_index() {
    return thread_idx() % W;
}
template <int W>
DSPARK_DEVICE int warp_index() {
    return thread_idx() / W;
}

}  // namespace dspark::DSPARK_ISA
