// For a device compiler whose hardware has no warpgroups: the names of
// csrc/backends/simt/warpgroup.h, so that kernels which use them can be read. They are not
// compiled. Part of that compiler's shim.
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
template <int W>
DSPARK_DEVICE void arrive(TransferBarrier&);
DSPARK_DEVICE void arrive_and_expect(TransferBarrier&, int) {
    trap();
}
DSPARK_DEVICE void await_phase(TransferBarrier&, int) {
    trap();
}
template <class T, int N>
DSPARK_DEVICE void copy_bulk(SharedArray<T, N>&, int, Global<const void>, int64_t, int,
                             TransferBarrier&);
DSPARK_DEVICE void publish_operands() {
    trap();
}

template <int N>
DSPARK_DEVICE Operand operand_at(const SharedArray<uint32_t, N>&, int, int, int);
DSPARK_DEVICE void begin_products() {
    trap();
}
DSPARK_DEVICE void end_batch() {
    trap();
}
template <int kBatches>
DSPARK_DEVICE void await_products() {
    trap();
}
template <int N>
DSPARK_DEVICE void take_sums(float (&)[N]) {
    trap();
}
template <class Half, int kColumns>
DSPARK_DEVICE void multiply_group(const Operand&, const Operand&, bool, float (&)[kColumns / 2]);
template <class Half, int kColumns>
DSPARK_DEVICE void multiply_group(const uint32_t (&)[4], const Operand&, bool,
                                  float (&)[kColumns / 2]);

template <class Shared, class Args>
int launch_large(const char* name, void (*kernel)(Args), Dim3 grid, int threads, void* stream,
                 const Args& args) {
    return launch(name, kernel, grid, threads, stream, args);
}
inline bool has_warpgroups() {
    return false;
}

}  // namespace dspark::DSPARK_ISA
