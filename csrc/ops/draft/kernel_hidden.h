// Products with hidden rows, in kHiddenLanes lanes, one thread per lane: what the gated and rnn
// heads need of them, and confidences.
#pragma once

#include "device/block_tile.h"
#include "device/warp_tile.h"
#include "ops/draft/kernel_step.h"

namespace dspark::DSPARK_ISA::draft {

// ---- H of every draft ---------------------------------------------------------------------------

constexpr int kHiddenOutputs = 4;  // rows of head_weight of a block
constexpr int kHiddenRows = 8;     // hidden rows that share a pass over them

struct HiddenShared {
    SharedArray<float, kHiddenOutputs * kHiddenRows * kLanes> lanes;
};

// This thread's lane of the products of a block's outputs with some hidden rows. Zeros stand for
// what is not there.
struct HiddenLanes {
    float sum[kHiddenRows][kHiddenOutputs];
};

DSPARK_DEVICE HiddenLanes hidden_lanes(const MarkovArgs& args, int64_t first_output,
                                       int64_t first_pair) {
    const int64_t pairs = args.batch * args.num_drafts;
    const int64_t outputs = head_rows(args);
    HiddenLanes lanes = {};
    for (int64_t i = thread_idx(); i < args.hidden_size + kLanes - 1; i += kLanes) {
        if (i / kLanes * kLanes >= args.hidden_size) break;
        float w[kHiddenOutputs];
        for (int o = 0; o < kHiddenOutputs; ++o) {
            const int64_t at = (first_output + o) * head_row_size(args) + hidden_column(args) + i;
            const bool is_in = first_output + o < outputs && i < args.hidden_size;
            w[o] = is_in ? read_float(args.head_weight_type, args.head_weight, at) : 0.0f;
        }
        for (int p = 0; p < kHiddenRows; ++p) {
            const int64_t pair = first_pair + p;
            const int64_t row =
                pair / args.num_drafts * args.num_positions + pair % args.num_drafts;
            const bool is_in = pair < pairs && i < args.hidden_size;
            const float h =
                is_in ? read_float(args.hidden_type, args.hidden, row * args.hidden_size + i)
                      : 0.0f;
            for (int o = 0; o < kHiddenOutputs; ++o) {
                lanes.sum[p][o] = fma(h, w[o], lanes.sum[p][o]);
            }
        }
    }
    return lanes;
}

// The launch before the first step of a gated or rnn head. One block per kHiddenOutputs rows of
// head_weight: it reads their hidden part once for every kHiddenRows drafts.
template <int W>
DSPARK_KERNEL(kThreads)
void hidden_dots_kernel(MarkovStep step) {
    check_warp_size<W>();
    DSPARK_SHARED(HiddenShared, shared);
    const MarkovArgs& args = step.args;
    clear_order(step, block_idx().x, grid_dim().x);
    const int64_t first_output = int64_t{block_idx().x} * kHiddenOutputs;
    const int64_t outputs = head_rows(args);
    const int64_t pairs = args.batch * args.num_drafts;
    for (int64_t first = 0; first < pairs; first += kHiddenRows) {
        const HiddenLanes lanes = hidden_lanes(args, first_output, first);
        sync_block();
        for (int p = 0; p < kHiddenRows; ++p) {
            for (int o = 0; o < kHiddenOutputs; ++o) {
                shared.lanes[(p * kHiddenOutputs + o) * kLanes + thread_idx()] = lanes.sum[p][o];
            }
        }
        sync_block();
        for (int i = warp_index<W>(); i < kHiddenRows * kHiddenOutputs; i += kWarps<W>) {
            const float sum = warp_halving_tree<W>(shared.lanes, i * kLanes);
            const int64_t pair = first + i / kHiddenOutputs;
            const int64_t output = first_output + i % kHiddenOutputs;
            if (lane_index<W>() != 0 || pair >= pairs || output >= outputs) continue;
            args.hidden_dots[pair * outputs + output] = sum;
        }
    }
}

// ---- confidences --------------------------------------------------------------------------------

// The vector [hidden ; prev_embed] of a row, zeros behind it.
struct ConfidenceRow {
    const ConfidenceArgs& args;
    int64_t row;

    DSPARK_DEVICE float operator()(int64_t i) const {
        if (i < args.hidden_size) {
            return read_float(args.hidden_type, args.hidden, row * args.hidden_size + i);
        }
        i -= args.hidden_size;
        return i < args.rank ? read_float(args.embed_type, args.prev_embed, row * args.rank + i)
                             : 0.0f;
    }
};

// One block per row.
template <int W>
DSPARK_KERNEL(kThreads)
void confidence_kernel(ConfidenceArgs args) {
    constexpr int kAhead = 4;  // entries on their way
    check_warp_size<W>();
    DSPARK_SHARED(LaneSums, shared);
    const ConfidenceRow x = {args, block_idx().x};
    const int64_t size = args.hidden_size + args.rank;
    float sum = 0.0f;
    for (int64_t first = thread_idx(); first < args.padded_size; first += kAhead * kLanes) {
        float entry[kAhead];
        float weight[kAhead];
        for (int a = 0; a < kAhead; ++a) {
            const int64_t i = first + a * kLanes;
            entry[a] = x(i);
            weight[a] = i < size ? read_float(args.weight_type, args.weight, i) : 0.0f;
        }
        for (int a = 0; a < kAhead; ++a) {
            if (first + a * kLanes < args.padded_size) sum = fma(entry[a], weight[a], sum);
        }
    }
    const float logit = halving_tree<W>(sum, shared);
    if (thread_idx() == 0) args.confidence[x.row] = confidence_of(args, x.row, logit);
}

// One thread per row.
template <int W>
DSPARK_KERNEL(kThreads)
void calibrate_kernel(CalibrateArgs args) {
    check_warp_size<W>();
    const int64_t row = int64_t{block_idx().x} * kThreads + thread_idx();
    if (row >= args.rows) return;
    args.confidence[row] =
        calibrated(args.conf_logits[row], args.temperatures[row % args.num_drafts]);
}

}  // namespace dspark::DSPARK_ISA::draft
