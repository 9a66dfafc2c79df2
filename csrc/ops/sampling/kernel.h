// Kernels of the sampling family, part one: the statistics of rows. Every kernel is a map over
// blocks of 256 threads: no block waits for another, no memory needs clearing beforehand.
#pragma once

#include "device/block_law.h"
#include "ops/sampling/block_profile.h"
#include "ops/sampling/request.h"
#include "ops/sampling/validity.h"

namespace dspark::DSPARK_ISA::sampling {

// One row whose law a call needs.
struct RowJob {
    Global<const void> data;
    FloatType dtype;
    int32_t vocab;
    float temperature;
};

// The rows of a verification: B (K + 1) target rows, then B K draft rows.
struct VerifyRows {
    VerifyArgs args;

    DSPARK_HOST_DEVICE const LawScratch& scratch() const { return args.scratch; }
    DSPARK_HOST_DEVICE int64_t filtered_rows() const { return args.batch * (args.num_drafts + 1); }
    DSPARK_HOST_DEVICE int64_t size() const {
        const bool has_laws = args.draft_logits.data != nullptr;
        return filtered_rows() + (has_laws ? args.batch * args.num_drafts : 0);
    }
    DSPARK_HOST_DEVICE const LawArgs& law_args() const { return args.law; }
    DSPARK_DEVICE int64_t law_index(int64_t r) const { return r / (args.num_drafts + 1); }

    // False: nothing needs row r.
    DSPARK_DEVICE bool find(int64_t r, RowJob* job) const {
        return r < filtered_rows() ? find_target(r, job) : find_draft(r - filtered_rows(), job);
    }

    // For a row that exists: whether the statistics of the tile came with the call. By one thread,
    // which copies them to the scratch.
    DSPARK_DEVICE bool take_statistics(int64_t r, int tile) const {
        const int64_t slot = r - filtered_rows();
        if (slot < 0 || !has_statistics(args, slot / args.num_drafts, slot % args.num_drafts)) {
            return false;
        }
        const int tiles = num_tiles(args.draft_logits.vocab);
        if (tile >= tiles) return true;
        const int64_t from = slot * tiles + tile;
        const int64_t to = r * args.scratch.tiles + tile;
        args.scratch.tile_max[to] = args.draft_statistics.tile_max[from];
        args.scratch.tile_sum[to] = args.draft_statistics.tile_sum[from];
        args.scratch.tile_nan[to] = args.draft_statistics.tile_nan[from];
        return true;
    }

  private:
    DSPARK_DEVICE bool find_target(int64_t r, RowJob* job) const {
        const int64_t b = r / (args.num_drafts + 1);
        const int64_t i = r % (args.num_drafts + 1);
        if (!is_valid_request(args, b)) return false;
        const int64_t row = args.query_start_loc[b] + i;
        if (row >= args.query_start_loc[b + 1]) return false;
        const RowsView& logits = args.target_logits;
        *job = {row_at(logits, 0, row), logits.dtype, logits.vocab, target_temperature(args, b)};
        return true;
    }

    DSPARK_DEVICE bool find_draft(int64_t r, RowJob* job) const {
        const int64_t b = r / args.num_drafts;
        const int64_t i = r % args.num_drafts;
        if (!is_valid_request(args, b)) return false;
        const int64_t count = args.query_start_loc[b + 1] - args.query_start_loc[b];
        const float temperature = args.draft_temperature[b];
        if (i + 1 >= count || target_temperature(args, b) == 0.0f || temperature == 0.0f) {
            return false;
        }
        const RowsView& logits = args.draft_logits;
        *job = {row_at(logits, b, i), logits.dtype, logits.vocab, temperature};
        return true;
    }
};

// Rows that stand for themselves: those of sample and target_probs.
struct PlainRows {
    RowsView logits;
    LawArgs law;
    int64_t rows;
    LawScratch laws;

    DSPARK_HOST_DEVICE const LawScratch& scratch() const { return laws; }
    DSPARK_HOST_DEVICE int64_t filtered_rows() const { return rows; }
    DSPARK_HOST_DEVICE int64_t size() const { return rows; }
    DSPARK_HOST_DEVICE const LawArgs& law_args() const { return law; }
    DSPARK_DEVICE int64_t law_index(int64_t r) const { return r; }

    DSPARK_DEVICE bool find(int64_t r, RowJob* job) const {
        if (!is_valid_law(law, r)) return false;
        *job = {row_at(logits, 0, r), logits.dtype, logits.vocab, law.temperature[r]};
        return true;
    }
    DSPARK_DEVICE bool take_statistics(int64_t, int) const { return false; }
};

// The law of row r as far as its temperature determines it.
DSPARK_DEVICE Law new_law(const LawScratch& scratch, int64_t r, const RowJob& job) {
    Law law = {};
    law.row = job.data;
    law.dtype = job.dtype;
    law.vocab = job.vocab;
    law.tile_max = scratch.tile_max + r * scratch.tiles;
    law.tile_sum = scratch.tile_sum + r * scratch.tiles;
    law.tile_scale = scratch.tile_scale + r * scratch.tiles;
    start_law(law, job.temperature);
    return law;
}

DSPARK_DEVICE TileStatistics tile_statistics(const LawScratch& scratch, int64_t r) {
    const int64_t begin = r * scratch.tiles;
    return {scratch.tile_max + begin, scratch.tile_first + begin, scratch.tile_nan + begin};
}

// A job found by one thread for its block, so that the parameters are read once.
struct JobShared {
    SharedArray<RowJob, 1> job;
    SharedArray<int32_t, 1> exists;
};

// Called by the whole block; passes one sync_block.
template <class Rows>
DSPARK_DEVICE bool find_for_block(const Rows& rows, int64_t r, JobShared& shared, RowJob* job) {
    if (thread_idx() == 0) {
        RowJob found = {};
        shared.exists[0] = rows.find(r, &found) ? 1 : 0;
        shared.job[0] = found;
    }
    sync_block();
    *job = shared.job[0];
    return shared.exists[0] != 0;
}

// ---- row_statistics -----------------------------------------------------------------------------

template <int W>
struct StatisticsShared {
    JobShared job;
    TileStage stage;
    LaneSums sums;
    BlockReduceScratch<W, float> maximum;
    BlockReduceScratch<W, uint32_t> has_nan;
    BlockReduceScratch<W, int32_t> first;
    ProfileShared<W> profile;
};

// Weights of a tile nothing of which is dropped.
DSPARK_DEVICE LaneEntries all_weights(const LaneEntries& entries, float maximum, float scale) {
    LaneEntries weights;
    for (int c = 0; c < kEntriesPerThread; ++c) {
        weights.x[c] = exp2_nonpositive((entries.x[c] - maximum) * scale);
    }
    return weights;
}

// The rows of which a tile is still to be measured.
template <class Rows>
struct UnmeasuredRows {
    const Rows& rows;
    int tile;

    DSPARK_DEVICE bool find(int64_t r, RowJob* job) const {
        return rows.find(r, job) && !rows.take_statistics(r, tile);
    }
};

// m_t, S_t (unless greedy), the NaN flag, for greedy rows the first maximal entry and, for rows
// that filters cut, the profile. One block per (row, tile); passes every row once, save those
// whose statistics are given.
template <int W, class Rows>
DSPARK_KERNEL(kThreads, 5)
void row_statistics_kernel(Rows rows) {
    check_warp_size<W>();
    DSPARK_SHARED(StatisticsShared<W>, shared);
    const LawScratch& scratch = rows.scratch();
    const int64_t r = block_idx().x / scratch.tiles;
    const int tile = block_idx().x % scratch.tiles;
    RowJob job;
    if (!find_for_block(UnmeasuredRows<Rows>{rows, tile}, r, shared.job, &job)) return;
    const int64_t at = r * scratch.tiles + tile;
    if (tile >= num_tiles(job.vocab)) return;  // a draft row may be shorter

    const Row row = {job.data, job.dtype, job.vocab};
    const int count = tile_size(job.vocab, tile);
    TileExtremes extremes;
    const int shift = stage_tile<ReadLogit>(row, tile, shared.stage, extremes);
    const float maximum = block_max<W>(extremes.maximum, shared.maximum);  // syncs the block
    const bool has_nan = block_any<W>(extremes.has_nan, shared.has_nan);
    const LaneEntries entries = lane_entries<ReadLogit>(shared.stage, shift, count);

    float sum = 0.0f;
    if (job.temperature == 0.0f) {
        int32_t first = INT32_MAX;
        for (int c = kEntriesPerThread - 1; c >= 0; --c) {
            if (entries.x[c] == maximum) first = tile * kTile + entry_index(c);
        }
        first = block_min<W>(first, shared.first);
        if (thread_idx() == 0) scratch.tile_first[at] = first;
    } else if (maximum > -kInfinity) {
        const LaneEntries weights = all_weights(entries, maximum, exponent_scale(job.temperature));
        const bool is_filtered = r < scratch.filtered_rows;
        if (is_filtered) count_profile<W>(weights, shared.profile);
        sum = halving_tree<W>(lane_sum(weights), shared.sums);  // syncs the block
        if (is_filtered) store_profile<W>(shared.profile, scratch.profiles + at * kProfileWords);
    }
    if (thread_idx() != 0) return;
    scratch.tile_max[at] = maximum;
    scratch.tile_sum[at] = sum;
    scratch.tile_nan[at] = has_nan ? 1 : 0;
}

}  // namespace dspark::DSPARK_ISA::sampling
