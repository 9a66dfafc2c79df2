// Kernels of `schedule`: one block where it can sort all candidates, else blocks that sort tiles of
// them, merge the tiles and search the merged order.
#pragma once

#include "ops/verify/kernel_order.h"
#include "ops/verify/workspace.h"

namespace dspark::DSPARK_ISA::verify {

// Whether the order has an end of its own, beside the room.
DSPARK_HOST_DEVICE bool is_searched(ScheduleMode mode) {
    return mode == ScheduleMode::kEarlyStop || mode == ScheduleMode::kLagged;
}

// ---- one block ----------------------------------------------------------------------------------

template <int W>
struct ScheduleShared {
    TileKeys keys;
    BlockReduceScratch<W, int64_t> counts;
    BlockReduceScratch<W, int64_t> forced_units;
    EndScratch<W> end;
    RowsScratch<W> rows;
};

// Sorts all candidates into shared.keys; ends with a sync_block.
template <int W>
DSPARK_DEVICE Order sort_all(const ScheduleArgs& args, Global<const float> confidence, int32_t live,
                             int size, ScheduleShared<W>& shared) {
    CandidateTotals totals = load_candidates(args, confidence, 0, live, size, shared.keys);
    totals.counts = block_sum<W>(totals.counts, shared.counts);
    totals.forced_units = block_sum<W>(totals.forced_units, shared.forced_units);
    sort_keys<W>(shared.keys, size);
    return order_of(args, live, totals);
}

template <int W>
DSPARK_KERNEL(kThreads)
void schedule_kernel(ScheduleArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(ScheduleShared<W>, shared);
    const int32_t live = live_requests(args);
    const int size = padded_size(live * args.num_positions);
    int64_t count = draft_room(args, live);
    // Of the lagged order the end is searched, of the current one it is applied.
    const bool lagged = args.mode == ScheduleMode::kLagged;
    for (int pass = lagged ? 0 : 1; pass < 2; ++pass) {
        const Global<const float> confidence = pass == 0 ? args.lagged_confidence : args.confidence;
        const Order order = sort_all<W>(args, confidence, live, size, shared);
        if (pass == 0 || args.mode == ScheduleMode::kEarlyStop) {
            const End end =
                find_end<W>(args, order, shared.keys, 0, static_cast<int>(order.candidates),
                            order.units, shared.end);
            count = smaller(count, end.count);
        }
    }
    const uint64_t bound = count < size ? uint64_t{shared.keys[count]} : kNoCandidate;
    write_schedule<W>(args, live, KeysBelow{bound}, shared.rows);
}

// ---- mode uniform, one block --------------------------------------------------------------------

template <int W>
struct UniformShared {
    BlockReduceScratch<W, int64_t> even;
    BlockReduceScratch<W, int64_t> odd;
    RowsScratch<W> rows;
};

// Tokens of the thread's requests at a position. Their running products are in the scratch.
DSPARK_DEVICE int64_t gain_at(const ScheduleArgs& args, Global<const float> confidence,
                              int32_t live, int32_t position) {
    int64_t gain = 0;
    for (int32_t b = thread_idx(); b < live; b += kThreads) {
        if (position >= draft_limit(args, b)) continue;
        const float before = position == 0 ? 1.0f : float{args.survival[b]};
        const float c = confidence[int64_t{b} * args.num_positions + position];
        const float survival = next_survival(before, c);
        args.survival[b] = survival;
        gain += token_units(survival);
    }
    return gain;
}

template <int W>
DSPARK_KERNEL(kThreads)
void uniform_schedule_kernel(ScheduleArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(UniformShared<W>, shared);
    const int32_t live = live_requests(args);
    const int32_t most = most_uniform_drafts(args, live);
    const Global<const float> confidence =
        args.lagged_confidence != nullptr ? args.lagged_confidence : args.confidence;
    UniformSearch search(args, live);
    for (int32_t j = 0; j < most; ++j) {
        const int64_t mine = gain_at(args, confidence, live, j);
        const int64_t gain = block_sum<W>(mine, j % 2 == 0 ? shared.even : shared.odd);
        if (!search.add(args, live, j, gain)) break;
    }
    write_schedule<W>(args, live, UpToLength{search.length}, shared.rows);
}

// ---- many blocks --------------------------------------------------------------------------------
// Order 0 is that of the current confidences, order 1 that of the lagged ones.

template <int W>
struct TileShared {
    TileKeys keys;
    BlockReduceScratch<W, int64_t> counts;
    BlockReduceScratch<W, int64_t> forced_units;
};

// Sorts the candidates of some requests. One block per order and tile.
template <int W>
DSPARK_KERNEL(kThreads)
void sort_tiles_kernel(ScheduleArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(TileShared<W>, shared);
    const ScheduleScratch& scratch = args.scratch;
    const int64_t at = block_idx().x;  // order * tiles + tile
    const int32_t per_tile = kTileCandidates / args.num_positions;
    const int32_t begin = static_cast<int32_t>(at % scratch.tiles) * per_tile;
    const int32_t end = static_cast<int32_t>(smaller(live_requests(args), begin + per_tile));
    const Global<const float> confidence =
        at < scratch.tiles ? args.confidence : args.lagged_confidence;
    const CandidateTotals seen =
        load_candidates(args, confidence, begin, end, kTileCandidates, shared.keys);
    const int64_t counts = block_sum<W>(seen.counts, shared.counts);
    const int64_t units = block_sum<W>(seen.forced_units, shared.forced_units);
    sort_keys<W>(shared.keys, kTileCandidates);
    for (int i = thread_idx(); i < kTileCandidates; i += kThreads) {
        scratch.tile_keys[at * kTileCandidates + i] = uint64_t{shared.keys[i]};
    }
    if (thread_idx() != 0) return;
    scratch.tile_counts[at] = counts;
    scratch.tile_units[at] = units;
}

// Keys of a tile below `key`.
DSPARK_DEVICE int64_t keys_below(const ScheduleScratch& scratch, int64_t tile, uint64_t key) {
    int64_t low = 0;
    int64_t high = candidates_in(scratch.tile_counts[tile]);
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (scratch.tile_keys[tile * kTileCandidates + middle] < key) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

// Puts every candidate at its place in the order: behind those of all tiles that precede it. A
// thread per candidate.
template <int W>
DSPARK_KERNEL(kThreads)
void merge_tiles_kernel(ScheduleArgs args) {
    check_warp_size<W>();
    const ScheduleScratch& scratch = args.scratch;
    const int64_t from = int64_t{block_idx().x} * kThreads + thread_idx();
    const int64_t tile = from / kTileCandidates;  // order * tiles + tile
    const uint64_t key = scratch.tile_keys[from];
    if (key == kNoCandidate) return;
    const int64_t first = tile / scratch.tiles * scratch.tiles;
    int64_t place = from % kTileCandidates;
    for (int64_t other = first; other < first + scratch.tiles; ++other) {
        if (other != tile) place += keys_below(scratch, other, key);
    }
    scratch.keys[first * kTileCandidates + place] = key;
}

template <int W>
struct SearchShared {
    BlockReduceScratch<W, int64_t> counts;
    BlockReduceScratch<W, int64_t> forced_units;
    BlockReduceScratch<W, int64_t> units;
    EndScratch<W> end;
    RowsScratch<W> rows;
};

// What is known of an order once its tiles are sorted.
template <int W>
DSPARK_DEVICE Order merged_order(const ScheduleArgs& args, int64_t order, SearchShared<W>& shared) {
    const ScheduleScratch& scratch = args.scratch;
    CandidateTotals totals = {0, 0};
    for (int64_t tile = thread_idx(); tile < scratch.tiles; tile += kThreads) {
        totals.counts += scratch.tile_counts[order * scratch.tiles + tile];
        totals.forced_units += scratch.tile_units[order * scratch.tiles + tile];
    }
    totals.counts = block_sum<W>(totals.counts, shared.counts);
    totals.forced_units = block_sum<W>(totals.forced_units, shared.forced_units);
    return order_of(args, live_requests(args), totals);
}

DSPARK_DEVICE int64_t searched_order(const ScheduleArgs& args) {
    return args.mode == ScheduleMode::kLagged ? 1 : 0;
}

// Candidates kTileCandidates * r and following of the searched order.
struct Run {
    Global<const uint64_t> keys;
    int count;
};
DSPARK_DEVICE Run run_of(const ScheduleArgs& args, const Order& order, int64_t r) {
    const ScheduleScratch& scratch = args.scratch;
    const int64_t first = r * kTileCandidates;
    const int64_t left = order.candidates > first ? order.candidates - first : 0;
    return {scratch.keys + (searched_order(args) * scratch.tiles * kTileCandidates + first),
            static_cast<int>(smaller(left, kTileCandidates))};
}

// Tokens of each run. One block per run.
template <int W>
DSPARK_KERNEL(kThreads)
void sum_runs_kernel(ScheduleArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(SearchShared<W>, shared);
    const Run run =
        run_of(args, merged_order<W>(args, searched_order(args), shared), block_idx().x);
    int64_t units = 0;
    for (int i = thread_idx(); i < run.count; i += kThreads) units += key_units(run.keys[i]);
    units = block_sum<W>(units, shared.units);
    if (thread_idx() == 0) args.scratch.run_units[block_idx().x] = units;
}

// Searches each run for the end of the order. One block per run.
template <int W>
DSPARK_KERNEL(kThreads)
void search_runs_kernel(ScheduleArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(SearchShared<W>, shared);
    const ScheduleScratch& scratch = args.scratch;
    const int64_t r = block_idx().x;
    const Order order = merged_order<W>(args, searched_order(args), shared);
    const Run run = run_of(args, order, r);
    int64_t before = 0;
    for (int64_t i = thread_idx(); i < r; i += kThreads) before += scratch.run_units[i];
    before = order.units + block_sum<W>(before, shared.units);
    const End end =
        find_end<W>(args, order, run.keys, r * kTileCandidates, run.count, before, shared.end);
    if (thread_idx() != 0) return;
    scratch.run_ends[r] = end.count;
    scratch.run_rates[r] = end.rate;
}

// Lengths and rows, by one block.
template <int W>
DSPARK_KERNEL(kThreads)
void finish_schedule_kernel(ScheduleArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(SearchShared<W>, shared);
    const ScheduleScratch& scratch = args.scratch;
    const Order order = merged_order<W>(args, 0, shared);
    int64_t count = order.room;
    if (is_searched(args.mode)) {
        End mine = {kNoEnd, -1.0};
        for (int64_t r = thread_idx(); r < scratch.tiles; r += kThreads) {
            const End end = {scratch.run_ends[r], scratch.run_rates[r]};
            const bool lagged = args.mode == ScheduleMode::kLagged;
            if (lagged ? end.rate > mine.rate : end.count < mine.count) mine = end;
        }
        count = smaller(count, common_end<W>(args, mine, shared.end).count);
    }
    const uint64_t bound = count < order.candidates ? uint64_t{scratch.keys[count]} : kNoCandidate;
    write_schedule<W>(args, order.live, KeysBelow{bound}, shared.rows);
}

}  // namespace dspark::DSPARK_ISA::verify
