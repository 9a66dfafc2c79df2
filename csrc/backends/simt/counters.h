// Counts of memory traffic, as warps would make it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/simt/cache.h"

namespace dspark::emulator {

// One access of one thread. `site` is the code address it came from.
struct LoggedAccess {
    const void* site;
    uint64_t address;  // of shared memory: the offset
    uint32_t bytes;
    bool store;
    bool leaves_first = false;  // what a cache keeps of it
};
using AccessLog = std::vector<LoggedAccess>;

struct Counters {
    uint64_t launches, blocks;
    // Accesses of threads to device memory, and their bytes.
    uint64_t loads, stores, bytes_loaded, bytes_stored, accesses_16;
    // Accesses of whole warps, and the aligned segments that each of them touches.
    uint64_t warp_loads, load_segments_32, load_segments_64, load_segments_128;
    uint64_t warp_stores, store_segments_32, store_segments_64, store_segments_128;
    // Sectors of 32 bytes between the cache and memory; 0 where no cache was asked for.
    uint64_t memory_sectors_read, memory_sectors_written;
    // Shared memory: 32 banks of 4 bytes. A pass serves one word of each bank; conflicts are the
    // passes beyond those that the amount of data needs; the worst is that of a single access.
    uint64_t shared_bytes, shared_loads, shared_stores, shared_warp_accesses, shared_passes;
    uint64_t bank_conflicts, worst_bank_ways;
    uint64_t block_barriers, warp_operations, matrix_instructions;
    // Copies into shared memory, and their bytes, which are among bytes_loaded; products.
    uint64_t bulk_copies, bulk_bytes, warpgroup_products;
};
std::string to_json(const Counters& counters);

// Group the accesses of `lanes` threads into those of their warp and count them; empty the logs.
// Lanes at the same code go together; where they are apart, the lowest code address goes first.
// `cache`: null, or what the accesses go through.
void count_global(AccessLog* const* logs, int lanes, Cache* cache, Counters& counters);
void count_shared(AccessLog* const* logs, int lanes, Counters& counters);

}  // namespace dspark::emulator
