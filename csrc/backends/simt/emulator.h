// The host SIMT emulator as seen from outside: what a test sets and reads, and the entry points
// that the device vocabulary (backend.h) compiles to.
//
// One launch runs at a time, in the calling thread. Nothing here is safe to call from two threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/float_type.h"

namespace dspark::emulator {

struct Dim3 {
    int x, y, z;
};

// What a launch can find wrong. The text of the finding is in last_report().
enum class Error : int {
    kNone = 0,
    kOutOfBounds,
    kUnaligned,
    kReadOnly,
    kUninitialised,
    kRace,
    kDivergentBarrier,
    kDivergentCollective,
    kDeadlock,
    kWarpSize,
    kBadLane,
    kTrap,
    kBadLaunch,
    kUnfinished,
};

// ---- settings -----------------------------------------------------------------------------------

// Each level includes those before it. Barriers, warp operations, bounds, alignment, read-only and
// uninitialised buffers are checked at every level.
enum class Level : int {
    kBounds = 0,
    kCounters = 1,  // bytes, segments, bank conflicts
    kFull = 2,      // races, reads of uninitialised shared memory
};
void set_level(Level level);
// 0: threads run in order, each up to its next synchronisation. Else a random schedule.
void set_seed(uint64_t seed);
// Shared memory holds this pattern when a block starts.
void set_poison(uint32_t pattern);
// Memory accesses a thread may make between two synchronisations before it counts as hung.
void set_access_limit(int64_t accesses);
// The warp size of the emulated device, for launch sequences that ask: 4, 32 (default) or 64.
void set_warp_size(int warp_size);
int warp_size();
// Whether the device, with warps of 32, has warpgroups; not by default.
void set_warpgroups(bool has_them);
bool has_warpgroups();
// Whether the device, with warps of 64, multiplies narrow codes with scales; not by default.
void set_scaled_matrix_unit(bool has_one);
bool has_scaled_matrix_unit();
// Likewise how many multiprocessors it has; 2 by default.
void set_multiprocessors(int count);
int multiprocessors();
// Counts what passes between memory and a cache of this size, from now on empty; 0: none.
void set_cache(int64_t bytes);

// Instead of running a kernel, launch() passes it to the hook and returns what the hook returns.
using LaunchHook = int (*)(const char* name, const int* grid, int threads, const void* args,
                           size_t args_bytes);
void set_launch_hook(LaunchHook hook);  // nullptr: none

// ---- device memory ------------------------------------------------------------------------------

// Kernels may touch registered buffers only. Registering a buffer again replaces its flags; a
// buffer that overlaps another one is refused (returns false). Empty buffers are accepted and
// forgotten.
enum BufferFlags : int { kReadWrite = 0, kReadOnly = 1, kUninitialised = 2 };
bool register_buffer(const void* begin, int64_t bytes, const char* name, int flags);
bool unregister_buffer(const void* begin);
void unregister_all_buffers();

// ---- results ------------------------------------------------------------------------------------

// Of the last launch that failed; empty if none has.
const char* last_report();
Error last_error();
void clear_error();
// The last report if `code` is its error, else the name of the error.
const char* error_text(int code);

// {"kernels": {name: {counter: value}}, "buffers": {name: {...}}}, valid until the next call.
const char* counters_json();
void reset_counters();

// ---- entry points of the device vocabulary ------------------------------------------------------

struct KernelCall {
    void (*run)(const KernelCall& call);  // one thread
    const void* kernel;
    const void* args;
    size_t args_bytes;
};
int launch_kernel(const char* name, const KernelCall& call, Dim3 grid, int threads);

int thread_index();
Dim3 block_index();
Dim3 grid_size();

enum class Operation : uint8_t { kShuffle, kXor, kUp, kDown, kBallot, kSync, kMatrix };
uint64_t warp_operation(Operation operation, int warp_size, uint64_t value, int argument,
                        const char* file, int line);
// The registers of one lane for a matrix instruction, csrc/backends/simt/matrix.h.
struct MatrixRegisters {
    const uint32_t* left;
    const uint32_t* right;
    float* sums;
};
void matrix_operation(FloatType type, int warp_size, const MatrixRegisters& registers,
                      const char* file, int line);
void scaled_matrix_operation(const MatrixRegisters& registers, bool is_right_fp4, const char* file,
                             int line);
void wide_matrix_operation(FloatType type, const MatrixRegisters& registers, const char* file,
                           int line);
uint32_t multiply_halves(FloatType type, uint32_t a, uint32_t b);
uint32_t narrow_e4m3(float value);
float widen_e4m3(uint32_t code);
void block_barrier(const char* file, int line);
void require_warp_size(int warp_size);
[[noreturn]] void trap();

// Tickets and flags; what they mean is written at backend.h.
uint32_t take_ticket(uint32_t* counter);
void publish(uint32_t* flag, uint32_t value);
void await(const uint32_t* flag, uint32_t value);

// Warpgroups; what they mean is written at warpgroup.h. A barrier is known by its address.
void init_barrier(void* barrier, int arrivals);
void arrive(void* barrier, int bytes);
void await_phase(void* barrier, int parity, const char* file, int line);
void copy_bulk(void* to, const void* from, int bytes, void* barrier);
void publish_operands();

enum class GroupOperation : uint8_t { kBegin, kMultiply, kEndBatch, kAwait };
struct GroupOperand {
    const void* address;
    int depth_stride;
    int line_stride;
};
struct GroupCall {
    GroupOperation operation;
    FloatType type;
    int columns;
    bool accumulate;
    int batches;
    const uint32_t* left_words;  // nullptr: `left`
    GroupOperand left;
    GroupOperand right;
    float* sums;
};
void group_operation(const GroupCall& call, const char* file, int line);

// To be called before the access itself. Do not return if the access is wrong.
void on_global(const void* address, int bytes, int alignment, bool store);
// A load of 16 bytes that is marked to leave caches first.
void on_load_once(const void* address);
void on_shared(const void* address, int bytes, int alignment, bool store);
[[noreturn]] void fail_shared_index(int64_t index, int64_t size);
void* shared_memory(size_t bytes, size_t alignment);

}  // namespace dspark::emulator
