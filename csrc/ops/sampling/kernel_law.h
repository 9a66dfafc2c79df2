// Kernels of the sampling family for rows that stand for themselves: draws and probabilities.
#pragma once

#include "ops/sampling/kernel.h"

namespace dspark::DSPARK_ISA::sampling {

// Finishes the laws of rows that no filter touches. One warp per row.
template <int W, class Rows>
DSPARK_KERNEL(kThreads)
void finish_laws_kernel(Rows rows) {
    check_warp_size<W>();
    const int64_t r = int64_t{block_idx().x} * kWarps<W> + warp_index<W>();
    RowJob job;
    if (r >= rows.size() || !rows.find(r, &job)) return;
    const LawScratch& scratch = rows.scratch();
    const Law law = warp_finish_law<W>(new_law(scratch, r, job), tile_statistics(scratch, r));
    if (lane_index<W>() == 0) scratch.laws[r] = law;
}

// One draw per row. One block per row.
template <int W>
DSPARK_KERNEL(kThreads)
void sample_kernel(SampleArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(DrawShared<W>, shared);
    const int64_t r = block_idx().x;
    if (!is_valid_law(args.law, r)) {
        if (thread_idx() != 0) return;
        args.ids[r] = -1;
        args.logprobs[r] = bit_cast<float>(0x7FC00000u);
        return;
    }
    const Law law = args.scratch.laws[r];
    const Stream stream = args.draft_stream ? Stream::kDraft : Stream::kResample;
    int64_t id = law.argmax;
    if (!law.is_empty && !law.is_greedy) {
        const int32_t slot = args.slots != nullptr ? static_cast<int32_t>(args.slots[r]) : 0;
        const double u = args.uniforms != nullptr
                             ? static_cast<double>(args.uniforms[r])
                             : uniform(args.seeds[r], args.positions[r], stream, slot);
        id = block_draw_law<W>(law, u, shared);
    }
    if (thread_idx() != 0) return;
    args.ids[r] = id;
    args.logprobs[r] = log_probability(law, id);
}

// The probabilities of one tile. One block per (row, tile).
template <int W>
DSPARK_KERNEL(kThreads)
void target_probs_kernel(TargetProbsArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(TileStage, stage);
    const int64_t r = block_idx().x / args.scratch.tiles;
    const int tile = block_idx().x % args.scratch.tiles;
    const int count = tile_size(args.logits.vocab, tile);
    const int64_t start = r * args.logits.vocab + static_cast<int64_t>(tile) * kTile;
    if (!is_valid_law(args.law, r)) {
        const float nan = bit_cast<float>(0x7FC00000u);
        for (int i = thread_idx(); i < count; i += kThreads) args.probs[start + i] = nan;
        return;
    }
    const Law law = args.scratch.laws[r];
    const bool is_one_hot = law.is_empty || law.is_greedy;
    if (is_one_hot || law.tile_sum[tile] == 0.0f) {
        for (int i = thread_idx(); i < count; i += kThreads) {
            const bool is_argmax = law.is_greedy && !law.is_empty && tile * kTile + i == law.argmax;
            args.probs[start + i] = is_argmax ? 1.0f : 0.0f;
        }
        return;
    }
    const LaneEntries weights = read_weights(kept_tile(law, tile), tile, stage);
    const double scale = law.tile_scale[tile];
    for (int c = 0; c < kEntriesPerThread; ++c) {
        if (entry_index(c) >= count) break;
        const double weight = static_cast<double>(weights.x[c]);
        args.probs[start + entry_index(c)] = static_cast<float>(weight * scale / law.total);
    }
}

}  // namespace dspark::DSPARK_ISA::sampling
