// Sizes of a plan: rows and tiles there must be room for, and the scratch of a call.
#pragma once

#include "device/layout.h"
#include "ops/moe/args.h"

namespace dspark::moe {

constexpr int64_t kMostExperts = 4096;
constexpr int64_t kMostAlignment = int64_t{1} << 20;  // of tile_rows, too
constexpr int64_t kMostSlots = int64_t{1} << 38;      // a segment then has fewer than 2^32

// The most rows that any ids give. At most min(E, slots) experts have slots, each of them wastes at
// most alignment - 1 rows, and the sum is a multiple of the alignment: this many do occur.
inline int64_t plan_rows(int64_t num_slots, int64_t num_experts, int64_t alignment) {
    const int64_t occupied = num_slots < num_experts ? num_slots : num_experts;
    return (num_slots + occupied * (alignment - 1)) / alignment * alignment;
}
inline int64_t plan_tiles(int64_t num_slots, int64_t num_experts, int64_t tile_rows) {
    return tile_rows == 0 ? 0 : plan_rows(num_slots, num_experts, tile_rows) / tile_rows;
}

// ---- on a device --------------------------------------------------------------------------------

// Experts that a block counts at a time.
constexpr int64_t kExpertRange = 512;
// Slots times ranges that one block plans by itself.
constexpr int64_t kBlockSlots = 8192;
// Bounds of the scratch and of the grid, whatever the number of slots: 512 KiB, 256 blocks.
constexpr int64_t kMostSegmentCounts = 131072;
constexpr int64_t kMostSegments = 256;

inline int64_t expert_ranges(int64_t num_experts) {
    return (num_experts + kExpertRange - 1) / kExpertRange;
}
// Whether one block of a device makes the plan, in one launch and without scratch.
inline bool fits_one_block(const PlanArgs& args) {
    return args.num_slots * expert_ranges(args.num_experts) <= kBlockSlots;
}

// Cuts the slots into at most `most` segments of at least `least` slots.
inline void cut_segments(PlanArgs& args, int64_t most, int64_t least) {
    int64_t segments = (args.num_slots + least - 1) / least;
    segments = segments < 1 ? 1 : segments > most ? most : segments;
    args.segment_slots = (args.num_slots + segments - 1) / segments;
    args.num_segments = segments;
}

// Cuts the segments of a device call, points its scratch into `block` and returns the bytes it
// takes; with a null block it only returns the bytes.
inline int64_t place_workspace(PlanArgs& args, Global<char> block) {
    Layout layout(block);
    if (fits_one_block(args)) {
        cut_segments(args, 1, 1);
    } else {
        const int64_t by_counts =
            kMostSegmentCounts / (expert_ranges(args.num_experts) * kExpertRange);
        cut_segments(args, by_counts < kMostSegments ? by_counts : kMostSegments, 4096);
        args.segment_counts = layout.take<uint32_t>(args.num_segments * args.num_experts);
    }
    return layout.bytes();
}

}  // namespace dspark::moe
