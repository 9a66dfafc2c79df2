#include "backends/simt/cache.h"

#include <algorithm>

namespace dspark::emulator {
namespace {

constexpr int64_t kSectorBytes = 32;
constexpr uint32_t kLeaveFirst = 0, kStay = 1;  // the heads

}  // namespace

Cache::Cache(int64_t bytes) : entries_(2 + std::max<int64_t>(1, bytes / kSectorBytes)) {
    for (uint32_t head : {kLeaveFirst, kStay}) entries_[head].before = entries_[head].after = head;
    places_.reserve(entries_.size());
}

void Cache::remove(uint32_t entry) {
    const Entry& e = entries_[entry];
    entries_[e.before].after = e.after;
    entries_[e.after].before = e.before;
}

void Cache::append(uint32_t entry) {
    Entry& e = entries_[entry];
    const uint32_t head = e.leaves_first ? kLeaveFirst : kStay;
    e.before = entries_[head].before;
    e.after = head;
    entries_[e.before].after = entry;
    entries_[head].before = entry;
}

uint32_t Cache::take_place() {
    if (used_ < entries_.size()) return static_cast<uint32_t>(used_++);
    uint32_t oldest = entries_[kLeaveFirst].after;
    if (oldest == kLeaveFirst) oldest = entries_[kStay].after;
    remove(oldest);
    places_.erase(entries_[oldest].sector);
    return oldest;
}

bool Cache::touch(uint64_t sector, bool store, bool leaves_first) {
    const auto found = places_.find(sector);
    const bool is_hit = found != places_.end();
    const uint32_t place = is_hit ? found->second : take_place();
    Entry& entry = entries_[place];
    bool is_moved = !is_hit && !store;
    if (is_hit) {
        remove(place);
        entry.leaves_first = entry.leaves_first && leaves_first;
    } else {
        places_.emplace(sector, place);
        entry = {sector, 0, 0, false, leaves_first};
    }
    if (store && !entry.is_dirty) is_moved = entry.is_dirty = true;
    append(place);
    return is_moved;
}

}  // namespace dspark::emulator
