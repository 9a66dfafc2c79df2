// Registered buffers: the device memory of the emulator. Internal to the emulator.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/simt/machine.h"
#include "backends/simt/shadow.h"

namespace dspark::emulator {

struct BufferCounters {
    uint64_t bytes_loaded, bytes_stored;
};

struct Buffer {
    uintptr_t begin = 0;
    uintptr_t end = 0;
    std::string name;
    bool read_only = false;
    std::vector<uint8_t> written;  // by byte; empty if the buffer was registered with its contents
    Shadow shadow;                 // empty until it is needed
    BufferCounters* counters = nullptr;
};

// Before an atomic operation, which loads, stores, or both: the checks of an access but for races.
void on_atomic(const void* address, bool loads, bool stores, const void* site);

// Before a copy of device memory into shared memory: the checks of a load. Counts it.
void on_bulk_load(const void* address, int bytes);

// Forgets all touches of memory, so that time may start again.
void reset_shadows();

// ---- access.cpp
Access access_of(const Thread& thread, bool store, bool shared);
Text describe_access(bool store, int bytes);
[[noreturn]] void fail_conflict(const Conflict& conflict, bool store, int bytes, const Text& at);

// ---- results.cpp
BufferCounters& counters_of_buffer(const std::string& name);

}  // namespace dspark::emulator
