// CPU kernels of the draft family, each on a range so that the caller can spread it over threads.
// In the order in which a block is drafted; docs/numerics.md section 10.
#pragma once

#include "backends/cpu/isa.h"
#include "ops/draft/args.h"

namespace dspark::draft {

// Of the tiles of cpu_tiles.h: requests of a group, entries of a row of w2 in a step.
constexpr int64_t kTileRequests = 16;
constexpr int64_t kTileDepth = 32;

inline int64_t tile_groups(int64_t batch) {
    return (batch + kTileRequests - 1) / kTileRequests;
}
inline int64_t tile_steps(int64_t rank) {
    return (rank + kTileDepth - 1) / kTileDepth;
}

// Scratch of markov_logits: 32 rows of w2 in 16 bits or 16 in float32, the bias of a block, and
// what tiles take, inputs in 16 bits and the sums of four tiles.
inline int64_t logits_scratch_floats(const MarkovArgs& args) {
    const int64_t depth = tile_steps(args.rank) * kTileDepth;
    const int64_t inputs = tile_groups(args.batch) * kTileRequests * depth / 2;
    return 16 * depth + args.batch * kBiasRows + inputs + 4 * 256;
}

}  // namespace dspark::draft

// clang-format off
DSPARK_CPU_DECLARE(
    // Fills the columns of `logits` no draft id maps to with -inf; rows = pairs (request, draft).
    void mask_logits(const ::dspark::MarkovArgs& args, int64_t row_begin, int64_t row_end);
    // Widens the hidden rows of pairs (request, draft).
    void widen_hidden(const ::dspark::MarkovArgs& args, int64_t row_begin, int64_t row_end);
    // H of every pair, for a range of groups of kBiasLanes rows of head_weight; `scratch` holds
    // kBiasLanes * padded_hidden floats.
    void hidden_dots(const ::dspark::MarkovArgs& args, int64_t group_begin, int64_t group_end,
                     float* scratch);
    // Embeds the token before draft k; returns a request whose token has no embedding, or -1.
    int64_t embed_previous(const ::dspark::MarkovArgs& args, int64_t k);
    // z of draft k of every request, for a range of groups as above; `scratch` holds
    // kBiasLanes * padded_rank floats.
    void head_logits(const ::dspark::MarkovArgs& args, int64_t k, int64_t group_begin,
                     int64_t group_end, float* scratch);
    // u and the next state from z, for a range of requests.
    void head_inputs(const ::dspark::MarkovArgs& args, int64_t request_begin, int64_t request_end);
    // Logits of draft k, base + bias, for a range of blocks of kBiasRows draft ids, all requests;
    // `scratch` holds logits_scratch_floats.
    void markov_logits(const ::dspark::MarkovArgs& args, int64_t k, int64_t block_begin,
                       int64_t block_end, float* scratch);
    // Statistics of the logits kept of draft k, for a range of pairs (request, tile).
    void markov_tiles(const ::dspark::MarkovArgs& args, int64_t k, int64_t tile_begin,
                      int64_t tile_end);
    // Draws draft k by the statistics, for a range of requests.
    void draw_tokens(const ::dspark::MarkovArgs& args, int64_t k, int64_t request_begin,
                     int64_t request_end);
    // Puts the confidence head's weight into float32.
    void widen_weight(const ::dspark::ConfidenceArgs& args);
    // `scratch` holds padded_size floats.
    void confidence(const ::dspark::ConfidenceArgs& args, int64_t row_begin, int64_t row_end,
                    float* scratch);
    void calibrate(const ::dspark::CalibrateArgs& args, int64_t row_begin, int64_t row_end))
// clang-format on
