// Warp operations: each completes when all lanes of the warp have reached it.
#include "backends/simt/machine.h"

namespace dspark::emulator {
namespace {

bool same_call(const Thread& a, const Thread& b) {
    const bool same_type = a.operation != Operation::kMatrix || a.argument == b.argument;
    return a.operation == b.operation && same_type && same_place(a, b);
}

void check_argument(const Thread& thread, int warp_size) {
    if (thread.argument >= 0 && thread.argument < warp_size) return;
    fail(Error::kBadLane,
         format("lane, mask or delta %d in a warp of %d, called by %s at %s:%d", thread.argument,
                warp_size, thread_name(thread.index).text, thread.file, thread.line));
}

// The lane that `lane` reads from.
int source_of(Operation operation, int lane, int argument, int warp_size) {
    switch (operation) {
        case Operation::kShuffle:
            return argument;
        case Operation::kXor:
            return lane ^ argument;
        case Operation::kUp:
            return lane < argument ? lane : lane - argument;
        case Operation::kDown:
            return lane + argument < warp_size ? lane + argument : lane;
        default:
            return lane;
    }
}

// All lanes have arrived at a warp operation.
void complete(Warp& warp, Thread* lanes, int warp_size) {
    const Operation operation = lanes[0].operation;
    uint64_t values[64];
    uint64_t ballot = 0;
    for (int lane = 0; lane < warp_size; ++lane) {
        if (!same_call(lanes[lane], lanes[0])) {
            fail(Error::kDivergentCollective,
                 format("the lanes of a warp wait at different warp operations"));
        }
        check_argument(lanes[lane], warp_size);
        values[lane] = lanes[lane].value;
        ballot |= values[lane] << lane;
    }
    if (machine.settings.level >= Level::kCounters) count_accesses(lanes[0].index, warp_size);
    machine.counters->warp_operations += 1;
    if (operation == Operation::kMatrix) {
        machine.counters->matrix_instructions += 1;
        multiply_matrices(lanes, warp_size);
    }
    warp.waiting = 0;
    if (operation == Operation::kSync) {
        ++warp.syncs;
        ++machine.clock;
    }
    for (int lane = 0; lane < warp_size; ++lane) {
        Thread& thread = lanes[lane];
        thread.value = operation == Operation::kBallot
                           ? ballot
                           : values[source_of(operation, lane, thread.argument, warp_size)];
        if (operation == Operation::kSync) thread.time = machine.clock;
        thread.accesses_left = machine.settings.access_limit;
        set_ready(thread);
    }
    if (operation == Operation::kSync) share_transfers(lanes[0].index, warp_size);
}

}  // namespace

void require_warp_size(int warp_size) {
    if (machine.warp_size == warp_size) return;
    if (machine.warp_size != 0) {
        fail(Error::kWarpSize, format("code for warps of %d after code for warps of %d", warp_size,
                                      machine.warp_size));
    }
    if (machine.thread_count % warp_size != 0) {
        fail(Error::kWarpSize, format("a block of %d threads is not a whole number of warps of %d",
                                      machine.thread_count, warp_size));
    }
    machine.warp_size = warp_size;
}

uint64_t warp_operation(Operation operation, int warp_size, uint64_t value, int argument,
                        const char* file, int line) {
    require_warp_size(warp_size);
    Thread& thread = *current;
    thread.operation = operation;
    thread.value = value;
    thread.argument = argument;
    set_place(thread, file, line, __builtin_frame_address(0));
    const int index = thread.index / warp_size;
    Warp& warp = machine.warps[index];
    char* passed = &warp.passed[warp.syncs % 2];
    if (operation == Operation::kSync) release(passed);
    set_waiting(thread, State::kAtWarpOperation);
    if (++warp.waiting == warp_size) complete(warp, &machine.threads[index * warp_size], warp_size);
    yield();
    if (operation == Operation::kSync) acquire(passed);
    return thread.value;
}

}  // namespace dspark::emulator
