// For a device compiler whose hardware has no warpgroups: the names of
// csrc/backends/simt/warpgroup.h that kernels use outside of what depends on their template
// arguments. Such kernels are not compiled. Part of that compiler's shim.
#pragma once

#include <cstdint>

namespace dspark::DSPARK_ISA {

template <int W>
constexpr bool kHasWarpgroups = false;
template <int W>
constexpr bool kCanHaveWarpgroups = false;

constexpr int kWarpgroupThreads = 128;

struct TransferBarrier {
    uint64_t state;
};
struct Operand {};

DSPARK_DEVICE void init_barrier(TransferBarrier&, int) {
    trap();
}
DSPARK_DEVICE void arrive_and_expect(TransferBarrier&, int) {
    trap();
}
DSPARK_DEVICE void await_phase(TransferBarrier&, int) {
    trap();
}
DSPARK_DEVICE void publish_operands() {
    trap();
}
DSPARK_DEVICE void begin_products() {
    trap();
}
DSPARK_DEVICE void end_batch() {
    trap();
}

inline bool has_warpgroups() {
    return false;
}

}  // namespace dspark::DSPARK_ISA
