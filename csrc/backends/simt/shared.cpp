// The shared memory of the running block.
#include <algorithm>
#include <cstdlib>

#include "backends/simt/machine.h"
#include "backends/simt/memory.h"
#include "backends/simt/transfer.h"

namespace dspark::emulator {

void* shared_memory(size_t bytes, size_t alignment) {
    Machine& m = machine;
    if (m.shared_ready) {
        acquire(&m.shared_filled);
        if (bytes != m.shared_bytes) {
            fail(Error::kBadLaunch, format("a kernel declares two objects in shared memory"));
        }
        return m.shared;
    }
    if (bytes != m.shared_bytes) {
        std::free(m.shared);
        // Not rounded up, so that the address sanitizer sees the end of the object.
        void* memory = nullptr;
        if (posix_memalign(&memory, std::max<size_t>(alignment, 16), bytes) != 0) memory = nullptr;
        m.shared = static_cast<char*>(memory);
        m.shared_bytes = bytes;
    }
    for (size_t i = 0; i < bytes; ++i) {
        m.shared[i] = static_cast<char>(m.settings.poison >> (8 * (i % 4)));
    }
    if (m.settings.level >= Level::kFull && m.shared_shadow.bytes() != bytes) {
        m.shared_shadow.reset(bytes);
    }
    m.counters->shared_bytes = std::max<uint64_t>(m.counters->shared_bytes, bytes);
    m.shared_ready = true;
    release(&m.shared_filled);
    return m.shared;
}

void fail_shared_index(int64_t index, int64_t size) {
    fail(Error::kOutOfBounds, format("index %lld of an array of %lld in shared memory",
                                     static_cast<long long>(index), static_cast<long long>(size)));
}

void on_shared(const void* pointer, int bytes, int alignment, bool store) {
    const void* site = __builtin_return_address(0);
    const Machine& m = machine;
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    const uintptr_t begin = reinterpret_cast<uintptr_t>(m.shared);
    if (current == nullptr) fail(Error::kOutOfBounds, format("shared memory outside of a kernel"));
    step(*current);
    if (!m.shared_ready || address < begin ||
        address + static_cast<uintptr_t>(bytes) > begin + m.shared_bytes) {
        fail(Error::kOutOfBounds, format("an array that is not part of the block's shared memory"));
    }
    const size_t offset = address - begin;
    if (address % static_cast<uintptr_t>(alignment) != 0) {
        fail(Error::kUnaligned,
             format("%s at byte %zu of shared memory", describe_access(store, bytes).text, offset));
    }
    if (m.settings.level < Level::kCounters) return;
    (store ? m.counters->shared_stores : m.counters->shared_loads) += 1;
    current->shared_log.push_back({site, offset, static_cast<uint32_t>(bytes), store});
    if (m.settings.level < Level::kFull) return;
    const Conflict conflict = machine.shared_shadow.check(offset, static_cast<size_t>(bytes),
                                                          access_of(*current, store, true));
    if (conflict.kind != Conflict::kNone) {
        fail_conflict(conflict, store, bytes, format("byte %zu of shared memory", offset));
    }
    if (store) note_store(offset, static_cast<size_t>(bytes));
}

}  // namespace dspark::emulator
