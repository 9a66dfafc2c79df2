// What a thread block does with the order of the drafts: sorts it, searches its end, and turns what
// is admitted into lengths and rows.
#pragma once

#include "device/block_reduce.h"
#include "device/block_scan.h"
#include "ops/verify/algorithm.h"

namespace dspark::DSPARK_ISA::verify {

// ---- candidates ---------------------------------------------------------------------------------

// Keys in shared memory, spread so that threads which take every second, fourth or eighth meet few
// bank conflicts.
struct TileKeys {
    SharedArray<uint64_t, kTileCandidates> element;

    DSPARK_DEVICE decltype(auto) operator[](int i) { return element[i ^ (i >> 3 & 7)]; }
    DSPARK_DEVICE uint64_t operator[](int i) const { return element[i ^ (i >> 3 & 7)]; }
};

// Of some candidates: their number, + 2^32 for each that is forced, and the tokens of those.
struct CandidateTotals {
    int64_t counts;
    int64_t forced_units;
};
constexpr int64_t kOneForced = int64_t{1} << 32;

DSPARK_DEVICE int64_t candidates_in(int64_t counts) {
    return counts & (kOneForced - 1);
}
DSPARK_DEVICE int64_t forced_in(int64_t counts) {
    return counts >> 32;
}

// Puts the keys of requests begin .. end - 1 into `keys`, followed by kNoCandidate up to `size`.
// Returns what the thread has seen of them. To be followed by a sync_block.
DSPARK_DEVICE CandidateTotals load_candidates(const ScheduleArgs& args,
                                              Global<const float> confidence, int32_t begin,
                                              int32_t end, int size, TileKeys& keys) {
    CandidateTotals seen = {0, 0};
    const int width = args.num_positions;
    for (int32_t b = begin + thread_idx(); b < end; b += kThreads) {
        const int32_t limit = draft_limit(args, b);
        DraftWalk walk;
        for (int32_t j = 0; j < width; ++j) {
            const uint64_t key = walk.next(args, confidence, limit, j, b);
            keys[(b - begin) * width + j] = key;
            if (key == kNoCandidate) continue;
            ++seen.counts;
            if (!is_forced_key(key)) continue;
            seen.counts += kOneForced;
            seen.forced_units += token_units(walk.survival);
        }
    }
    const int filled = end > begin ? (end - begin) * width : 0;
    for (int i = filled + thread_idx(); i < size; i += kThreads) keys[i] = kNoCandidate;
    return seen;
}

// The keys that a block needs for `count` candidates, for sort_keys: a power of two.
DSPARK_DEVICE int padded_size(int count) {
    int size = 8;
    while (size < count) size *= 2;
    return size;
}

// The stages of a bitonic merge for distances R / 2 * stride down to stride, each thread R keys at
// a time.
template <int R>
DSPARK_DEVICE void merge_stages(TileKeys& keys, int size, int run, int stride) {
    for (int i = thread_idx(); i < size / R; i += kThreads) {
        const int first = (i & ~(stride - 1)) * R + (i & (stride - 1));
        const bool ascends = (first & run) == 0;
        uint64_t key[R];
        for (int r = 0; r < R; ++r) key[r] = keys[first + r * stride];
        for (int d = R / 2; d > 0; d /= 2) {
            for (int r = 0; r < R; ++r) {
                if ((r & d) != 0) continue;
                const uint64_t a = key[r];
                const uint64_t b = key[r + d];
                const bool keeps = (a < b) == ascends;
                key[r] = keeps ? a : b;
                key[r + d] = keeps ? b : a;
            }
        }
        for (int r = 0; r < R; ++r) keys[first + r * stride] = key[r];
    }
}

// Sorts keys[0 .. size - 1] in ascending order (a bitonic network), after and before a sync_block.
// Three stages at a time; with strides up to W a warp keeps to its 8 W keys.
template <int W>
DSPARK_DEVICE void sort_keys(TileKeys& keys, int size) {
    int stages = 1;  // of the merge to runs of 2^stages
    for (int run = 2; run <= size; run *= 2, ++stages) {
        sync_block();
        int distance = run / 2;
        if (stages % 3 == 1) merge_stages<2>(keys, size, run, distance);
        if (stages % 3 == 2) merge_stages<4>(keys, size, run, distance / 2);
        if (stages % 3 != 0) sync_block();
        for (distance >>= stages % 3; distance > 0; distance /= 8) {
            const int stride = distance / 4;
            merge_stages<8>(keys, size, run, stride);
            if (stride > W) {
                sync_block();
            } else {
                sync_warp<W>();
            }
        }
    }
    sync_block();
}

// ---- the end of the order -----------------------------------------------------------------------

// What is known of an order before it is searched.
struct Order {
    int32_t live;
    int64_t room;
    int64_t candidates;
    int64_t forced;
    int64_t units;  // of the anchors and the forced drafts
};

DSPARK_DEVICE Order order_of(const ScheduleArgs& args, int32_t live, CandidateTotals totals) {
    return {live, draft_room(args, live), candidates_in(totals.counts), forced_in(totals.counts),
            live * kToken + totals.forced_units};
}

struct End {
    int64_t count;  // or kNoEnd
    double rate;
};

template <int W>
struct EndScratch {
    BlockScanScratch<W, int64_t> units;
    BlockReduceScratch<W, double> rate;
    BlockReduceScratch<W, int64_t> count;
};

// The end that all threads agree on, from what each has found: the first, or the first of the best.
template <int W>
DSPARK_DEVICE End common_end(const ScheduleArgs& args, End mine, EndScratch<W>& scratch) {
    if (args.mode == ScheduleMode::kLagged) {
        const double best = block_max<W>(mine.rate, scratch.rate);
        if (mine.rate < best) mine.count = kNoEnd;
        mine.rate = best;
    }
    return {block_min<W>(mine.count, scratch.count), mine.rate};
}

// Searches candidates first .. first + count - 1 of an order, keys[0 .. count - 1]; `units`: tokens
// before them. Each thread takes a piece.
template <int W, class Keys>
DSPARK_DEVICE End find_end(const ScheduleArgs& args, const Order& order, const Keys& keys,
                           int64_t first, int count, int64_t units, EndScratch<W>& scratch) {
    const int piece = (count + kThreads - 1) / kThreads;
    const int begin = thread_idx() * piece;
    const int end = static_cast<int>(smaller(count, begin + piece));
    int64_t in_piece = 0;
    for (int i = begin; i < end; ++i) in_piece += key_units(keys[i]);
    units += block_exclusive_sum<W>(in_piece, scratch.units).before;

    const int64_t at = first + begin;
    OrderSearch search = {{order.live + at, units}, at, kNoEnd, -1.0};
    if (args.mode == ScheduleMode::kLagged && at == 0 && thread_idx() == 0) {
        search.consider(args, order.forced, order.room);
    }
    for (int i = begin; i < end; ++i) {
        if (!search.add(args, order.forced, order.room, keys[i])) break;
    }
    return common_end<W>(args, {search.end, search.rate}, scratch);
}

// ---- lengths and rows ---------------------------------------------------------------------------

template <int W>
struct RowsScratch {
    BlockScanScratch<W, int32_t> rows;
    BlockReduceScratch<W, int64_t> units;
};

// Writes all outputs.
template <int W, class Admit>
DSPARK_DEVICE void write_schedule(const ScheduleArgs& args, int32_t live, const Admit& admit,
                                  RowsScratch<W>& scratch) {
    int64_t units = 0;
    int32_t rows_before = 0;
    for (int32_t start = 0; start < args.batch; start += kThreads) {
        const int32_t b = start + thread_idx();
        Admission admission = {0, 0};
        if (b < live) {
            admission = admit(args, b);
            units += kToken + admission.units;
        }
        const int32_t rows = b < live ? admission.length + 1 : 0;
        const BlockScan<int32_t> scan = block_exclusive_sum<W>(rows, scratch.rows);
        if (b < args.batch) {
            args.verify_lens[b] = admission.length;
            args.query_start_loc[b] = rows_before + scan.before;
        }
        rows_before += scan.total;
        sync_block();
    }
    units = block_sum<W>(units, scratch.units);
    if (thread_idx() != 0) return;
    args.query_start_loc[args.batch] = rows_before;
    args.num_rows[0] = rows_before;
    args.expected_tokens[0] = expected_tokens(units);
}

}  // namespace dspark::DSPARK_ISA::verify
