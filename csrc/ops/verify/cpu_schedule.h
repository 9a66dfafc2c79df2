// Schedules on the CPU: the rules of algorithm.h. What is admitted is what lies before a key in the
// order: found by selection where the number of drafts is known, else with a heap that yields the
// candidates in order, so that those behind the end are never sorted.
#pragma once

#include <algorithm>

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
        const auto place = static_cast<int64_t>(top() & (uint64_t{kMostCandidates} - 1));
        const int64_t request = place % args_.batch;
        const int64_t next = place / args_.batch + 1;
        const uint64_t key = next < args_.num_positions
                                 ? args_.keys[request * args_.num_positions + next]
                                 : kNoCandidate;
        args_.heap[0] = key == kNoCandidate ? args_.heap[--size_] : key;
        if (size_ > 0) sift_down(0);
    }

    // Drafts that are admitted first, and their tokens.
    int64_t forced() const { return forced_; }
    int64_t forced_units() const { return forced_units_; }

  private:
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

struct FoundEnd {
    int64_t count;
    uint64_t bound;  // early_stop: the key of the first draft that is not admitted
};

// Where the order of these confidences ends.
inline FoundEnd find_end(const ScheduleArgs& args, const float* confidence, int32_t live,
                         int64_t room) {
    CandidateOrder order(args, confidence, live);
    OrderSearch search = {{live, live * kToken + order.forced_units()}, 0, kNoEnd, -1.0};
    if (args.mode == ScheduleMode::kLagged) search.consider(args, order.forced(), room);
    while (search.count < room && !order.is_empty() &&
           search.add(args, order.forced(), room, order.top())) {
        order.pop();
    }
    return {smaller(search.end, room), order.is_empty() ? kNoCandidate : order.top()};
}

// The key of the first draft that is not admitted if `count` are.
inline uint64_t bound_of(const ScheduleArgs& args, int32_t live, int64_t count) {
    uint64_t* end = args.keys;
    for (int32_t b = 0; b < live; ++b) {
        const int32_t limit = draft_limit(args, b);
        DraftWalk walk;
        for (int32_t j = 0; j < limit; ++j) {
            const uint64_t key = walk.next(args, args.confidence, limit, j, b);
            if (key == kNoCandidate) break;
            *end++ = key;
        }
    }
    if (end - args.keys <= count) return kNoCandidate;
    std::nth_element(args.keys, args.keys + count, end);
    return args.keys[count];
}

inline KeysBelow admit_in_order(const ScheduleArgs& args, int32_t live) {
    const int64_t room = draft_room(args, live);
    switch (args.mode) {
        case ScheduleMode::kEarlyStop:
            return {find_end(args, args.confidence, live, room).bound};
        case ScheduleMode::kLagged:
            return {bound_of(args, live, find_end(args, args.lagged_confidence, live, room).count)};
        default:
            return {bound_of(args, live, room)};
    }
}

inline UpToLength admit_uniformly(const ScheduleArgs& args, int32_t live) {
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
    return {search.length};
}

}  // namespace dspark::DSPARK_ISA::verify
