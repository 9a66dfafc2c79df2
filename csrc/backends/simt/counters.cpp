#include "backends/simt/counters.h"

#include <algorithm>
#include <functional>

namespace dspark::emulator {
namespace {

constexpr int kMaxLanes = 64;
constexpr int kBanks = 32;
constexpr int kBankBytes = 4;

struct NamedCounter {
    const char* name;
    uint64_t Counters::* value;
};
constexpr NamedCounter kCounters[] = {
    {"launches", &Counters::launches},
    {"blocks", &Counters::blocks},
    {"loads", &Counters::loads},
    {"stores", &Counters::stores},
    {"bytes_loaded", &Counters::bytes_loaded},
    {"bytes_stored", &Counters::bytes_stored},
    {"accesses_16", &Counters::accesses_16},
    {"warp_loads", &Counters::warp_loads},
    {"load_segments_32", &Counters::load_segments_32},
    {"load_segments_64", &Counters::load_segments_64},
    {"load_segments_128", &Counters::load_segments_128},
    {"warp_stores", &Counters::warp_stores},
    {"store_segments_32", &Counters::store_segments_32},
    {"store_segments_64", &Counters::store_segments_64},
    {"store_segments_128", &Counters::store_segments_128},
    {"memory_sectors_read", &Counters::memory_sectors_read},
    {"memory_sectors_written", &Counters::memory_sectors_written},
    {"shared_bytes", &Counters::shared_bytes},
    {"shared_loads", &Counters::shared_loads},
    {"shared_stores", &Counters::shared_stores},
    {"shared_warp_accesses", &Counters::shared_warp_accesses},
    {"shared_passes", &Counters::shared_passes},
    {"bank_conflicts", &Counters::bank_conflicts},
    {"worst_bank_ways", &Counters::worst_bank_ways},
    {"block_barriers", &Counters::block_barriers},
    {"warp_operations", &Counters::warp_operations},
    {"matrix_instructions", &Counters::matrix_instructions},
    {"bulk_copies", &Counters::bulk_copies},
    {"bulk_bytes", &Counters::bulk_bytes},
    {"warpgroup_products", &Counters::warpgroup_products},
};

// One access of a warp: what each of its lanes that take part touches.
struct WarpAccess {
    bool store;
    int count;
    int lane[kMaxLanes];
    LoggedAccess access[kMaxLanes];
};

template <class Count>
void for_each_warp_access(AccessLog* const* logs, int lanes, Count count) {
    size_t next[kMaxLanes] = {};
    WarpAccess group;
    for (;;) {
        const LoggedAccess* first = nullptr;
        for (int lane = 0; lane < lanes; ++lane) {
            if (next[lane] == logs[lane]->size()) continue;
            const LoggedAccess* head = logs[lane]->data() + next[lane];
            if (first == nullptr || std::less<>()(head->site, first->site)) first = head;
        }
        if (first == nullptr) break;
        group.store = first->store;
        group.count = 0;
        for (int lane = 0; lane < lanes; ++lane) {
            if (next[lane] == logs[lane]->size()) continue;
            const LoggedAccess& head = (*logs[lane])[next[lane]];
            if (head.site != first->site || head.store != first->store) continue;
            group.lane[group.count] = lane;
            group.access[group.count++] = head;
            ++next[lane];
        }
        count(group);
    }
    for (int lane = 0; lane < lanes; ++lane) logs[lane]->clear();
}

int count_distinct(const uint64_t* sorted, int count, int shift) {
    int distinct = 0;
    for (int i = 0; i < count; ++i) {
        distinct += i == 0 || (sorted[i] >> shift) != (sorted[i - 1] >> shift);
    }
    return distinct;
}

// Passes over the banks that lanes [begin, end) of the group take, whose words fit in one.
int count_passes(const WarpAccess& group, int begin, int end) {
    uint64_t words[kBanks][kMaxLanes];
    int in_bank[kBanks] = {};
    int passes = 0;
    for (int i = begin; i < end; ++i) {
        const LoggedAccess& access = group.access[i];
        const uint64_t last = (access.address + access.bytes - 1) / kBankBytes;
        for (uint64_t word = access.address / kBankBytes; word <= last; ++word) {
            uint64_t* seen = words[word % kBanks];
            int& count = in_bank[word % kBanks];
            if (std::find(seen, seen + count, word) != seen + count) continue;
            seen[count++] = word;
            passes = std::max(passes, count);
        }
    }
    return passes;
}

void pass_cache(const uint64_t* sorted, int count, const LoggedAccess& access, Cache& cache,
                Counters& counters) {
    for (int i = 0; i < count; ++i) {
        if (i > 0 && sorted[i] == sorted[i - 1]) continue;
        if (!cache.touch(sorted[i], access.store, access.leaves_first)) continue;
        (access.store ? counters.memory_sectors_written : counters.memory_sectors_read) += 1;
    }
}

}  // namespace

std::string to_json(const Counters& counters) {
    std::string json = "{";
    for (const NamedCounter& counter : kCounters) {
        if (json.size() > 1) json += ", ";
        json += '"' + std::string(counter.name) + "\": " + std::to_string(counters.*counter.value);
    }
    return json + "}";
}

void count_global(AccessLog* const* logs, int lanes, Cache* cache, Counters& counters) {
    for_each_warp_access(logs, lanes, [&](const WarpAccess& group) {
        uint64_t segments[2 * kMaxLanes];
        int count = 0;
        for (int i = 0; i < group.count; ++i) {
            const LoggedAccess& access = group.access[i];
            segments[count++] = access.address / 32;
            const uint64_t last = (access.address + access.bytes - 1) / 32;
            if (last != segments[count - 1]) segments[count++] = last;
        }
        if (!std::is_sorted(segments, segments + count)) std::sort(segments, segments + count);
        const uint64_t of_32 = count_distinct(segments, count, 0);
        const uint64_t of_64 = count_distinct(segments, count, 1);
        const uint64_t of_128 = count_distinct(segments, count, 2);
        if (group.store) {
            counters.warp_stores += 1;
            counters.store_segments_32 += of_32;
            counters.store_segments_64 += of_64;
            counters.store_segments_128 += of_128;
        } else {
            counters.warp_loads += 1;
            counters.load_segments_32 += of_32;
            counters.load_segments_64 += of_64;
            counters.load_segments_128 += of_128;
        }
        if (cache != nullptr) pass_cache(segments, count, group.access[0], *cache, counters);
    });
}

void count_shared(AccessLog* const* logs, int lanes, Counters& counters) {
    for_each_warp_access(logs, lanes, [&](const WarpAccess& group) {
        const uint32_t bytes = std::max<uint32_t>(group.access[0].bytes, kBankBytes);
        // Lanes whose data fills all banks once; more lanes, or wider data, go in several phases.
        const int per_phase = std::max<int>(1, kBanks * kBankBytes / static_cast<int>(bytes));
        counters.shared_warp_accesses += 1;
        int begin = 0;
        while (begin < group.count) {
            const int phase = group.lane[begin] / per_phase;
            int end = begin;
            while (end < group.count && group.lane[end] / per_phase == phase) ++end;
            const uint64_t passes = count_passes(group, begin, end);
            counters.shared_passes += passes;
            counters.bank_conflicts += passes - 1;
            counters.worst_bank_ways = std::max(counters.worst_bank_ways, passes);
            begin = end;
        }
    });
}

}  // namespace dspark::emulator
