// Kernels of `plan`: a counting sort in which the rank of a slot follows from its index alone. No
// slot takes its place by an atomic: a warp takes consecutive slots, lanes find their rank among
// equals by ballots, and the counts of warps and segments are prefix sums.
//
// A block looks at kExpertRange experts at a time, so that its shared memory does not grow with E.
#pragma once

#include "device/block_scan.h"
#include "device/warp_match.h"
#include "ops/moe/algorithm.h"
#include "ops/moe/workspace.h"

namespace dspark::DSPARK_ISA::moe {

constexpr int kRange = static_cast<int>(dspark::moe::kExpertRange);
constexpr int kAhead = 4;  // slots that a lane reads before it looks at any of them

// Warps of a block that count: each has counters of its own.
template <int W>
constexpr int kCountingWarps = kWarps<W> < 8 ? kWarps<W> : 8;

template <int W>
struct PlanShared {
    SharedArray<uint32_t, kCountingWarps<W> * kRange> of_warp;  // slots of each expert by warp
    SharedArray<int64_t, kRange> count;                         // slots of each expert
    SharedArray<int64_t, kRange> first_row;                     // of each expert
    SharedArray<int64_t, kRange> next_row;                      // of those, for this block
    SharedArray<int64_t, kRange> first_tile;
    BlockScanScratch<W, int64_t> rows;
    BlockScanScratch<W, int64_t> tiles;
};

struct ExpertRange {
    int32_t first;
    int32_t size;

    // Index in the range; `size` for an expert that is in another, and for kNotHere.
    DSPARK_DEVICE int32_t local(int32_t expert) const {
        const int32_t index = expert - first;
        return expert >= first && index < size ? index : size;
    }
};

DSPARK_DEVICE ExpertRange range_of(const PlanArgs& args, int64_t range) {
    const int64_t first = range * kRange;
    return {static_cast<int32_t>(first),
            static_cast<int32_t>(smaller(kRange, args.num_experts - first))};
}

DSPARK_DEVICE int bits_of(int32_t value) {
    int bits = 0;
    for (; value >> bits != 0; ++bits) {
    }
    return bits;
}

// ---- slots of a warp ----------------------------------------------------------------------------

// A slot as the lane that looks at it sees it. All lanes of the warp have one.
template <int W>
struct SlotGroup {
    int64_t slot;
    bool is_slot;    // there may be none left for the lane
    int32_t expert;  // or kNotHere
    int32_t local;   // in the range, or its size
    int rank;        // lower lanes with the same expert
    int size;        // lanes with the same expert
};

// Calls use(counters, group) for the slots of the calling warp, W at a time, in order. `counters`:
// those of the warp begin there in shared.of_warp. Warps that do not count do nothing.
template <int W, class Use>
DSPARK_DEVICE void for_slots_of_warp(const PlanArgs& args, Segment segment, ExpertRange range,
                                     const Use& use) {
    const int warp = warp_index<W>();
    if (warp >= kCountingWarps<W>) return;
    const int lane = lane_index<W>();
    const int bits = bits_of(range.size);
    const int64_t all = ceil_div(segment.end - segment.begin, W);
    const int64_t piece = ceil_div(all, kCountingWarps<W>) * W;
    const int64_t begin = smaller(segment.end, segment.begin + warp * piece);
    const int64_t end = smaller(segment.end, begin + piece);
    for (int64_t at = begin; at < end; at += kAhead * W) {
        int32_t expert[kAhead];
        for (int r = 0; r < kAhead; ++r) {
            const int64_t slot = at + r * W + lane;
            expert[r] = slot < end ? expert_of(args, slot) : kNotHere;
        }
        for (int r = 0; r < kAhead; ++r) {
            const int64_t slot = at + r * W + lane;
            if (slot - lane >= end) break;
            const int32_t local = range.local(expert[r]);
            const Lanes<W> same = warp_match<W>(static_cast<uint32_t>(local), bits);
            use(warp * kRange,
                SlotGroup<W>{slot, slot < end, expert[r], local,
                             count_lanes(same & lanes_below<W>(lane)), count_lanes(same)});
        }
    }
}

// Counts the slots of a segment by warp and expert; between sync_blocks.
template <int W>
DSPARK_DEVICE void count_segment(const PlanArgs& args, Segment segment, ExpertRange range,
                                 PlanShared<W>& shared) {
    for (int i = thread_idx(); i < kCountingWarps<W> * kRange; i += kThreads) shared.of_warp[i] = 0;
    sync_block();
    for_slots_of_warp<W>(args, segment, range, [&](int counters, const SlotGroup<W>& group) {
        if (group.local < range.size && group.rank == 0) {
            const uint32_t before = shared.of_warp[counters + group.local];
            shared.of_warp[counters + group.local] = before + static_cast<uint32_t>(group.size);
        }
        sync_warp<W>();
    });
    sync_block();
}

// Turns the counts of an expert into how many of its slots the warps before have, and returns the
// sum.
template <int W>
DSPARK_DEVICE uint32_t turn_counts_into_ranks(int local, PlanShared<W>& shared) {
    uint32_t before = 0;
    for (int warp = 0; warp < kCountingWarps<W>; ++warp) {
        const uint32_t count = shared.of_warp[warp * kRange + local];
        shared.of_warp[warp * kRange + local] = before;
        before += count;
    }
    return before;
}

// Writes the rows of the slots of a segment. The first range takes care of those not here.
template <int W>
DSPARK_DEVICE void place_segment(const PlanArgs& args, Segment segment, ExpertRange range,
                                 PlanShared<W>& shared) {
    for_slots_of_warp<W>(args, segment, range, [&](int counters, const SlotGroup<W>& group) {
        const bool is_here = group.local < range.size;
        uint32_t before = 0;
        if (is_here) before = shared.of_warp[counters + group.local];
        sync_warp<W>();
        if (is_here && group.rank == 0) {
            shared.of_warp[counters + group.local] = before + static_cast<uint32_t>(group.size);
        }
        sync_warp<W>();
        if (is_here) {
            const int64_t row = int64_t{shared.next_row[group.local]} + before + group.rank;
            args.inverse[group.slot] = row;
            args.sorted[row] = group.slot;
        } else if (group.is_slot && group.expert == kNotHere && range.first == 0) {
            args.inverse[group.slot] = -1;
        }
    });
}

// ---- experts ------------------------------------------------------------------------------------

// Rows and tiles before something.
struct Place {
    int64_t row;
    int64_t tile;
};

// Slots of an expert: all, and those in earlier segments.
struct SlotCounts {
    int64_t all;
    int64_t before;
};

// Lays out experts begin .. end - 1 from a place on and returns where they end; what belongs to the
// range goes to `shared`. Ends with a sync_block.
template <int W, class Counts>
DSPARK_DEVICE Place lay_out_experts(const PlanArgs& args, int64_t begin, int64_t end, Place from,
                                    ExpertRange range, const Counts& counts,
                                    PlanShared<W>& shared) {
    for (int64_t chunk = begin; chunk < end; chunk += kThreads) {
        const int64_t expert = chunk + thread_idx();
        SlotCounts slots = {0, 0};
        if (expert < end) slots = counts(static_cast<int32_t>(expert));
        const auto rows = block_exclusive_sum<W>(padded_rows(args, slots.all), shared.rows);
        const auto tiles = block_exclusive_sum<W>(tiles_of(args, slots.all), shared.tiles);
        const int32_t local = range.local(static_cast<int32_t>(expert));
        if (local < range.size) {
            shared.count[local] = slots.all;
            shared.first_row[local] = from.row + rows.before;
            shared.next_row[local] = from.row + rows.before + slots.before;
            shared.first_tile[local] = from.tile + tiles.before;
        }
        from.row += rows.total;
        from.tile += tiles.total;
        sync_block();
    }
    return from;
}

// The last expert of the range whose tiles begin at or before a tile of it.
template <int W>
DSPARK_DEVICE int owner_of_tile(int64_t tile, ExpertRange range, const PlanShared<W>& shared) {
    int low = 0;
    int high = range.size;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (shared.first_tile[middle] <= tile) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

// What a plan says of the experts of a range beside the slots, shared among blocks 0 .. parts - 1.
template <int W>
DSPARK_DEVICE void write_experts(const PlanArgs& args, ExpertRange range, int64_t part,
                                 int64_t parts, const PlanShared<W>& shared) {
    for (int i = thread_idx(); part == 0 && i < range.size; i += kThreads) {
        args.counts[range.first + i] = shared.count[i];
        args.offsets[range.first + i] = shared.first_row[i];
    }
    const int lane = lane_index<W>();
    for (int64_t i = part * kWarps<W> + warp_index<W>(); i < range.size; i += parts * kWarps<W>) {
        const int64_t count = shared.count[static_cast<int>(i)];
        const int64_t row = shared.first_row[static_cast<int>(i)];
        const int64_t end = row + padded_rows(args, count);
        for (int64_t at = row + count + lane; at < end; at += W) args.sorted[at] = no_slot(args);
    }
    const int64_t last_tile = shared.first_tile[range.size - 1];
    const int64_t end = last_tile + tiles_of(args, shared.count[range.size - 1]);
    const int64_t first = shared.first_tile[0] + part * kThreads + thread_idx();
    for (int64_t tile = first; tile < end; tile += parts * kThreads) {
        const int i = owner_of_tile<W>(tile, range, shared);
        write_tile(args, tile, range.first + i, shared.first_row[i], shared.count[i],
                   tile - shared.first_tile[i]);
    }
}

// What lies behind all experts, shared among blocks 0 .. parts - 1.
DSPARK_DEVICE void write_end(const PlanArgs& args, Place end, int64_t part, int64_t parts) {
    const int64_t thread = part * kThreads + thread_idx();
    for (int64_t row = end.row + thread; row < args.capacity; row += parts * kThreads) {
        args.sorted[row] = no_slot(args);
    }
    for (int64_t tile = end.tile + thread; tile < args.tile_capacity; tile += parts * kThreads) {
        write_no_tile(args, tile);
    }
    if (thread != 0) return;
    args.offsets[args.num_experts] = end.row;
    args.total[0] = end.row;
    args.num_tiles[0] = end.tile;
}

// ---- kernels ------------------------------------------------------------------------------------

// The whole plan, by one block.
template <int W>
DSPARK_KERNEL(kThreads)
void plan_kernel(PlanArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(PlanShared<W>, shared);
    const Segment all = {0, args.num_slots};
    Place end = {0, 0};
    for (int64_t r = 0; r * kRange < args.num_experts; ++r) {
        const ExpertRange range = range_of(args, r);
        count_segment<W>(args, all, range, shared);
        const auto counts = [&](int32_t expert) {
            return SlotCounts{turn_counts_into_ranks<W>(expert - range.first, shared), 0};
        };
        end = lay_out_experts<W>(args, range.first, range.first + range.size, end, range, counts,
                                 shared);
        place_segment<W>(args, all, range, shared);
        write_experts<W>(args, range, 0, 1, shared);
        sync_block();
    }
    write_end(args, end, 0, 1);
}

// Counts the slots of a segment for a range of experts. One block per segment and range.
template <int W>
DSPARK_KERNEL(kThreads)
void count_slots_kernel(PlanArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(PlanShared<W>, shared);
    const int64_t segment = block_idx().x % args.num_segments;
    const ExpertRange range = range_of(args, block_idx().x / args.num_segments);
    count_segment<W>(args, segment_of(args, segment), range, shared);
    for (int i = thread_idx(); i < range.size; i += kThreads) {
        args.segment_counts[segment * args.num_experts + range.first + i] =
            turn_counts_into_ranks<W>(i, shared);
    }
}

DSPARK_DEVICE SlotCounts counts_of_segments(const PlanArgs& args, int64_t segment, int64_t expert) {
    SlotCounts counts = {0, 0};
    for (int64_t s = 0; s < args.num_segments; ++s) {
        if (s == segment) counts.before = counts.all;
        counts.all += args.segment_counts[s * args.num_experts + expert];
    }
    return counts;
}

// Places the slots of a segment in the rows of a range of experts, whose other entries the blocks
// of the range share. One block per segment and range.
template <int W>
DSPARK_KERNEL(kThreads)
void place_slots_kernel(PlanArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(PlanShared<W>, shared);
    const int64_t segment = block_idx().x % args.num_segments;
    const ExpertRange range = range_of(args, block_idx().x / args.num_segments);
    count_segment<W>(args, segment_of(args, segment), range, shared);
    for (int i = thread_idx(); i < range.size; i += kThreads) turn_counts_into_ranks<W>(i, shared);
    const auto counts = [&](int32_t expert) { return counts_of_segments(args, segment, expert); };
    const Place end = lay_out_experts<W>(args, 0, args.num_experts, {0, 0}, range, counts, shared);
    place_segment<W>(args, segment_of(args, segment), range, shared);
    write_experts<W>(args, range, segment, args.num_segments, shared);
    write_end(args, end, block_idx().x, grid_dim().x);
}

}  // namespace dspark::DSPARK_ISA::moe
