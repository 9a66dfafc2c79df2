// What accesses to device memory and to shared memory have in common.
#include "backends/simt/machine.h"
#include "backends/simt/memory.h"
#include "backends/simt/transfer.h"

namespace dspark::emulator {

Access access_of(const Thread& thread, bool store, bool shared) {
    Access access = {};
    access.store = store;
    access.thread = static_cast<uint16_t>(thread.index);
    access.warp_shift = static_cast<uint16_t>(
        machine.warp_size == 0 ? 16 : __builtin_ctz(static_cast<unsigned>(machine.warp_size)));
    access.time = thread.time;
    access.barrier = machine.barrier_time;
    access.block = machine.block_time;
    access.since = shared ? machine.block_time : machine.launch_time;
    access.must_be_written = shared;
    return access;
}

Text describe_access(bool store, int bytes) {
    return format("%s of %d bytes", store ? "store" : "load", bytes);
}

void fail_conflict(const Conflict& conflict, bool store, int bytes, const Text& at) {
    const Text what = describe_access(store, bytes);
    const char* other = conflict.other_stored ? "stores" : "loads";
    switch (conflict.kind) {
        case Conflict::kUninitialised:
            fail(Error::kUninitialised,
                 format("%s at %s, which nothing has stored to", what.text, at.text));
        case Conflict::kBlocks:
            fail(Error::kRace, format("%s at %s: another block of this launch %s there", what.text,
                                      at.text, other));
        case Conflict::kUnpublished:
            fail(Error::kRace, format("a product reads %s, where %s has stored without "
                                      "publish_operands",
                                      at.text, thread_name(conflict.other_thread).text));
        default:
            const Text who = is_copy(static_cast<uint16_t>(conflict.other_thread))
                                 ? format("a copy that was not awaited")
                                 : thread_name(conflict.other_thread);
            fail(Error::kRace, format("%s at %s: %s %s there, and nothing orders the two",
                                      what.text, at.text, who.text, other));
    }
}

}  // namespace dspark::emulator
