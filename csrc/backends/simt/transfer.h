// What transfer barriers order, and how copies into shared memory are remembered as stores.
// Internal to the emulator.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/simt/machine.h"

namespace dspark::emulator {

// Of a block. Copies that belong to barrier i are remembered as stores of "thread" kFirstCopy + i.
constexpr int kMaxTransferBarriers = 64;
constexpr uint16_t kFirstCopy = 0x8000;

inline bool is_copy(uint16_t thread) {
    return thread >= kFirstCopy;
}
// What can be known of is kept by slot: the warps, then the copies of each barrier.
inline int slot_of_copy(uint16_t copy) {
    return kMaxWarps + (copy - kFirstCopy);
}

// Whether thread `reader` has learnt from barriers that a touch stamped with `time`, of the warp or
// the copy in this slot, is over.
bool transfers_order(uint32_t time, int slot, uint16_t reader);

// A thread has stored to shared memory, at level kFull.
void note_store(size_t offset, size_t bytes);

}  // namespace dspark::emulator
