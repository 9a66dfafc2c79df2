// Tickets and flags: the atomic operations of the vocabulary, and what they order.
#include "backends/simt/ordering.h"

#include <algorithm>

#include "backends/simt/machine.h"
#include "backends/simt/memory.h"

namespace dspark::emulator {
namespace {

std::map<uintptr_t, Pasts> released;  // by the address of the counter or flag
Pasts known;                          // to all threads of the running block
std::map<int, Pasts> learnt;          // by one thread since the last sync_block

void merge(Pasts& into, const Pasts& from) {
    for (const auto& [begin, past] : from) {
        const auto [at, is_new] = into.insert({begin, past});
        Past& mine = at->second;
        if (is_new) continue;
        mine.end = std::max(mine.end, past.end);
        if (past.last > mine.last) mine.last = past.last, mine.thread = past.thread;
    }
}

bool covers(const Pasts& pasts, uint32_t time, uint16_t thread) {
    auto after = pasts.upper_bound(time);
    if (after == pasts.begin()) return false;
    const Past& past = (--after)->second;
    return time < past.end || (thread == past.thread && time <= past.last);
}

// What the running thread and, before the last sync_block, its block did comes before whatever
// acquires this address later.
void release_at(const void* address) {
    if (machine.settings.level < Level::kFull) return;
    Pasts& at = released[reinterpret_cast<uintptr_t>(address)];
    const auto mine = learnt.find(current->index);
    merge(at, known);
    if (mine != learnt.end()) merge(at, mine->second);
    const uint16_t thread = static_cast<uint16_t>(current->index);
    merge(at, {{machine.block_time, {machine.barrier_time, current->time, thread}}});
}

void acquire_from(const void* address) {
    if (machine.settings.level < Level::kFull) return;
    const auto at = released.find(reinterpret_cast<uintptr_t>(address));
    if (at != released.end()) merge(learnt[current->index], at->second);
}

}  // namespace

void begin_ordering_of_launch() {
    released.clear();
}

void begin_ordering_of_block() {
    known.clear();
    learnt.clear();
}

void share_ordering() {
    for (const auto& of_thread : learnt) merge(known, of_thread.second);
    learnt.clear();
}

bool happens_before(uint32_t time, uint16_t thread, uint16_t reader) {
    if (covers(known, time, thread)) return true;
    const auto mine = learnt.find(reader);
    return mine != learnt.end() && covers(mine->second, time, thread);
}

uint32_t take_ticket(uint32_t* counter) {
    on_atomic(counter, true, true, __builtin_return_address(0));
    acquire_from(counter);
    release_at(counter);
    return (*counter)++;
}

void publish(uint32_t* flag, uint32_t value) {
    on_atomic(flag, false, true, __builtin_return_address(0));
    release_at(flag);
    *flag = value;
}

void await(const uint32_t* flag, uint32_t value) {
    on_atomic(flag, true, false, __builtin_return_address(0));
    if (*flag < value) {
        fail(Error::kDeadlock,
             format("it awaits the value %u of a flag that is %u, and the blocks that hold a lower "
                    "ticket have finished",
                    value, *flag));
    }
    acquire_from(flag);
}

}  // namespace dspark::emulator
