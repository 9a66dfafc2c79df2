// The threads of a block: which runs next, barriers, the end of a block.
#include <cstring>

#include "backends/simt/machine.h"
#include "backends/simt/ordering.h"

namespace dspark::emulator {
namespace {

// How a random schedule picks the next thread; drawn anew for each block.
enum Policy : int {
    kInOrder,    // seed 0
    kAnyThread,  // a random thread, interrupted at random accesses
    kOneWarp,    // stays with a warp as long as one of its threads can run
    kBackwards,  // the last thread that can run
    kPolicies,
};

constexpr int64_t kLongSlice = 1 << 16;

// splitmix64
uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

int random_below(int count) {
    return static_cast<int>(next_random() % static_cast<uint64_t>(count));
}

// The first ready thread from `from` on, cyclically; -1: none.
int find_ready(int from) {
    const int words = (machine.thread_count + 63) / 64;
    const uint64_t upper = ~uint64_t{0} << (from % 64);
    int word = from / 64;
    uint64_t bits = machine.ready[word] & upper;
    for (int looked_at = 0; bits == 0; ++looked_at) {
        if (looked_at == words) return -1;
        word = word + 1 == words ? 0 : word + 1;
        bits = machine.ready[word];
    }
    return word * 64 + __builtin_ctzll(bits);
}

int find_last_ready() {
    for (int word = (machine.thread_count - 1) / 64; word >= 0; --word) {
        const uint64_t bits = machine.ready[word];
        if (bits != 0) return word * 64 + 63 - __builtin_clzll(bits);
    }
    return -1;
}

// The first ready lane from `start` on, cyclically, of the warp that begins with thread `first`.
int find_ready_lane(int first, int width, int start) {
    for (int i = 0; i < width; ++i) {
        const int thread = first + (start + i) % width;
        if (thread < machine.thread_count && machine.threads[thread].state == State::kReady) {
            return thread;
        }
    }
    return -1;
}

int pick_thread() {
    switch (machine.policy) {
        case kAnyThread:
            return find_ready(random_below(machine.thread_count));
        case kOneWarp: {
            const int width = machine.warp_size != 0 ? machine.warp_size : 4;
            const int first = machine.last_run / width * width;
            const int lane = find_ready_lane(first, width, random_below(width));
            return lane >= 0 ? lane : find_ready(random_below(machine.thread_count));
        }
        case kBackwards:
            return find_last_ready();
        default:
            return find_ready(machine.last_run + 1 == machine.thread_count ? 0
                                                                           : machine.last_run + 1);
    }
}

void run_threads(void* argument) {
    Thread& self = *static_cast<Thread*>(argument);
    for (;;) {
        acquire(&machine.started);
        self.at_rest = false;
        machine.call->run(*machine.call);
        release(&machine.ended);
        self.at_rest = true;
        ++machine.finished;
        set_waiting(self, State::kFinished);
        yield();
    }
}

void begin_block(Dim3 block) {
    Machine& m = machine;
    m.block = block;
    m.block_time = m.barrier_time = ++m.clock;
    m.warp_size = m.at_barrier = m.finished = m.barriers = 0;
    m.shared_ready = false;
    begin_ordering_of_block();
    begin_transfers_of_block();
    begin_groups_of_block();
    for (Warp& warp : m.warps) warp.waiting = warp.syncs = 0;
    std::memset(m.ready, 0, sizeof(m.ready));
    m.policy = m.settings.seed == 0 ? kInOrder : 1 + random_below(kPolicies - 1);
    m.last_run = m.thread_count - 1;
    for (int i = 0; i < m.thread_count; ++i) {
        Thread& thread = m.threads[i];
        thread.index = i;
        if (!thread.at_rest) start_fiber(thread.fiber, i, run_threads, &thread);
        thread.time = m.block_time;
        thread.slice = next_slice();
        thread.accesses_left = m.settings.access_limit;
        set_ready(thread);
    }
}

// Nothing can run, and not all threads have finished.
void find_stall() {
    Machine& m = machine;
    int in_state[static_cast<int>(State::kFinished) + 1] = {};
    for (int i = 0; i < m.thread_count; ++i) ++in_state[static_cast<int>(m.threads[i].state)];
    const int in_warp_operation = in_state[static_cast<int>(State::kAtWarpOperation)];
    const int in_group_operation = in_state[static_cast<int>(State::kAtGroupOperation)];
    const int at_transfer = in_state[static_cast<int>(State::kAtTransfer)];
    m.failed_thread = -1;
    if (in_warp_operation > 0) {
        m.failure = Error::kDivergentCollective;
        m.finding =
            format("%d threads wait for lanes of their warp that do not come", in_warp_operation);
    } else if (in_group_operation > 0) {
        m.failure = Error::kDivergentCollective;
        m.finding = format("%d threads wait for threads of their warpgroup that do not come",
                           in_group_operation);
    } else if (at_transfer > 0) {
        m.failure = Error::kDeadlock;
        m.finding =
            format("%d threads wait for the end of a phase that nothing brings about", at_transfer);
    } else {
        m.failure = Error::kDivergentBarrier;
        m.finding = format("%d of %d threads wait at sync_block, %d have finished", m.at_barrier,
                           m.thread_count, m.finished);
    }
}

// All threads have finished; is there something that runs by itself and was not awaited?
void find_unfinished() {
    for (const Text& text : {unfinished_transfers(), unfinished_products()}) {
        if (text.text[0] == '\0') continue;
        machine.failure = Error::kUnfinished;
        machine.finding = text;
        machine.failed_thread = -1;
    }
}

// All threads have arrived.
void pass_barrier() {
    Machine& m = machine;
    const Thread& first = m.threads[0];
    for (int i = 1; i < m.thread_count; ++i) {
        if (!same_place(m.threads[i], first)) {
            fail(Error::kDivergentBarrier,
                 format("the threads of the block wait at different sync_block calls"));
        }
    }
    if (m.settings.level >= Level::kCounters) count_all_accesses();
    m.counters->block_barriers += 1;
    m.at_barrier = 0;
    ++m.barriers;
    m.barrier_time = ++m.clock;
    share_ordering();
    share_transfers(0, m.thread_count);
    for (int i = 0; i < m.thread_count; ++i) {
        m.threads[i].time = m.barrier_time;
        m.threads[i].accesses_left = m.settings.access_limit;
        set_ready(m.threads[i]);
    }
}

}  // namespace

uint64_t next_random() {
    return mix(machine.random += 0x9E3779B97F4A7C15ull);
}

bool draws_late(uint64_t what) {
    return machine.settings.seed != 0 && mix(machine.random ^ what << 32) % 2 == 0;
}

int64_t next_slice() {
    return machine.policy == kAnyThread ? static_cast<int64_t>(next_random() % 64) : kLongSlice;
}

void set_place(Thread& thread, const char* file, int line, [[maybe_unused]] const void* frame) {
    thread.file = file;
    thread.line = line;
#if DSPARK_SIMT_CALL_PATHS
    // Each frame begins with the address of its caller's frame and the address to return to.
    const char* stack = thread.fiber.stack;
    thread.call_path = 0;
    const char* at = static_cast<const char*>(frame);
    while (at >= stack && at + 16 <= stack + thread.fiber.stack_bytes) {
        uint64_t words[2];
        std::memcpy(words, at, sizeof(words));
        thread.call_path = (thread.call_path ^ words[1]) * 0x100000001B3ull;
        at = reinterpret_cast<const char*>(words[0]);
    }
#endif
}

bool same_place(const Thread& a, const Thread& b) {
    const bool same_file = a.file == b.file || std::strcmp(a.file, b.file) == 0;
    return same_file && a.line == b.line && a.call_path == b.call_path;
}

void set_ready(Thread& thread) {
    thread.state = State::kReady;
    machine.ready[thread.index / 64] |= uint64_t{1} << (thread.index % 64);
}

void set_waiting(Thread& thread, State state) {
    thread.state = state;
    machine.ready[thread.index / 64] &= ~(uint64_t{1} << (thread.index % 64));
}

void yield() {
    Fiber& self = current->fiber;
    const int next = machine.failure == Error::kNone ? pick_thread() : -1;
    if (next < 0) {
        switch_fiber(self, machine.scheduler);
        return;
    }
    machine.last_run = next;
    current = &machine.threads[next];
    if (&current->fiber != &self) switch_fiber(self, current->fiber);
}

void end_slice(Thread& thread) {
    const int64_t used = machine.policy == kAnyThread ? 64 : kLongSlice;
    thread.accesses_left -= used;
    if (thread.accesses_left < 0) {
        fail(Error::kDeadlock,
             format("%lld accesses without a synchronisation: does it wait for another thread?",
                    static_cast<long long>(machine.settings.access_limit)));
    }
    thread.slice = next_slice();
    yield();
}

void run_block(Dim3 block) {
    Machine& m = machine;
    begin_block(block);
    release(&m.started);
    // Threads hand over to each other; the last that can run, or one that fails, returns here. It
    // may be that all wait for copies that have not landed yet.
    do {
        m.last_run = pick_thread();
        current = &m.threads[m.last_run];
        switch_fiber(m.scheduler, current->fiber);
        current = nullptr;
    } while (m.failure == Error::kNone && m.finished < m.thread_count && land_copies());
    acquire(&m.ended);
    if (m.failure == Error::kNone && m.finished < m.thread_count) find_stall();
    if (m.failure == Error::kNone) find_unfinished();
    if (m.failure != Error::kNone) {
        write_report(m.failure, m.finding, m.failed_thread);
        for (int i = 0; i < m.thread_count; ++i) {
            m.threads[i].global_log.clear();
            m.threads[i].shared_log.clear();
        }
    } else if (m.settings.level >= Level::kCounters) {
        count_all_accesses();
    }
}

void block_barrier(const char* file, int line) {
    Thread& thread = *current;
    set_place(thread, file, line, __builtin_frame_address(0));
    char* passed = &machine.barrier_passed[machine.barriers % 2];
    release(passed);
    set_waiting(thread, State::kAtBarrier);
    if (++machine.at_barrier == machine.thread_count) pass_barrier();
    yield();
    acquire(passed);
}

}  // namespace dspark::emulator
