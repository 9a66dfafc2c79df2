// Per-thread memory of the sampling kernels: a few tiles, and one list of candidates for filters.
#pragma once

#include <cstdint>
#include <new>

#include "backends/cpu/tile.h"

namespace dspark::DSPARK_ISA::sampling {

// Entries of one row at or above a threshold, in index order.
struct Candidates {
    float* x;
    float* weight;
    int32_t* id;
    int32_t count;
    int32_t capacity;
};

class Workspace {
  public:
    Workspace(int64_t vocab, int64_t num_drafts)
        : prefixes(allocate<double>(num_drafts)),
          totals(allocate<double>(num_tiles(vocab))),
          sums(allocate<float>(num_tiles(vocab))) {
        candidates.capacity = static_cast<int32_t>(vocab / 16 + 1024);
        candidates.x = allocate<float>(candidates.capacity);
        candidates.weight = allocate<float>(candidates.capacity);
        candidates.id = allocate<int32_t>(candidates.capacity);
        candidates.count = 0;
    }
    ~Workspace() {
        ::operator delete(prefixes);
        ::operator delete(totals);
        ::operator delete(sums);
        ::operator delete(candidates.x);
        ::operator delete(candidates.weight);
        ::operator delete(candidates.id);
    }
    Workspace(const Workspace&) = delete;
    Workspace& operator=(const Workspace&) = delete;

    alignas(64) float target_tile[kTile];
    alignas(64) float draft_tile[kTile];
    alignas(64) float weights[kTile];
    double* prefixes;  // [num_drafts]
    double* totals;    // [tiles] of the distribution to draw from
    float* sums;       // [tiles]
    Candidates candidates;

  private:
    template <class T>
    static T* allocate(int64_t count) {
        return static_cast<T*>(::operator new(sizeof(T) * static_cast<size_t>(count)));
    }
};

}  // namespace dspark::DSPARK_ISA::sampling
