// How the CPU runs the kernels of a block: the scratch, and the order over threads.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <string>
#include <vector>

#include "backends/cpu/isa.h"
#include "device/layout.h"
#include "ops/draft/checks.h"
#include "ops/draft/cpu.h"

namespace dspark::draft {

// Work below which another thread does not pay: multiply-adds of a product, entries of a pass.
constexpr int64_t kMultiplyAddsPerThread = 1 << 17;
constexpr int64_t kEntriesPerThread = 1 << 14;

// Runs body(begin, end, scratch) over `count` items with `size` floats of scratch per thread.
template <class Body>
void parallel_with_scratch(int64_t count, int64_t grain, int64_t size, const Body& body) {
    torch::stable::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
        std::vector<float> scratch(static_cast<size_t>(size));
        body(begin, end, scratch.data());
    });
}

// Groups of kBiasLanes rows of a product with `columns` vectors, so many of them per thread.
inline int64_t group_grain(int64_t columns, int64_t size) {
    return 1 + kMultiplyAddsPerThread / (columns * kBiasLanes * (size + kBiasLanes));
}

// Points the scratch of a call into `block` and returns the bytes it takes; with a null block it
// only returns the bytes.
inline int64_t place_scratch(MarkovArgs& args, char* block) {
    Layout layout(block);
    args.embedding = layout.take<float>(args.batch * args.padded_rank);
    args.bias_input = args.embedding;
    if (args.head != MarkovHead::kVanilla) {
        const int64_t rows = DSPARK_ISA::draft::head_rows(args);
        const int64_t pairs = args.batch * args.num_drafts;
        args.padded_hidden = round_up(args.hidden_size, kHiddenLanes);
        args.bias_input = layout.take<float>(args.batch * args.padded_rank);
        args.state = layout.take<float>(args.batch * args.padded_rank);
        args.head_logits = layout.take<float>(args.batch * rows);
        args.hidden_dots = layout.take<float>(pairs * rows);
        args.widened_hidden = layout.take<float>(pairs * args.padded_hidden);
    }
    return layout.bytes();
}

// H of every draft: they depend on nothing that is drawn.
inline void prepare_head(const MarkovArgs& args) {
    const int64_t pairs = args.batch * args.num_drafts;
    torch::stable::parallel_for(
        0, pairs, 1 + kEntriesPerThread / (args.padded_hidden + 1),
        [&](int64_t begin, int64_t end) { DSPARK_CPU_DISPATCH(widen_hidden, args, begin, end); });
    parallel_with_scratch(round_up(DSPARK_ISA::draft::head_rows(args), kBiasLanes) / kBiasLanes,
                          group_grain(pairs, args.padded_hidden), kBiasLanes * args.padded_hidden,
                          [&](int64_t begin, int64_t end, float* scratch) {
                              DSPARK_CPU_DISPATCH(hidden_dots, args, begin, end, scratch);
                          });
}

// What w2 is multiplied with at draft k.
inline void head_step(const MarkovArgs& args, int64_t k) {
    parallel_with_scratch(round_up(DSPARK_ISA::draft::head_rows(args), kBiasLanes) / kBiasLanes,
                          group_grain(args.batch, args.padded_rank), kBiasLanes * args.padded_rank,
                          [&](int64_t begin, int64_t end, float* scratch) {
                              DSPARK_CPU_DISPATCH(head_logits, args, k, begin, end, scratch);
                          });
    torch::stable::parallel_for(
        0, args.batch, 1 + kEntriesPerThread / (16 * args.padded_rank + 1),
        [&](int64_t begin, int64_t end) { DSPARK_CPU_DISPATCH(head_inputs, args, begin, end); });
}

// The logits of draft k of every request, from the token before it.
inline void logits_step(const char* op, const MarkovArgs& args, int64_t k) {
    const int64_t stray = DSPARK_CPU_DISPATCH(embed_previous, args, k);
    if (stray >= 0) {
        const int64_t token =
            k == 0 ? args.anchor[stray] : args.token_ids[stray * args.num_drafts + k - 1];
        fail(op, k == 0 ? "anchor" : "w1",
             "expected an embedding for every token, w1 has " +
                 std::to_string(args.num_embeddings) + ", got token " + std::to_string(token) +
                 " for request " + std::to_string(stray));
    }
    if (args.head != MarkovHead::kVanilla) head_step(args, k);
    const int64_t block_work = args.batch * kBiasRows * (args.padded_rank + kBiasLanes);
    parallel_with_scratch(round_up(args.draft_vocab, kBiasRows) / kBiasRows,
                          1 + kMultiplyAddsPerThread / (block_work + 1),
                          logits_scratch_floats(args),
                          [&](int64_t begin, int64_t end, float* scratch) {
                              DSPARK_CPU_DISPATCH(markov_logits, args, k, begin, end, scratch);
                          });
}

// Draft k of every request: its logits, their statistics, the draw.
inline void draft_step(const MarkovArgs& args, int64_t k) {
    logits_step("markov_sample", args, k);
    torch::stable::parallel_for(0, args.batch * args.tiles, 1 + kEntriesPerThread / 4096,
                                [&](int64_t begin, int64_t end) {
                                    DSPARK_CPU_DISPATCH(markov_tiles, args, k, begin, end);
                                });
    torch::stable::parallel_for(0, args.batch, 4, [&](int64_t begin, int64_t end) {
        DSPARK_CPU_DISPATCH(draw_tokens, args, k, begin, end);
    });
}

// Zeroed scratch of a call, in place.
inline std::vector<char> make_scratch(MarkovArgs& args) {
    std::vector<char> scratch(static_cast<size_t>(place_scratch(args, nullptr)), 0);
    place_scratch(args, scratch.data());
    return scratch;
}

// The fixed order, or tile registers where there are some.
inline void run_block(MarkovArgs& args) {
    const std::vector<char> scratch = make_scratch(args);  // a state begins as zeros
    if (args.vocab > args.draft_vocab) {
        torch::stable::parallel_for(0, args.batch * args.num_drafts,
                                    1 + kEntriesPerThread / args.vocab,
                                    [&](int64_t begin, int64_t end) {
                                        DSPARK_CPU_DISPATCH(mask_logits, args, begin, end);
                                    });
    }
    if (args.head != MarkovHead::kVanilla) prepare_head(args);
    for (int64_t k = 0; k < args.num_drafts; ++k) draft_step(args, k);
}

// The logits of one draft.
inline void run_step(const char* op, MarkovArgs& args) {
    const std::vector<char> scratch = make_scratch(args);
    for (int64_t i = 0; i < args.batch * args.rank && args.first_state != nullptr; ++i) {
        args.state[i / args.rank * args.padded_rank + i % args.rank] = args.first_state[i];
    }
    if (args.head != MarkovHead::kVanilla) prepare_head(args);
    logits_step(op, args, 0);
    for (int64_t i = 0; i < args.batch * args.rank && args.last_state != nullptr; ++i) {
        args.last_state[i] = args.state[i / args.rank * args.padded_rank + i % args.rank];
    }
}

}  // namespace dspark::draft
