// From a token to the inputs of the next logits: its embedding, and what a gated or rnn head makes
// of it. One block per request.
#pragma once

#include "device/tickets.h"
#include "ops/draft/algorithm.h"
#include "ops/draft/kernel_products.h"
#include "ops/draft/step.h"

namespace dspark::DSPARK_ISA::draft {

struct HeadShared {
    SharedArray<float, dspark::draft::kMaxRank> embedding;
    SharedArray<float, dspark::draft::kMaxRank> state;
    SharedArray<float, 3 * dspark::draft::kMaxRank> z;  // by row of head_weight
};

// Part of a row of head_weight.
struct HeadColumns {
    FloatType type;
    Global<const void> data;
    int64_t begin;

    DSPARK_DEVICE float operator()(int64_t i) const { return read_float(type, data, begin + i); }
};
template <class Array>
struct SharedVector {
    const Array& array;

    DSPARK_DEVICE float operator()(int64_t i) const { return array[static_cast<int>(i)]; }
};

// A product in kBiasLanes lanes, by a team of threads; each has the result. The team's warp takes
// part as a whole.
template <int W, class Left, class Right>
DSPARK_DEVICE float team_dot(int64_t size, const Left& x, const Right& w) {
    const int lane = thread_idx() % kTeamThreads<W>;
    float part[kLaneParts<W>];
    for (int i = 0; i < kLaneParts<W>; ++i) {
        part[i] = dot_lane<kBiasLanes>(lane + i * kTeamThreads<W>, size, x, w);
    }
    for (int half = kLaneParts<W> / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) part[i] += part[i + half];
    }
    for (int half = kTeamThreads<W> / 2; half > 0; half /= 2) {
        part[0] += shuffle_xor<W>(part[0], half);
    }
    return part[0];
}

// z of every row of head_weight, a team each.
template <int W>
DSPARK_DEVICE void block_head_logits(const MarkovArgs& args, int64_t b, int64_t k,
                                     HeadShared& shared) {
    constexpr int kTeams = kThreads / kTeamThreads<W>;
    const int rows = static_cast<int>(head_rows(args));
    const bool is_rnn = args.head == MarkovHead::kRnn;
    const auto embedding =
        SharedVector<SharedArray<float, dspark::draft::kMaxRank>>{shared.embedding};
    const auto state = SharedVector<SharedArray<float, dspark::draft::kMaxRank>>{shared.state};
    for (int first = 0; first < rows; first += kTeams) {
        const int row = first + thread_idx() / kTeamThreads<W>;
        const bool is_in = row < rows;
        const int64_t size = is_in ? args.rank : 0;
        const int64_t begin = row * head_row_size(args);
        const HeadColumns of_embedding = {args.head_weight_type, args.head_weight,
                                          begin + embedding_column(args)};
        const float e = team_dot<W>(size, embedding, of_embedding);
        float s = 0.0f;
        if (is_rnn) {
            const HeadColumns of_state = {args.head_weight_type, args.head_weight,
                                          begin + state_column(args)};
            s = team_dot<W>(size, state, of_state);
        }
        if (!is_in || thread_idx() % kTeamThreads<W> != 0) continue;
        const float h = args.hidden_dots[(b * args.num_drafts + k) * rows + row];
        const float bias = head_bias(args, row);
        shared.z[row] = is_rnn ? rnn_logit(h, e, s, bias) : gated_logit(h, e, bias);
    }
}

// The inputs, and the next state, of a gated or rnn head.
template <int W>
DSPARK_DEVICE void block_head(const MarkovArgs& args, int64_t b, int64_t k, HeadShared& shared) {
    const int rank = static_cast<int>(args.rank);
    const int64_t at = b * args.padded_rank;
    for (int j = thread_idx(); j < rank; j += kThreads) {
        shared.embedding[j] =
            read_float(args.w1_type, args.prev_embed, (b * args.num_drafts + k) * rank + j);
        if (args.head == MarkovHead::kRnn) {
            shared.state[j] =
                k > 0 ? static_cast<float>(args.state[at + j]) : first_state(args, b, j);
        }
    }
    sync_block();
    block_head_logits<W>(args, b, k, shared);
    sync_block();
    for (int j = thread_idx(); j < rank; j += kThreads) {
        if (args.head == MarkovHead::kGated) {
            args.bias_input[at + j] = gated_input(shared.z[j], shared.embedding[j]);
        } else {
            const float state = next_state(shared.z[j], shared.z[rank + j], shared.state[j]);
            args.state[at + j] = state;
            if (args.last_state != nullptr) args.last_state[b * rank + j] = state;
            args.bias_input[at + j] = rnn_input(shared.z[2 * rank + j]);
        }
    }
}

// Keeps the embedding of the token before draft k as it is stored; zeros if it has none.
DSPARK_DEVICE void block_keep_embedding(const MarkovArgs& args, int64_t b, int64_t k,
                                        int64_t token) {
    const int rank = static_cast<int>(args.rank);
    const bool exists = has_embedding(args, token);
    const int64_t from = token * rank;
    const int64_t to = (b * args.num_drafts + k) * rank;
    if (args.w1_type == FloatType::kFloat32) {
        for (int j = thread_idx(); j < rank; j += kThreads) {
            const float x = exists ? global_cast<const float>(args.w1)[from + j] : 0.0f;
            global_cast<float>(args.prev_embed)[to + j] = x;
        }
        return;
    }
    for (int j = thread_idx(); j < rank; j += kThreads) {
        const uint16_t x =
            exists ? global_cast<const uint16_t>(args.w1)[from + j] : static_cast<uint16_t>(0);
        global_cast<uint16_t>(args.prev_embed)[to + j] = x;
    }
}

// All that draft k of request b needs of the token before it.
template <int W>
DSPARK_DEVICE void block_advance(const MarkovStep& step, int64_t b, int64_t k, int64_t token,
                                 HeadShared& shared) {
    block_keep_embedding(step.args, b, k, token);
    if (step.args.head != MarkovHead::kVanilla) {
        sync_block();
        block_head<W>(step.args, b, k, shared);
    }
    if (step.is_ordered) {
        block_publish(step.scratch.inputs_ready + b, static_cast<uint32_t>(k + 1));
    }
}

}  // namespace dspark::DSPARK_ISA::draft
