// Transfer barriers and copies into shared memory, as "Parallel Thread Execution ISA" defines
// mbarrier objects and cp.async.bulk. A copy lands when it is issued or when a thread waits for it:
// hardware may do either.
#include "backends/simt/transfer.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "backends/simt/memory.h"

namespace dspark::emulator {
namespace {

constexpr int kSlots = kMaxWarps + kMaxTransferBarriers;
using Knowledge = std::array<uint32_t, kSlots>;  // what is stamped before this time is over

struct Copy {
    char* to;
    const char* from;
    int bytes;
};

struct Barrier {
    const void* place;
    int creator;             // thread
    uint32_t creation_time;  // of the block's last sync_block
    int arrivals;            // that end a phase
    int pending;
    int64_t bytes;  // announced and not there yet; below 0: there and not announced
    uint32_t phase;
    uint32_t copied;    // time of the last copy
    bool is_unawaited;  // there were copies since a phase was last awaited
    std::vector<Copy> on_their_way;
    Knowledge gathered;  // of those that have arrived in this phase
    Knowledge passed;    // of the phases that have ended
    char tag;            // what the thread sanitizer knows it by
};

std::vector<Barrier> barriers;
std::vector<Knowledge> known;  // by thread
bool lands_late = false;

void merge(Knowledge& into, const Knowledge& from) {
    for (int slot = 0; slot < kSlots; ++slot) into[slot] = std::max(into[slot], from[slot]);
}

Barrier& barrier_at(const void* place) {
    for (Barrier& barrier : barriers) {
        if (barrier.place != place) continue;
        if (barrier.creation_time == machine.barrier_time && barrier.creator != current->index) {
            fail(Error::kRace, format("a barrier is used before a sync_block after the "
                                      "initialisation by %s",
                                      thread_name(barrier.creator).text));
        }
        return barrier;
    }
    fail(Error::kUninitialised, format("a barrier that was not initialised"));
}

int index_of(const Barrier& barrier) {
    return static_cast<int>(&barrier - barriers.data());
}

void end_phase_if_due(Barrier& barrier) {
    if (barrier.pending != 0 || barrier.bytes != 0) return;
    ++barrier.phase;
    barrier.pending = barrier.arrivals;
    merge(barrier.passed, barrier.gathered);
    barrier.gathered = {};
    barrier.passed[static_cast<size_t>(kMaxWarps + index_of(barrier))] = barrier.copied + 1;
    for (int i = 0; i < machine.thread_count; ++i) {
        Thread& thread = machine.threads[i];
        if (thread.state == State::kAtTransfer && thread.awaited == index_of(barrier)) {
            set_ready(thread);
        }
    }
}

void land(Barrier& barrier, const Copy& copy) {
    std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
    barrier.bytes -= copy.bytes;
    release(&barrier.tag);
    end_phase_if_due(barrier);
}

void land_all(Barrier& barrier) {
    const std::vector<Copy> copies = std::move(barrier.on_their_way);
    barrier.on_their_way.clear();
    for (const Copy& copy : copies) land(barrier, copy);
}

bool is_in_shared(const void* place, size_t bytes) {
    const char* at = static_cast<const char*>(place);
    return machine.shared_ready && at >= machine.shared &&
           at + bytes <= machine.shared + machine.shared_bytes;
}

// The store of a copy, which the issuing thread must be allowed to make.
void check_store(const char* to, int bytes, Barrier& barrier) {
    const size_t offset = static_cast<size_t>(to - machine.shared);
    Access access = access_of(*current, true, true);
    access.copy_time = barrier.copied = ++machine.clock;
    access.copy = static_cast<uint16_t>(kFirstCopy + index_of(barrier));
    const Conflict conflict =
        machine.shared_shadow.check(offset, static_cast<size_t>(bytes), access);
    if (conflict.kind != Conflict::kNone) {
        fail_conflict(conflict, true, bytes, format("byte %zu of shared memory, a copy", offset));
    }
}

}  // namespace

void begin_transfers_of_block() {
    barriers.clear();
    lands_late = draws_late(1);
    for (int i = 0; i < machine.thread_count; ++i) machine.threads[i].unpublished.clear();
}

bool transfers_order(uint32_t time, int slot, uint16_t reader) {
    return !barriers.empty() && time < known[reader][static_cast<size_t>(slot)];
}

void share_transfers(int first, int threads) {
    if (barriers.empty()) return;
    Knowledge all = known[static_cast<size_t>(first)];
    for (int i = 1; i < threads; ++i) merge(all, known[static_cast<size_t>(first + i)]);
    std::fill_n(known.begin() + first, threads, all);
}

bool land_copies() {
    for (Barrier& barrier : barriers) land_all(barrier);
    for (int i = 0; i < machine.thread_count; ++i) {
        if (machine.threads[i].state == State::kReady) return true;
    }
    return false;
}

Text unfinished_transfers() {
    for (const Barrier& barrier : barriers) {
        if (barrier.is_unawaited) {
            return format(
                "the block has ended and nobody has awaited the copies of transfer "
                "barrier %d",
                index_of(barrier));
        }
    }
    return {};
}

void note_store(size_t offset, size_t bytes) {
    current->unpublished.push_back({static_cast<uint32_t>(offset), static_cast<uint32_t>(bytes)});
}

void publish_operands() {
    for (const auto& [offset, bytes] : current->unpublished) {
        machine.shared_shadow.publish(offset, bytes, static_cast<uint16_t>(current->index));
    }
    current->unpublished.clear();
}

void init_barrier(void* place, int arrivals) {
    step(*current);
    if (!is_in_shared(place, 8) || reinterpret_cast<uintptr_t>(place) % 8 != 0) {
        fail(Error::kOutOfBounds, format("a barrier outside of shared memory or unaligned"));
    }
    if (barriers.empty()) {
        barriers.reserve(kMaxTransferBarriers);  // they stay where they are
        known.assign(static_cast<size_t>(machine.thread_count), Knowledge{});
    }
    if (static_cast<int>(barriers.size()) == kMaxTransferBarriers || arrivals < 1) {
        fail(Error::kBadLaunch, format("more than %d barriers, or one of %d arrivals",
                                       kMaxTransferBarriers, arrivals));
    }
    barriers.push_back({place,
                        current->index,
                        machine.barrier_time,
                        arrivals,
                        arrivals,
                        0,
                        0,
                        0,
                        false,
                        {},
                        {},
                        {},
                        0});
}

void arrive(void* place, int bytes) {
    step(*current);
    Barrier& barrier = barrier_at(place);
    if (barrier.pending == 0) {
        fail(Error::kRace, format("more than %d arrivals in a phase of transfer barrier %d",
                                  barrier.arrivals, index_of(barrier)));
    }
    barrier.pending -= 1;
    barrier.bytes += bytes;
    merge(barrier.gathered, known[static_cast<size_t>(current->index)]);
    if (bytes == 0) {
        const int warp = current->index / machine.warp_size;
        barrier.gathered[static_cast<size_t>(warp)] = current->time;
    }
    release(&barrier.tag);
    end_phase_if_due(barrier);
}

void await_phase(void* place, int parity, const char* file, int line) {
    step(*current);
    Thread& thread = *current;
    Barrier& barrier = barrier_at(place);
    set_place(thread, file, line, __builtin_frame_address(0));
    const uint32_t awaited = static_cast<uint32_t>(parity);
    while (barrier.phase % 2 == awaited) {
        land_all(barrier);
        if (barrier.phase % 2 != awaited) break;
        thread.awaited = index_of(barrier);
        set_waiting(thread, State::kAtTransfer);
        yield();
    }
    barrier.is_unawaited = false;
    merge(known[static_cast<size_t>(thread.index)], barrier.passed);
    thread.accesses_left = machine.settings.access_limit;
    acquire(&barrier.tag);
}

void copy_bulk(void* to, const void* from, int bytes, void* place) {
    step(*current);
    Barrier& barrier = barrier_at(place);
    if (bytes <= 0 || bytes % 16 != 0 || reinterpret_cast<uintptr_t>(to) % 16 != 0) {
        fail(Error::kUnaligned, format("a copy of %d bytes, to or of no multiple of 16", bytes));
    }
    if (!is_in_shared(to, static_cast<size_t>(bytes))) {
        fail(Error::kOutOfBounds, format("a copy to what is not the block's shared memory"));
    }
    on_bulk_load(from, bytes);
    barrier.is_unawaited = true;
    const Copy copy = {static_cast<char*>(to), static_cast<const char*>(from), bytes};
    if (machine.settings.level >= Level::kFull) check_store(copy.to, bytes, barrier);
    if (!lands_late) return land(barrier, copy);
    for (int i = 0; i < bytes; ++i) {
        copy.to[i] = static_cast<char>(machine.settings.poison >> (8 * (i % 4)));
    }
    barrier.on_their_way.push_back(copy);
}

}  // namespace dspark::emulator
