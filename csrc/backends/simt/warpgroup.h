// Warpgroups in the device vocabulary of the host SIMT emulator, and what the names mean on every
// backend: copies of whole stretches of device memory into shared memory, barriers that know when
// such copies have come, and matrix products of four warps with operands in shared memory. Part of
// backend.h. Only hardware with warps of 32 has them.
#pragma once

#include <cstdint>
#include <type_traits>

#include "backends/simt/emulator.h"
#include "backends/simt/shared.h"
#include "device/float_type.h"

namespace dspark::DSPARK_ISA {

// Whether the hardware this code is compiled for has all this. Not known on the host.
template <int W>
constexpr bool kHasWarpgroups = W == 32;
// Whether some hardware with warps of W does: for others kernels on warpgroups are not compiled.
template <int W>
constexpr bool kCanHaveWarpgroups = W == 32;

constexpr int kWarpgroupThreads = 128;  // of consecutive index, beginning at a multiple of this

// ---- barriers -----------------------------------------------------------------------------------
// A barrier goes through phases. One ends when the arrivals it counts have been made and the bytes
// that were announced have come; then the next begins. What came before the arrivals, and the bytes
// themselves, is visible to a thread that has awaited the end of the phase.

// In shared memory; not to be touched but by these functions.
struct TransferBarrier {
    uint64_t state;
};

// By one thread, before a sync_block that all users of the barrier pass.
DSPARK_DEVICE void init_barrier(TransferBarrier& barrier, int arrivals) {
    emulator::init_barrier(&barrier, arrivals);
}
// One arrival, of a warp: all lanes must reach the same call. What they did before comes before the
// end of the phase.
template <int W>
DSPARK_DEVICE void arrive(TransferBarrier& barrier, const char* file = __builtin_FILE(),
                          int line = __builtin_LINE()) {
    emulator::warp_operation(emulator::Operation::kSync, W, 0, 0, file, line);
    if (emulator::thread_index() % W == 0) emulator::arrive(&barrier, 0);
}
// One arrival, of one thread, which also announces bytes. It orders nothing that the thread did.
DSPARK_DEVICE void arrive_and_expect(TransferBarrier& barrier, int bytes) {
    emulator::arrive(&barrier, bytes);
}
// Waits for the end of the current phase if its number has this parity, else of none. A barrier
// begins with phase 0.
DSPARK_DEVICE void await_phase(TransferBarrier& barrier, int parity,
                               const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    emulator::await_phase(&barrier, parity, file, line);
}
// Starts to copy `bytes` of device memory, which no thread of the launch writes, to to[first] and
// what follows. Both places and the size are multiples of 16 bytes. The bytes count for the current
// phase of the barrier.
template <class T, int N>
DSPARK_DEVICE void copy_bulk(SharedArray<T, N>& to, int first, Global<const void> from,
                             int64_t byte_offset, int bytes, TransferBarrier& barrier) {
    static_assert(16 % sizeof(T) == 0);
    const int last = first + bytes / static_cast<int>(sizeof(T)) - 1;
    if (first < 0 || last >= N) emulator::fail_shared_index(first < 0 ? first : last, N);
    emulator::copy_bulk(&to.element[first], static_cast<const char*>(from.address()) + byte_offset,
                        bytes, &barrier);
}
// What this thread has stored to shared memory can be an operand of products after the next barrier
// or arrival.
DSPARK_DEVICE void publish_operands() {
    emulator::publish_operands();
}

// ---- products -----------------------------------------------------------------------------------
// All threads of a warpgroup must reach the same call of each of these. Products run by themselves,
// in order: until they have been awaited, their operands must not be stored to, nor their sums and
// the words of their left matrix be touched.

// A matrix of 16-bit elements in shared memory, 16 deep, put together from pieces of 8 lines of 8
// elements, 16 bytes each and 128 in a piece. The piece of the next 8 lines begins line_stride
// bytes after a piece, that of the next 8 depths depth_stride bytes after it.
struct Operand {
    const void* address;
    int depth_stride;
    int line_stride;
};
// The one that begins with word `first` of an array, a multiple of 4.
template <int N>
DSPARK_DEVICE Operand operand_at(const SharedArray<uint32_t, N>& words, int first, int depth_stride,
                                 int line_stride) {
    if (first < 0 || first >= N) emulator::fail_shared_index(first, N);
    return {&words.element[first], depth_stride, line_stride};
}

// Registers hold what the products that follow read, and may be given over to them. Comes before
// the first product after each await_products.
DSPARK_DEVICE void begin_products(const char* file = __builtin_FILE(),
                                  int line = __builtin_LINE()) {
    emulator::GroupCall call = {};
    call.operation = emulator::GroupOperation::kBegin;
    emulator::group_operation(call, file, line);
}
// The products since the last call are a batch.
DSPARK_DEVICE void end_batch(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    emulator::GroupCall call = {};
    call.operation = emulator::GroupOperation::kEndBatch;
    emulator::group_operation(call, file, line);
}
// Waits until all batches but the last kBatches have finished.
template <int kBatches>
DSPARK_DEVICE void await_products(const char* file = __builtin_FILE(),
                                  int line = __builtin_LINE()) {
    emulator::GroupCall call = {};
    call.operation = emulator::GroupOperation::kAwait;
    call.batches = kBatches;
    emulator::group_operation(call, file, line);
}
// Between await_products and the first use of sums: a compiler moves no use before it. It does not
// know by itself that registers change while a product is on its way.
template <int N>
DSPARK_DEVICE void take_sums(float (&)[N]) {}

// One product over a depth of 16: 64 lines of the left matrix with kColumns (a multiple of 8) of
// the right one, whose lines are the columns of the sums. Adds to the sums, or begins them. With w
// the warp of the group and l the lane, entry i of the sums is of left line
//     16 w + l / 4 + 8 (i / 2 % 2)    and column    8 (i / 4) + 2 (l % 4) + i % 2.
// A sum depends on its two lines and what it was before, never on kColumns or on where they stand.
// Products are exact; the order and the rounding of their sum are the hardware's. The emulator adds
// them in the order of their depth, each addition rounded to nearest.
template <class Half, int kColumns>
DSPARK_DEVICE void multiply_group(const Operand& left, const Operand& right, bool accumulate,
                                  float (&sums)[kColumns / 2], const char* file = __builtin_FILE(),
                                  int line = __builtin_LINE()) {
    const emulator::GroupOperand of_left = {left.address, left.depth_stride, left.line_stride};
    const emulator::GroupOperand of_right = {right.address, right.depth_stride, right.line_stride};
    emulator::group_operation(
        {emulator::GroupOperation::kMultiply,
         std::is_same_v<Half, BFloat16> ? FloatType::kBFloat16 : FloatType::kFloat16, kColumns,
         accumulate, 0, nullptr, of_left, of_right, sums},
        file, line);
}
// The same with the left matrix in registers: word i of a lane holds, of line
//     16 w + l / 4 + 8 (i % 2),
// depth 2 (l % 4) + 8 (i / 2) and the next one, that in the high half.
template <class Half, int kColumns>
DSPARK_DEVICE void multiply_group(const uint32_t (&left)[4], const Operand& right, bool accumulate,
                                  float (&sums)[kColumns / 2], const char* file = __builtin_FILE(),
                                  int line = __builtin_LINE()) {
    const emulator::GroupOperand of_right = {right.address, right.depth_stride, right.line_stride};
    emulator::group_operation(
        {emulator::GroupOperation::kMultiply,
         std::is_same_v<Half, BFloat16> ? FloatType::kBFloat16 : FloatType::kFloat16,
         kColumns,
         accumulate,
         0,
         left,
         {},
         of_right,
         sums},
        file, line);
}

// ---- host ---------------------------------------------------------------------------------------

// Whether the current device has warpgroups and this build code for them.
inline bool has_warpgroups() {
    return emulator::has_warpgroups();
}

}  // namespace dspark::DSPARK_ISA
