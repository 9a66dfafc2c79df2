// A model of the cache between multiprocessors and device memory: what reaches memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace dspark::emulator {

// Sectors of 32 bytes, anywhere in the cache. A sector that is needed takes the place of the one
// not used for longest, of those marked to leave first as long as there are any. What is stored is
// written to memory once for each stay in the cache.
class Cache {
  public:
    explicit Cache(int64_t bytes);

    // Whether the sector has to be read from memory, or will have to be written to it.
    bool touch(uint64_t sector, bool store, bool leaves_first);

  private:
    // A ring of entries in the order of their use; entry 0 and 1 are the heads of the two rings.
    struct Entry {
        uint64_t sector;
        uint32_t before, after;
        bool is_dirty, leaves_first;
    };
    void remove(uint32_t entry);
    void append(uint32_t entry);
    uint32_t take_place();

    std::vector<Entry> entries_;
    size_t used_ = 2;
    std::unordered_map<uint64_t, uint32_t> places_;
};

}  // namespace dspark::emulator
