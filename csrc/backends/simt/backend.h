// The device vocabulary on the host SIMT emulator, and what each of its names means on every
// backend.
//
// A kernel is `template <int W> DSPARK_KERNEL(kThreads) void name(Args args)`: W is the warp size,
// Args one trivially copyable struct. Blocks are one-dimensional. Blocks of a launch must not touch
// what another block of it writes, unless a ticket or a flag orders the two.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "backends/simt/emulator.h"
#include "backends/simt/global.h"
#include "backends/simt/shared.h"

// An inline function for kernels, and one that launch sequences may call, too.
#define DSPARK_DEVICE inline __attribute__((always_inline))
#define DSPARK_HOST_DEVICE DSPARK_DEVICE
// Prefix of a kernel that is launched with this many threads per block. A second number says how
// many blocks a multiprocessor must be able to hold; 1 lets the compiler take the registers it
// wants.
#define DSPARK_KERNEL(...) [[maybe_unused]] static
// Before a loop whose counter numbers registers: it has to be unrolled.
#define DSPARK_UNROLL
// Declares, in the body of a kernel, an uninitialised object that the threads of a block share: a
// struct of SharedArrays. One per kernel.
#define DSPARK_SHARED(Type, name)                                               \
    static_assert(std::is_trivial_v<Type>, "shared memory is not constructed"); \
    Type& name = *static_cast<Type*>(::dspark::emulator::shared_memory(sizeof(Type), alignof(Type)))

// The same for an object larger than 48 KiB, in kernels that launch_large starts.
#define DSPARK_LARGE_SHARED(Type, name) DSPARK_SHARED(Type, name)

namespace dspark::DSPARK_ISA {

using Dim3 = emulator::Dim3;

// ---- where a thread is --------------------------------------------------------------------------

DSPARK_DEVICE int thread_idx() {
    return emulator::thread_index();
}
DSPARK_DEVICE Dim3 block_idx() {
    return emulator::block_index();
}
DSPARK_DEVICE Dim3 grid_dim() {
    return emulator::grid_size();
}

// Ends the launch with an error.
DSPARK_DEVICE void trap() {
    emulator::trap();
}

// Whether W is the warp size of the hardware that this code is compiled for.
template <int W>
DSPARK_DEVICE constexpr bool is_hardware_warp() {
    return W == 4 || W == 32 || W == 64;
}
// The first statement of every kernel: traps where W is not the warp size of the hardware.
template <int W>
DSPARK_DEVICE void check_warp_size() {
    static_assert(is_hardware_warp<W>(), "the emulator has warps of 4, 32 and 64");
    emulator::require_warp_size(W);
}

// ---- warps --------------------------------------------------------------------------------------
// All W lanes of a warp must reach the same call. Only sync_warp and sync_block order memory.

template <class T>
DSPARK_DEVICE uint64_t to_word(T v) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    uint64_t word = 0;
    memcpy(&word, &v, sizeof(T));
    return word;
}
template <class T>
DSPARK_DEVICE T from_word(uint64_t word) {
    T v;
    memcpy(&v, &word, sizeof(T));
    return v;
}

// v of lane source_lane, in [0, W).
template <int W, class T>
DSPARK_DEVICE T shuffle(T v, int source_lane, const char* file = __builtin_FILE(),
                        int line = __builtin_LINE()) {
    return from_word<T>(emulator::warp_operation(emulator::Operation::kShuffle, W, to_word(v),
                                                 source_lane, file, line));
}
// v of lane `lane ^ mask`, mask in [0, W).
template <int W, class T>
DSPARK_DEVICE T shuffle_xor(T v, int mask, const char* file = __builtin_FILE(),
                            int line = __builtin_LINE()) {
    return from_word<T>(
        emulator::warp_operation(emulator::Operation::kXor, W, to_word(v), mask, file, line));
}
// v of lane `lane - delta`, delta in [0, W); the own v where there is no such lane.
template <int W, class T>
DSPARK_DEVICE T shuffle_up(T v, int delta, const char* file = __builtin_FILE(),
                           int line = __builtin_LINE()) {
    return from_word<T>(
        emulator::warp_operation(emulator::Operation::kUp, W, to_word(v), delta, file, line));
}
// v of lane `lane + delta`, delta in [0, W); the own v where there is no such lane.
template <int W, class T>
DSPARK_DEVICE T shuffle_down(T v, int delta, const char* file = __builtin_FILE(),
                             int line = __builtin_LINE()) {
    return from_word<T>(
        emulator::warp_operation(emulator::Operation::kDown, W, to_word(v), delta, file, line));
}
// Bit l is the condition of lane l.
template <int W>
DSPARK_DEVICE uint64_t ballot(bool condition, const char* file = __builtin_FILE(),
                              int line = __builtin_LINE()) {
    return emulator::warp_operation(emulator::Operation::kBallot, W, condition ? 1 : 0, 0, file,
                                    line);
}
// What a lane wrote before is visible to the lanes of its warp after.
template <int W>
DSPARK_DEVICE void sync_warp(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    emulator::warp_operation(emulator::Operation::kSync, W, 0, 0, file, line);
}

// What a thread wrote before is visible to the threads of its block after. All threads of the block
// must reach the same call; none may have finished.
DSPARK_DEVICE void sync_block(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    emulator::block_barrier(file, line);
}

// ---- order between blocks of a launch ---------------------------------------------------------
// Each is an operation of one thread. What its block did before the last sync_block, and the thread
// itself before the call, comes before it; what the thread does after, and its block after the next
// sync_block, comes after it. csrc/device/tickets.h says how a kernel uses them and cannot hang.

// Adds one to the counter and returns what it was. All that came before the lower tickets of this
// counter is visible to the holder of a higher one.
DSPARK_DEVICE uint32_t take_ticket(Global<uint32_t> counter) {
    return emulator::take_ticket(counter.address());
}
// Waits until what this thread has stored lies where all blocks see it. All threads of a block call
// it before the sync_block that precedes take_ticket or publish: hardware may let a barrier pass
// while stores of other warps are still on their way.
DSPARK_DEVICE void drain_stores() {}
// Stores the value in a flag. What came before is visible to whoever awaits it.
DSPARK_DEVICE void publish(Global<uint32_t> flag, uint32_t value) {
    emulator::publish(flag.address(), value);
}
// Waits until the flag holds `value` or more. Another block publishes it, one that holds a lower
// ticket of a counter from which this block has taken one.
DSPARK_DEVICE void await(Global<const uint32_t> flag, uint32_t value) {
    emulator::await(flag.address(), value);
}

// ---- memory -------------------------------------------------------------------------------------

struct alignas(16) Bytes16 {
    uint32_t word[4];
};
// Reads 16 aligned bytes that no thread of the launch writes and that are not worth caching.
DSPARK_DEVICE Bytes16 load16(Global<const void> p, int64_t byte_offset) {
    return global_cast<const Bytes16>(global_cast<const char>(p) + byte_offset)[0];
}
// The same of what is not read again before much else is: it leaves caches first.
DSPARK_DEVICE Bytes16 load16_once(Global<const void> p, int64_t byte_offset) {
    const auto at = global_cast<const Bytes16>(global_cast<const char>(p) + byte_offset);
    emulator::on_load_once(at.address());
    return *at.address();
}
// Writes 16 aligned bytes.
DSPARK_DEVICE void store16(Global<void> p, int64_t byte_offset, Bytes16 value) {
    global_cast<Bytes16>(global_cast<char>(p) + byte_offset)[0] = value;
}

// ---- host ---------------------------------------------------------------------------------------

// Text for an error code of launch().
inline const char* error_string(int code) {
    return emulator::error_text(code);
}

// Calls f with the warp size of the device as a constant (std::integral_constant) and returns its
// error code, or the code of the failure to find out.
template <class Function>
int with_warp_size(Function&& f) {
    switch (emulator::warp_size()) {
        case 4:
            return f(std::integral_constant<int, 4>{});
        case 64:
            return f(std::integral_constant<int, 64>{});
        default:
            return f(std::integral_constant<int, 32>{});
    }
}

// How many blocks the device runs side by side, at least.
inline int multiprocessors() {
    return emulator::multiprocessors();
}

// Runs the kernel with `threads` threads in each block of the grid. 0, or an error code at once if
// the launch fails; a grid with a zero dimension launches nothing. The emulator has no streams.
template <class Args>
int launch(const char* name, void (*kernel)(Args), Dim3 grid, int threads, void* /*stream*/,
           const Args& args) {
    static_assert(std::is_trivially_copyable_v<Args>, "arguments travel as bytes");
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return 0;
    const emulator::KernelCall call = {
        [](const emulator::KernelCall& c) {
            (*static_cast<void (*const*)(Args)>(c.kernel))(*static_cast<const Args*>(c.args));
        },
        &kernel, &args, sizeof(Args)};
    return emulator::launch_kernel(name, call, grid, threads);
}
// The same for a kernel whose DSPARK_LARGE_SHARED object is a Shared.
template <class Shared, class Args>
int launch_large(const char* name, void (*kernel)(Args), Dim3 grid, int threads, void* stream,
                 const Args& args) {
    return launch(name, kernel, grid, threads, stream, args);
}

}  // namespace dspark::DSPARK_ISA

#include "backends/simt/matrix.h"
#include "backends/simt/scaled_matrix.h"
#include "backends/simt/warpgroup.h"
