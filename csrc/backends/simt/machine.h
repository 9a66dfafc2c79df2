// The state of the emulated device. Internal to the emulator.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/simt/counters.h"
#include "backends/simt/emulator.h"
#include "backends/simt/fiber.h"
#include "backends/simt/shadow.h"

namespace dspark::emulator {

constexpr int kMaxThreads = 1024;
constexpr int kMaxWarps = kMaxThreads / 4;

enum class State : uint8_t {
    kReady,
    kAtBarrier,
    kAtWarpOperation,
    kAtGroupOperation,
    kAtTransfer,
    kFinished
};

struct Thread {
    Fiber fiber;
    int index = 0;
    bool at_rest = false;  // the fiber waits for its next block
    State state = State::kFinished;
    // Of the wait, if any.
    Operation operation = Operation::kSync;
    const char* file = nullptr;
    int line = 0;
    uint64_t call_path = 0;  // 0 where paths are not told apart
    uint64_t value = 0;      // in: the operand, out: the result
    int argument = 0;
    const MatrixRegisters* registers = nullptr;
    const GroupCall* group_call = nullptr;
    int awaited = -1;  // transfer barrier

    uint32_t time = 0;          // of its last synchronisation
    int64_t slice = 0;          // accesses until it is interrupted
    int64_t accesses_left = 0;  // until it counts as hung
    AccessLog global_log;
    AccessLog shared_log;
    // What it has stored to shared memory since its last publish_operands: offsets and bytes.
    std::vector<std::pair<uint32_t, uint32_t>> unpublished;
};

struct Warp {
    int waiting = 0;  // lanes at a warp operation
    int syncs = 0;
    char passed[2] = {};  // what the thread sanitizer knows the even and the odd sync_warp by
};

// Text without memory of its own: a fiber that is given up frees nothing.
struct Text {
    char text[512];
};

struct Settings {
    Level level = Level::kFull;
    uint64_t seed = 0;
    uint32_t poison = 0xFFC0DEADu;  // as float or bfloat16 a NaN, as an index far out of bounds
    int64_t access_limit = 1 << 22;
    int warp_size = 32;
    bool warpgroups = false;
    bool scaled_matrix_unit = false;
    int multiprocessors = 2;
    std::unique_ptr<Cache> cache;
    LaunchHook hook = nullptr;
};

struct Machine {
    Settings settings;

    // ---- of the launch
    bool running = false;
    std::string kernel;
    const KernelCall* call = nullptr;
    Dim3 grid = {};
    int thread_count = 0;
    uint32_t launch_time = 0;
    Counters* counters = nullptr;
    Error failure = Error::kNone;  // as are the next two, of the thread that failed
    Text finding = {};
    int failed_thread = -1;

    // ---- of the block
    Dim3 block = {};
    uint32_t clock = 0;
    uint32_t block_time = 0;
    uint32_t barrier_time = 0;
    int warp_size = 0;  // 0: no warp operation yet
    int at_barrier = 0;
    int finished = 0;
    int barriers = 0;
    Warp warps[kMaxWarps];
    uint64_t ready[kMaxThreads / 64] = {};

    char* shared = nullptr;
    size_t shared_bytes = 0;
    bool shared_ready = false;
    Shadow shared_shadow;

    // ---- of the schedule
    uint64_t random = 0;
    int policy = 0;
    int last_run = 0;
    Fiber scheduler;
    Thread threads[kMaxThreads];

    // Places that the thread sanitizer knows orders by.
    char started = 0;
    char ended = 0;
    char shared_filled = 0;
    char barrier_passed[2] = {};
};

extern Machine machine;
extern Thread* current;  // the running thread; nullptr outside of kernels

// ---- report.cpp
Text format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));
Text thread_name(int thread);
// Ends the block with this finding about the running thread.
[[noreturn]] void fail(Error error, const Text& finding);
// Outside of fibers: the report of a finding, with which threads wait where if that matters.
void write_report(Error error, const Text& finding, int thread);

// ---- scheduler.cpp
void run_block(Dim3 block);
// Gives the processor to another thread; returns when this one is chosen again.
void yield();
// Notes where a thread waits; `frame` is that of the entry point it called.
void set_place(Thread& thread, const char* file, int line, const void* frame);
bool same_place(const Thread& a, const Thread& b);
void set_ready(Thread& thread);
void set_waiting(Thread& thread, State state);
uint64_t next_random();
// Whether what may happen early or late happens late in this block; never with seed 0. `what`
// tells apart several such choices.
bool draws_late(uint64_t what);
int64_t next_slice();

// ---- matrix.cpp
// Of the lanes of one warp, all at the same matrix instruction.
void multiply_matrices(const Thread* lanes, int warp_size);

// ---- transfer.cpp
void begin_transfers_of_block();
// All lanes of a warp, or all threads, have met: what one of them has learnt from transfer
// barriers, all know.
void share_transfers(int first, int threads);
// Copies that are on their way land; whether a thread can run because of that.
bool land_copies();
// Text if copies are on their way, else an empty one.
Text unfinished_transfers();

// ---- warpgroup.cpp
void begin_groups_of_block();
Text unfinished_products();

// ---- results.cpp
Counters& counters_of(const std::string& kernel);
// Count and forget the accesses of the warp that starts with thread `first`, or of all warps.
void count_accesses(int first, int lanes);
void count_all_accesses();

// Before each access of a kernel: interrupts the thread now and then.
void end_slice(Thread& thread);
inline void step(Thread& thread) {
    if (--thread.slice < 0) end_slice(thread);
}

}  // namespace dspark::emulator
