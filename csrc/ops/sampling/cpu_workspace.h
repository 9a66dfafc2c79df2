// Per-thread memory of the CPU kernels: a few tiles, and one list of candidates for filters.
#pragma once

#include <cstdint>
#include <new>

#include "backends/cpu/law.h"

namespace dspark::DSPARK_ISA::sampling {

// Entries of one row at or above a threshold, in index order.
struct EntryList {
    float* x;
    float* weight;
    int32_t* id;
    int32_t count;
    int32_t capacity;
};

class Workspace : public DrawBuffers {
  public:
    Workspace(int64_t vocab, int64_t num_drafts)
        : DrawBuffers(vocab),
          prefixes(allocate<double>(num_drafts)),
          sums(allocate<float>(num_tiles(vocab))),
          ties(allocate<int32_t>(num_tiles(vocab))) {
        candidates.capacity = static_cast<int32_t>(vocab / 16 + 1024);
        candidates.x = allocate<float>(candidates.capacity);
        candidates.weight = allocate<float>(candidates.capacity);
        candidates.id = allocate<int32_t>(candidates.capacity);
        candidates.count = 0;
    }
    ~Workspace() {
        ::operator delete(prefixes);
        ::operator delete(sums);
        ::operator delete(ties);
        ::operator delete(candidates.x);
        ::operator delete(candidates.weight);
        ::operator delete(candidates.id);
    }

    alignas(64) float draft_tile[kTile];
    double* prefixes;  // [num_drafts]
    float* sums;       // [tiles]
    int32_t* ties;     // [tiles]
    EntryList candidates;

  private:
    template <class T>
    static T* allocate(int64_t count) {
        return static_cast<T*>(::operator new(sizeof(T) * static_cast<size_t>(count)));
    }
};

}  // namespace dspark::DSPARK_ISA::sampling
