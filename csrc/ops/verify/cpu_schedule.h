// Schedules on the CPU: the rules of algorithm.h, with a heap that yields the candidates in order,
// so that those behind the end are never sorted.
#pragma once

#include "ops/verify/algorithm.h"

namespace dspark::DSPARK_ISA::verify {

// The drafts of all requests in the order of their keys. Uses the scratch of the arguments.
class CandidateOrder {
  public:
    CandidateOrder(const ScheduleArgs& args, const float* confidence, int32_t live) : args_(args) {
        const int64_t width = args.num_positions;
        for (int32_t b = 0; b < live; ++b) {
            const int32_t limit = draft_limit(args, b);
            DraftWalk walk;
            for (int32_t j = 0; j < args.num_positions; ++j) {
                const uint64_t key = walk.next(args, confidence, limit, j, b);
                args.keys[b * width + j] = key;
                if (key == kNoCandidate || !is_forced_key(key)) continue;
                ++forced_;
                forced_units_ += token_units(walk.survival);
            }
            if (width > 0 && args.keys[b * width] != kNoCandidate) {
                args.heap[size_++] = args.keys[b * width];
            }
        }
        for (int32_t i = size_ / 2 - 1; i >= 0; --i) sift_down(i);
    }

    bool is_empty() const { return size_ == 0; }
    uint64_t top() const { return args_.heap[0]; }
    void pop() {
        const int64_t request = request_of(top());
        const int64_t next = position_of(top()) + 1;
        const uint64_t key = next < args_.num_positions
                                 ? args_.keys[request * args_.num_positions + next]
                                 : kNoCandidate;
        args_.heap[0] = key == kNoCandidate ? args_.heap[--size_] : key;
        if (size_ > 0) sift_down(0);
    }

    int64_t request_of(uint64_t key) const { return place_of(key) % args_.batch; }
    int64_t position_of(uint64_t key) const { return place_of(key) / args_.batch; }

    // Drafts that are admitted first, and their tokens.
    int64_t forced() const { return forced_; }
    int64_t forced_units() const { return forced_units_; }

  private:
    static int64_t place_of(uint64_t key) {
        return static_cast<int64_t>(key & (static_cast<uint64_t>(kMostCandidates) - 1));
    }

    void sift_down(int32_t parent) {
        uint64_t* heap = args_.heap;
        const uint64_t moved = heap[parent];
        for (int32_t child; (child = 2 * parent + 1) < size_; parent = child) {
            if (child + 1 < size_ && heap[child + 1] < heap[child]) ++child;
            if (heap[child] > moved) break;
            heap[parent] = heap[child];
        }
        heap[parent] = moved;
    }

    const ScheduleArgs& args_;
    int32_t size_ = 0;
    int64_t forced_ = 0;
    int64_t forced_units_ = 0;
};

// Where the order of the lagged confidences ends.
inline int64_t best_lagged_drafts(const ScheduleArgs& args, int32_t live, int64_t room) {
    CandidateOrder order(args, args.lagged_confidence, live);
    OrderSearch search = {{live, live * kToken + order.forced_units()}, 0, kNoEnd, -1.0};
    search.consider(args, order.forced(), room);
    for (; !order.is_empty() && search.count < room; order.pop()) {
        search.add(args, order.forced(), room, order.top());
    }
    return smaller(search.end, room);
}

// Admits the drafts in order; `room` is how many may be at most.
inline void admit_in_order(const ScheduleArgs& args, int32_t live, int64_t room) {
    CandidateOrder order(args, args.confidence, live);
    OrderSearch search = {{live, live * kToken + order.forced_units()}, 0, kNoEnd, -1.0};
    const bool stops = args.mode == ScheduleMode::kEarlyStop;
    for (; room > 0 && !order.is_empty(); --room, order.pop()) {
        const uint64_t key = order.top();
        if (stops && !search.add(args, order.forced(), room, key)) return;
        args.verify_lens[order.request_of(key)] = static_cast<int32_t>(order.position_of(key)) + 1;
    }
}

inline void admit_uniformly(const ScheduleArgs& args, int32_t live) {
    const bool lagged = args.lagged_confidence != nullptr;
    const float* confidence = lagged ? args.lagged_confidence : args.confidence;
    const int32_t most = most_uniform_drafts(args, live);
    UniformSearch search(args, live);
    for (int32_t b = 0; b < live; ++b) args.survival[b] = 1.0f;
    for (int32_t j = 0; j < most; ++j) {
        int64_t gain = 0;
        for (int32_t b = 0; b < live; ++b) {
            if (j >= draft_limit(args, b)) continue;
            const float c = confidence[int64_t{b} * args.num_positions + j];
            args.survival[b] = next_survival(args.survival[b], c);
            gain += token_units(args.survival[b]);
        }
        if (!search.add(args, live, j, gain)) break;
    }
    for (int32_t b = 0; b < live; ++b) {
        args.verify_lens[b] = clamp(draft_limit(args, b), 0, search.length);
    }
}

}  // namespace dspark::DSPARK_ISA::verify
