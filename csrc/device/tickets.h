// Order between the blocks of one launch: a block that needs what another block of the same launch
// computes.
//
// A launch that uses this has a counter that is 0 before it. The first thing a block does is to
// take a ticket, and the ticket, not its index, says what it works on: producers have the lower
// tickets. A consumer awaits the flags of its producers.
//
// Why it cannot hang: a block waits only for blocks with lower tickets. A ticket is taken by a
// block that runs already, and a block that runs is never put aside, whatever order the hardware
// starts blocks in and however few fit. Of the blocks that have not finished, the one with the
// lowest ticket therefore waits for nothing, or for what is already published; it finishes, and so
// do all, by induction. A producer must publish on every path.
//
// Counters and flags are cleared by a launch before, in the same call, so that a captured graph can
// be replayed.
#pragma once

#include "device/lanes.h"

namespace dspark::DSPARK_ISA {

// Member of a kernel's shared struct.
struct TicketShared {
    SharedArray<uint32_t, 1> ticket;
};

// One ticket for the block, which has stored nothing yet; every thread returns it. `shared` may be
// used again after the next sync_block.
DSPARK_DEVICE uint32_t block_take_ticket(Global<uint32_t> counter, TicketShared& shared) {
    sync_block();
    if (thread_idx() == 0) shared.ticket[0] = take_ticket(counter);
    sync_block();
    return shared.ticket[0];
}

// The same after a piece of work: all that the blocks with lower tickets of this counter did before
// they took them is visible to the whole block. So the block that takes the last one can go on with
// what all of them have done.
DSPARK_DEVICE uint32_t block_arrive(Global<uint32_t> counter, TicketShared& shared) {
    drain_stores();
    return block_take_ticket(counter, shared);
}

// What the block has done is visible to whoever awaits the flag.
DSPARK_DEVICE void block_publish(Global<uint32_t> flag, uint32_t value) {
    drain_stores();
    sync_block();
    if (thread_idx() == 0) publish(flag, value);
}

// Awaits `count` flags, at most kThreads of them.
DSPARK_DEVICE void block_await(Global<const uint32_t> flags, int count, uint32_t value) {
    if (thread_idx() < count) await(flags + thread_idx(), value);
    sync_block();
}

}  // namespace dspark::DSPARK_ISA
