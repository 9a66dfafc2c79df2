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
#include "ops/draft/cpu_types.h"

namespace dspark::DSPARK_ISA {

using namespace draft;

namespace {

// Requests from which on widening the rows of w2 first pays.
constexpr int64_t kWidenedRequests = 2 * kDotColumns;

// Neighbouring draft ids at draft k.
struct LogitsGroup {
    int64_t k;
    int64_t first;  // draft id
    int count;      // 1 .. FloatVector::kWidth
};

template <class Logit>
inline void write_logits(const MarkovArgs& args, const Logit* base_logits, const LogitsGroup& group,
                         int64_t request, FloatVector bias_vector) {
    constexpr int kWidth = FloatVector::kWidth;
    const Logit* base =
        base_logits + (request * args.num_positions + group.k) * args.draft_vocab + group.first;
    Logit* logits =
        static_cast<Logit*>(args.logits) + (request * args.num_drafts + group.k) * args.vocab;
    float bias[kWidth];
    if (args.d2t == nullptr && group.count == kWidth) {
        store(bias, load(base) + bias_vector);
        for (int i = 0; i < kWidth; ++i) narrow(bias[i], logits + group.first + i);
        return;
    }
    store(bias, bias_vector);
    for (int i = 0; i < group.count; ++i) {
        const int64_t id = target_id(args, group.first + i);
        narrow(to_float(base[i]) + bias[i], logits + id);
    }
}

// One group for every request; `scratch` is for its rows of w2 in float32.
template <class Weight>
inline void group_logits(const MarkovArgs& args, const LogitsGroup& group, const Weight* w2,
                         float* scratch) {
    const DotColumns inputs = {args.bias_input, args.padded_rank};
    const auto write = [&](int64_t request, const FloatVector* bias, int count) {
        with_type(args.logits_type, args.base_logits, [&](const auto* base_logits) {
            for (int i = 0; i < count; ++i) {
                write_logits(args, base_logits, group, request + i, bias[i]);
            }
        });
    };
    const Weight* rows = w2 + group.first * args.rank;
    if (args.batch < kWidenedRequests) {
        const DotRows<Weight> matrix = {rows, args.rank, args.rank, group.count};
        return dot_columns(matrix, inputs, args.batch, write);
    }
    widen_rows(rows, args.rank, group.count, args.rank, scratch, args.padded_rank);
    const DotRows<float> matrix = {scratch, args.padded_rank, args.padded_rank, group.count};
    dot_columns(matrix, inputs, args.batch, write);
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

void markov_logits(const MarkovArgs& args, int64_t k, int64_t group_begin, int64_t group_end,
                   float* scratch) {
    constexpr int kWidth = FloatVector::kWidth;
    const int64_t end =
        group_end * kBiasLanes < args.draft_vocab ? group_end * kBiasLanes : args.draft_vocab;
    with_type(args.w2_type, args.w2, [&](const auto* w2) {
        for (int64_t id = group_begin * kBiasLanes; id < end; id += kWidth) {
            const int count = end - id < kWidth ? static_cast<int>(end - id) : kWidth;
            group_logits(args, {k, id, count}, w2, scratch);
        }
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
