// CPU kernels of the draft family; compiled once per instruction set, in namespace
// dspark::DSPARK_ISA.
#include "ops/draft/cpu.h"

#include <type_traits>

#include "backends/cpu/lane_dot.h"
#include "backends/cpu/law.h"
#include "device/narrow.h"
#include "device/philox.h"
#include "ops/draft/algorithm.h"
#include "ops/draft/cpu_head.h"
#include "ops/draft/cpu_tiles.h"
#include "ops/draft/cpu_types.h"

namespace dspark::DSPARK_ISA {

using namespace draft;

namespace {

// Requests from which on widening the rows of w2 first pays.
constexpr int64_t kWidenedRequests = 2 * kDotColumns;

// Neighbouring draft ids at draft k.
struct LogitsBlock {
    int64_t k;
    int64_t first;  // draft id
    int count;      // 1 .. kBiasRows
};

// Asks for memory that is read soon, `bytes` from `data` on.
inline void prefetch(const void* data, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 64) {
        __builtin_prefetch(static_cast<const char*>(data) + i);
    }
}

template <class Logit>
inline void prefetch_base(const MarkovArgs& args, const Logit* base_logits,
                          const LogitsBlock& block) {
    for (int64_t b = 0; b < args.batch; ++b) {
        prefetch(base_logits + (b * args.num_positions + block.k) * args.draft_vocab + block.first,
                 block.count * int64_t{sizeof(Logit)});
    }
}

// base + bias of one request.
template <class Logit>
inline void write_logits(const MarkovArgs& args, const Logit* base_logits, const LogitsBlock& block,
                         int64_t request, const float* bias) {
    const Logit* base =
        base_logits + (request * args.num_positions + block.k) * args.draft_vocab + block.first;
    Logit* logits =
        static_cast<Logit*>(args.logits) + (request * args.num_drafts + block.k) * args.vocab;
    float sum[kBiasRows];
    int i = 0;
    for (; i + FloatVector::kWidth <= block.count; i += FloatVector::kWidth) {
        store(sum + i, load(base + i) + load(bias + i));
    }
    for (; i < block.count; ++i) sum[i] = to_float(base[i]) + bias[i];
    if (args.d2t == nullptr) {
        for (i = 0; i < block.count; ++i) narrow(sum[i], logits + block.first + i);
        return;
    }
    for (i = 0; i < block.count; ++i) narrow(sum[i], logits + target_id(args, block.first + i));
}

// Products of the rows of a block with the vector of every request: bias[request][row].
template <class Weight>
inline void block_bias(const MarkovArgs& args, const LogitsBlock& block, const Weight* w2,
                       float* widened, float* bias) {
    const DotColumns inputs = {args.bias_input, args.padded_rank};
    for (int row = 0; row < block.count; row += FloatVector::kWidth) {
        const int left = block.count - row;
        const int count = left < FloatVector::kWidth ? left : FloatVector::kWidth;
        const Weight* rows = w2 + (block.first + row) * args.rank;
        const int64_t bytes = FloatVector::kWidth * args.rank * int64_t{sizeof(Weight)};
        prefetch(reinterpret_cast<const char*>(rows) + bytes, bytes);
        const auto keep = [&](int64_t request, const FloatVector* products, int columns) {
            for (int c = 0; c < columns; ++c) {
                store(bias + (request + c) * kBiasRows + row, products[c]);
            }
        };
        if (args.batch < kWidenedRequests) {
            const DotRows<Weight> matrix = {rows, args.rank, args.rank, count};
            dot_columns(matrix, inputs, args.batch, keep);
        } else {
            widen_rows(rows, args.rank, count, args.rank, widened, args.padded_rank);
            const DotRows<float> matrix = {widened, args.padded_rank, args.padded_rank, count};
            dot_columns(matrix, inputs, args.batch, keep);
        }
    }
}

// base + bias for a range of blocks; put_bias(block) fills `bias`.
template <class PutBias>
inline void logits_of_blocks(const MarkovArgs& args, int64_t k, int64_t begin, int64_t end,
                             const float* bias, const PutBias& put_bias) {
    for (int64_t i = begin; i < end; ++i) {
        const int64_t left = args.draft_vocab - i * kBiasRows;
        const LogitsBlock block = {k, i * kBiasRows,
                                   left < kBiasRows ? static_cast<int>(left) : kBiasRows};
        with_type(args.logits_type, args.base_logits,
                  [&](const auto* base_logits) { prefetch_base(args, base_logits, block); });
        put_bias(block);
        with_type(args.logits_type, args.base_logits, [&](const auto* base_logits) {
            for (int64_t b = 0; b < args.batch; ++b) {
                write_logits(args, base_logits, block, b, bias + b * kBiasRows);
            }
        });
    }
}

template <class Embedding>
inline void embed_row(const MarkovArgs& args, const Embedding* w1, int64_t token, int64_t request,
                      int64_t k) {
    const Embedding* row = w1 + token * args.rank;
    Embedding* kept =
        static_cast<Embedding*>(args.prev_embed) + (request * args.num_drafts + k) * args.rank;
    for (int64_t j = 0; j < args.rank; ++j) kept[j] = row[j];
    widen(row, args.rank, args.embedding + request * args.padded_rank, args.padded_rank);
}

// The law of the logits kept of draft k, started.
inline Law row_law(const MarkovArgs& args, int64_t k, int64_t request) {
    const int64_t row = request * args.num_drafts + k;
    Law law = {};
    law.dtype = args.logits_type;
    law.vocab = static_cast<int32_t>(args.vocab);
    with_type(args.logits_type, args.logits,
              [&](const auto* logits) { law.row = logits + row * args.vocab; });
    law.tile_max = args.tile_max + row * args.tiles;
    law.tile_sum = args.tile_sum + row * args.tiles;
    start_law(law, row_temperature(args, request));
    return law;
}

// Sum of x * weight in kHiddenLanes lanes and a halving tree; size is a multiple of them.
float canonical_dot(const float* x, const float* weight, int64_t size) {
    float lane[kHiddenLanes];
    for (float& l : lane) l = 0.0f;
    for (int64_t i = 0; i < size; i += kHiddenLanes) {
        for (int l = 0; l < kHiddenLanes; l += FloatVector::kWidth) {
            store(lane + l, fma(load(x + i + l), load(weight + i + l), load(lane + l)));
        }
    }
    return halving_tree(lane);
}

}  // namespace

void mask_logits(const MarkovArgs& args, int64_t row_begin, int64_t row_end) {
    with_type(args.logits_type, args.base_logits, [&](const auto* base_logits) {
        using Logit = std::remove_cv_t<std::remove_pointer_t<decltype(base_logits)>>;
        Logit minus_infinity;
        narrow(-kInfinity, &minus_infinity);
        Logit* logits = static_cast<Logit*>(args.logits);
        for (int64_t i = row_begin * args.vocab; i < row_end * args.vocab; ++i) {
            logits[i] = minus_infinity;
        }
    });
}

void widen_hidden(const MarkovArgs& args, int64_t row_begin, int64_t row_end) {
    with_type(args.hidden_type, args.hidden, [&](const auto* hidden) {
        for (int64_t row = row_begin; row < row_end; ++row) {
            const int64_t from = row / args.num_drafts * args.num_positions + row % args.num_drafts;
            widen(hidden + from * args.hidden_size, args.hidden_size,
                  args.widened_hidden + row * args.padded_hidden, args.padded_hidden);
        }
    });
}

void hidden_dots(const MarkovArgs& args, int64_t group_begin, int64_t group_end, float* scratch) {
    for_head_rows(args, group_begin, group_end,
                  [&](const HeadRows& rows) { group_hidden_dots(args, rows, scratch); });
}

int64_t embed_previous(const MarkovArgs& args, int64_t k) {
    for (int64_t b = 0; b < args.batch; ++b) {
        const int64_t token = previous_token(args, b, k);
        if (!has_embedding(args, token)) return b;
        with_type(args.w1_type, args.w1, [&](const auto* w1) { embed_row(args, w1, token, b, k); });
    }
    return -1;
}

void head_logits(const MarkovArgs& args, int64_t k, int64_t group_begin, int64_t group_end,
                 float* scratch) {
    for_head_rows(args, group_begin, group_end,
                  [&](const HeadRows& rows) { group_head_logits(args, k, rows, scratch); });
}

void head_inputs(const MarkovArgs& args, int64_t request_begin, int64_t request_end) {
    for (int64_t b = request_begin; b < request_end; ++b) request_inputs(args, b);
}

void markov_logits(const MarkovArgs& args, int64_t k, int64_t block_begin, int64_t block_end,
                   float* scratch) {
    float* const widened = scratch;
    float* const bias = widened + 16 * kTileDepth * tile_steps(args.rank);
    if (!takes_tiles(args)) {
        return logits_of_blocks(
            args, k, block_begin, block_end, bias, [&](const LogitsBlock& block) {
                with_type(args.w2_type, args.w2,
                          [&](const auto* w2) { block_bias(args, block, w2, widened, bias); });
            });
    }
    const TileScratch memory(args, bias + args.batch * kBiasRows);
    put_inputs(args, memory.inputs);
    with_tiles([&](auto& tiles) {
        logits_of_blocks(args, k, block_begin, block_end, bias, [&](const LogitsBlock& block) {
            tile_bias(args, tiles, block.first, block.count, widened, memory, bias);
        });
    });
}

void markov_tiles(const MarkovArgs& args, int64_t k, int64_t tile_begin, int64_t tile_end) {
    alignas(64) float buffer[kTile];
    for (int64_t i = tile_begin; i < tile_end; ++i) {
        const int64_t request = i / args.tiles;
        const int tile = static_cast<int>(i % args.tiles);
        const Law law = row_law(args, k, request);
        const TileStatistics statistics = tile_statistics(law, tile, buffer);
        law.tile_max[tile] = statistics.maximum;
        law.tile_sum[tile] = statistics.sum;
        args.tile_nan[(request * args.num_drafts + k) * args.tiles + tile] = statistics.has_nan;
    }
}

void draw_tokens(const MarkovArgs& args, int64_t k, int64_t request_begin, int64_t request_end) {
    DrawBuffers buffers(args.vocab);
    const LawTables tables(args.vocab);
    for (int64_t b = request_begin; b < request_end; ++b) {
        const int64_t row = b * args.num_drafts + k;
        Law law = row_law(args, k, b);
        tables.attach_scale(law);
        for (int64_t t = 0; t < args.tiles; ++t) {
            law.has_nan = law.has_nan || args.tile_nan[row * args.tiles + t] != 0;
        }
        finish_law(law);
        const double u =
            uniform(args.seeds[b], args.positions[b] + k, Stream::kDraft, static_cast<int32_t>(k));
        args.token_ids[row] = draw(law, u, buffers);
        args.row_temperature[row] = row_temperature(args, b);
    }
}

void widen_weight(const ConfidenceArgs& args) {
    with_type(args.weight_type, args.weight, [&](const auto* weight) {
        widen(weight, args.hidden_size + args.rank, args.widened_weight, args.padded_size);
    });
}

void confidence(const ConfidenceArgs& args, int64_t row_begin, int64_t row_end, float* scratch) {
    for (int64_t row = row_begin; row < row_end; ++row) {
        with_type(args.hidden_type, args.hidden, [&](const auto* hidden) {
            widen(hidden + row * args.hidden_size, args.hidden_size, scratch, args.hidden_size);
        });
        with_type(args.embed_type, args.prev_embed, [&](const auto* embed) {
            widen(embed + row * args.rank, args.rank, scratch + args.hidden_size,
                  args.padded_size - args.hidden_size);
        });
        const float logit = canonical_dot(scratch, args.widened_weight, args.padded_size);
        args.confidence[row] = confidence_of(args, row, logit);
    }
}

void calibrate(const CalibrateArgs& args, int64_t row_begin, int64_t row_end) {
    for (int64_t row = row_begin; row < row_end; ++row) {
        args.confidence[row] =
            calibrated(args.conf_logits[row], args.temperatures[row % args.num_drafts]);
    }
}

}  // namespace dspark::DSPARK_ISA
