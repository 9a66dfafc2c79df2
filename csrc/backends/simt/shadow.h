// What is remembered of memory to find races: when and by which thread it was last touched.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace dspark::emulator {

// Time is a counter that advances at the start of each block, at each sync_block and sync_warp. An
// access is stamped with the time of the last synchronisation its thread took part in.
struct Access {
    bool store;
    uint16_t thread;
    uint16_t warp_shift;  // a thread is in warp `thread >> warp_shift`
    uint32_t time;
    uint32_t barrier;      // time of the last sync_block, or of the start of the block
    uint32_t block;        // time at which the block started
    uint32_t since;        // older touches do not matter: start of the launch, or of the block
    bool must_be_written;  // reading what was not stored to since `since` is an error
    bool of_product;       // a load by a matrix product of a warpgroup
    uint32_t copy_time;    // 0, or a store by a copy: what it is remembered by
    uint16_t copy;
};

struct Conflict {
    enum Kind { kNone, kUninitialised, kThreads, kBlocks, kUnpublished } kind = kNone;
    bool other_stored = false;
    int other_thread = -1;  // not known for kBlocks
};

class Shadow {
  public:
    // For memory of so many bytes, never touched.
    void reset(size_t bytes);
    size_t bytes() const { return bytes_; }
    // Checks an access and remembers it.
    Conflict check(size_t offset, size_t bytes, const Access& access);
    // Products may read what this thread has last stored there.
    void publish(size_t offset, size_t bytes, uint16_t thread);

  private:
    struct Touch {
        uint32_t time;     // 0: never
        uint16_t thread;   // or copy
        uint16_t several;  // further threads of the same warp, at the same time; of a store:
                           // whether it is published
    };
    // Readers since the last store: the latest, and one of another warp if there is any. Two are
    // enough, because a store is only in order after both when all readers are of its own warp.
    struct Cell {
        Touch write;
        Touch read;
        Touch other_read;
        uint32_t first_read;  // since Access::since
    };

    static bool unordered(const Touch& touch, const Access& access);
    static Conflict touch(Cell& cell, const Access& access);
    static void remember_reader(Cell& cell, const Access& access);
    void split(size_t word);

    size_t bytes_ = 0;
    // Cells of the bytes 4 w + b are cells_[b][w]; while a word is not split, cells_[0][w] stands
    // for all four.
    std::array<std::vector<Cell>, 4> cells_;
    std::vector<uint8_t> split_;
};

}  // namespace dspark::emulator
