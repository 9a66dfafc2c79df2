// A step of markov_sample: the draw of one draft from the logits kept of it, then the logits of the
// next, in one launch. tickets.h says why the blocks that wait cannot hang.
#pragma once

#include "device/block_law.h"
#include "device/block_statistics.h"
#include "device/philox.h"
#include "ops/draft/kernel_head.h"
#include "ops/draft/kernel_logits.h"

namespace dspark::DSPARK_ISA::draft {

template <int W>
struct ProducerShared {
    TicketShared ticket;
    SharedArray<Law, 1> law;
    union {
        StatisticsShared<W> statistics;
        DrawShared<W> draw;
        HeadShared head;
    };
};

template <int W>
struct StepShared {
    TicketShared ticket;
    union {
        ProducerShared<W> producer;
        ProductShared<W> products;
        FillShared fill;
    };
};

// ---- draws --------------------------------------------------------------------------------------

// The law of the logits kept of a draft, started.
DSPARK_DEVICE Law row_law(const MarkovStep& step, int64_t b, int64_t draft, float temperature) {
    const MarkovArgs& args = step.args;
    const int64_t row = b * args.num_drafts + draft;
    Law law = {};
    law.row = row_of(args.logits_type, args.logits, row, args.vocab);
    law.dtype = args.logits_type;
    law.vocab = static_cast<int32_t>(args.vocab);
    law.tile_max = args.tile_max + row * args.tiles;
    law.tile_sum = args.tile_sum + row * args.tiles;
    law.tile_scale = step.scratch.tile_scale + b * args.tiles;
    start_law(law, temperature);
    return law;
}

// The draw of a draft from its row, whose tiles have been measured; every thread returns the token.
template <int W>
DSPARK_DEVICE int64_t block_draw_token(const MarkovStep& step, int64_t b, int64_t draft,
                                       float temperature, ProducerShared<W>& shared) {
    const MarkovArgs& args = step.args;
    if (!is_valid_temperature(temperature)) return -1;
    if (warp_index<W>() == 0) {
        const int64_t row = b * args.num_drafts + draft;
        const TileStatistics tiles = {args.tile_max + row * args.tiles,
                                      step.scratch.tile_first + b * args.tiles,
                                      args.tile_nan + row * args.tiles};
        const Law law = warp_finish_law<W>(row_law(step, b, draft, temperature), tiles);
        if (lane_index<W>() == 0) shared.law[0] = law;
    }
    sync_block();
    const Law law = shared.law[0];
    const double u = uniform(args.seeds[b], args.positions[b] + draft, Stream::kDraft,
                             static_cast<int32_t>(draft));
    return block_draw_law<W>(law, u, shared.draw);
}

// Statistics of one tile of draft k - 1. The block that completes a row draws from it, and prepares
// draft k.
template <int W>
DSPARK_DEVICE void block_measure_and_draw(const MarkovStep& step, int64_t job,
                                          ProducerShared<W>& shared) {
    const MarkovArgs& args = step.args;
    const int64_t b = job / args.tiles;
    const int tile = static_cast<int>(job % args.tiles);
    const int64_t draft = step.k - 1;
    const int64_t row = b * args.num_drafts + draft;
    const float temperature = row_temperature(args, b);
    const Row logits = {row_of(args.logits_type, args.logits, row, args.vocab), args.logits_type,
                        static_cast<int32_t>(args.vocab)};
    const BlockStatistics found = block_statistics<W>(logits, tile, temperature, shared.statistics);
    if (thread_idx() == 0) {
        args.tile_max[row * args.tiles + tile] = found.maximum;
        args.tile_sum[row * args.tiles + tile] = found.sum;
        args.tile_nan[row * args.tiles + tile] = found.has_nan ? 1 : 0;
        step.scratch.tile_first[b * args.tiles + tile] = found.first;
    }
    const uint32_t done = block_arrive(step.scratch.tiles_done + b, shared.ticket);
    if (int64_t{done} + 1 != step.k * args.tiles) return;

    const int64_t token = block_draw_token<W>(step, b, draft, temperature, shared);
    if (thread_idx() == 0) {
        args.token_ids[row] = token;
        args.row_temperature[row] = temperature;
    }
    sync_block();
    if (step.k < args.num_drafts) block_advance<W>(step, b, step.k, token, shared.head);
}

// ---- the launches -------------------------------------------------------------------------------

// Counters and flags, before the launches that use them. `part` of `parts` blocks.
DSPARK_DEVICE void clear_order(const MarkovStep& step, int64_t part, int64_t parts) {
    const int64_t threads = parts * kThreads;
    for (int64_t i = part * kThreads + thread_idx(); i <= step.args.num_drafts; i += threads) {
        step.scratch.tickets[i] = 0;
    }
    for (int64_t b = part * kThreads + thread_idx(); b < step.args.batch; b += threads) {
        step.scratch.tiles_done[b] = 0;
        step.scratch.inputs_ready[b] = 0;
    }
}

template <int W>
DSPARK_DEVICE void block_produce(const MarkovStep& step, int64_t job, ProducerShared<W>& shared) {
    if (step.k > 0) return block_measure_and_draw<W>(step, job, shared);
    if (!step.is_ordered) clear_order(step, job, step.producers);
    block_advance<W>(step, job, 0, step.args.anchor[job], shared.head);
}

// The block's job; logits(job) computes logits.
template <int W, class Shared, class Logits>
DSPARK_DEVICE void block_step(const MarkovStep& step, Shared& shared, const Logits& logits) {
    int64_t job = block_idx().x;
    if (step.is_ordered) job = block_take_ticket(step.scratch.tickets + step.k, shared.ticket);
    if (job < step.producers) return block_produce<W>(step, job, shared.producer);
    job -= step.producers;
    if (job < step.logits_jobs) return logits(job);
    block_fill(step, job - step.logits_jobs, shared.fill);
}

constexpr int step_blocks(int requests_of_team) {
    return requests_of_team == 8 ? 1 : 2;  // of a multiprocessor: 64 chains take their registers
}

template <int W, int kRequests, bool kNarrow>
DSPARK_KERNEL(kThreads, step_blocks(kRequests))
void markov_step_kernel(MarkovStep step) {
    check_warp_size<W>();
    DSPARK_SHARED(StepShared<W>, shared);
    block_step<W>(step, shared, [&](int64_t job) {
        using Products = ExactProducts<W, kRequests, kNarrow>;
        block_logits<W, Products, kNarrow>(step, job, shared.products);
    });
}

}  // namespace dspark::DSPARK_ISA::draft
