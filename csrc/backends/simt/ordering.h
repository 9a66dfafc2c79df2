// Which accesses of earlier blocks of a launch are ordered before those of the running block, by
// tickets and by flags. Internal to the emulator.
#pragma once

#include <cstdint>
#include <map>

namespace dspark::emulator {

// The part of a block's accesses that comes before a release.
struct Past {
    uint32_t end;     // those stamped before this, of every thread
    uint32_t last;    // and those of one thread, up to this
    uint16_t thread;  // that one
};
using Pasts = std::map<uint32_t, Past>;  // by the time at which the block started

void begin_ordering_of_launch();
void begin_ordering_of_block();
// All threads of the block have met: what one of them knows, all know.
void share_ordering();

// Whether an access of an earlier block, stamped with `time` by its `thread`, comes before what
// thread `reader` of the running block does now.
bool happens_before(uint32_t time, uint16_t thread, uint16_t reader);

}  // namespace dspark::emulator
