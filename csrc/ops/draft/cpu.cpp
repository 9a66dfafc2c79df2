// CPU kernels of the draft family; compiled once per instruction set, in namespace
// dspark::DSPARK_ISA.
#include "ops/draft/cpu.h"

#include <new>
#include <type_traits>

#include "backends/cpu/law.h"
#include "device/narrow.h"
#include "device/numeric.h"
#include "device/philox.h"

namespace dspark::DSPARK_ISA {
namespace {

constexpr int kVectors = kBiasLanes / FloatVector::kWidth;  // vectors that hold one set of lanes

// Calls visit(const T*) with the array as what it is.
template <class Visit>
inline void with_type(FloatType type, const void* data, const Visit& visit) {
    switch (type) {
        case FloatType::kFloat32:
            return visit(static_cast<const float*>(data));
        case FloatType::kBFloat16:
            return visit(static_cast<const BFloat16*>(data));
        case FloatType::kFloat16:
            return visit(static_cast<const Float16*>(data));
    }
}

int64_t target_id(const MarkovArgs& args, int64_t draft_id) {
    return args.d2t == nullptr ? draft_id : draft_id + args.d2t[draft_id];
}

// Partial sums of the bias: lanes[q][row][lane], for one group of draft ids and some requests.
template <int kRequests>
struct BiasLanes {
    float lane[kRequests][kBiasRows][kBiasLanes];
};

// Lanes of kRows vocabulary rows against kRequests embeddings, held in registers over the rank.
template <int kRows, int kRequests, class Weight>
inline void accumulate_rows(const Weight* w2, int64_t rank, const float* embedding,
                            int64_t embedding_stride, int row, BiasLanes<kRequests>& out) {
    FloatVector sum[kRows][kRequests][kVectors];
    for (int r = 0; r < kRows; ++r) {
        for (int q = 0; q < kRequests; ++q) {
            for (int v = 0; v < kVectors; ++v) sum[r][q][v] = FloatVector(0.0f);
        }
    }
    const auto add_chunk = [&](const Weight* chunk, int64_t stride, int64_t j) {
        for (int v = 0; v < kVectors; ++v) {
            FloatVector e[kRequests];
            for (int q = 0; q < kRequests; ++q) {
                e[q] = load(embedding + q * embedding_stride + j + v * FloatVector::kWidth);
            }
            for (int r = 0; r < kRows; ++r) {
                const FloatVector w = load(chunk + r * stride + v * FloatVector::kWidth);
                for (int q = 0; q < kRequests; ++q) sum[r][q][v] = fma(w, e[q], sum[r][q][v]);
            }
        }
    };
    int64_t j = 0;
    for (; j + kBiasLanes <= rank; j += kBiasLanes) add_chunk(w2 + j, rank, j);
    if (j < rank) {  // the embedding is padded, the weights are not
        Weight tail[kRows][kBiasLanes] = {};
        for (int r = 0; r < kRows; ++r) {
            for (int64_t i = j; i < rank; ++i) tail[r][i - j] = w2[r * rank + i];
        }
        add_chunk(tail[0], kBiasLanes, j);
    }
    for (int r = 0; r < kRows; ++r) {
        for (int q = 0; q < kRequests; ++q) {
            for (int v = 0; v < kVectors; ++v) {
                store(out.lane[q][row + r] + v * FloatVector::kWidth, sum[r][q][v]);
            }
        }
    }
}

// Halving tree over the lanes of every row.
template <int kRequests>
inline void reduce_lanes(BiasLanes<kRequests>& lanes, float (&bias)[kRequests][kBiasRows]) {
    for (int q = 0; q < kRequests; ++q) {
        for (auto& lane : lanes.lane[q]) {
            for (int l = 0; l < 8; ++l) lane[l] += lane[l + 8];
            for (int l = 0; l < 4; ++l) lane[l] += lane[l + 4];
        }
        for (int row = 0; row < kBiasRows; ++row) {
            const float* lane = lanes.lane[q][row];
            bias[q][row] = (lane[0] + lane[2]) + (lane[1] + lane[3]);
        }
    }
}

struct LogitsGroup {
    int64_t k;
    int64_t first;  // draft id
    int count;      // 1 .. kBiasRows
};

template <class Logit>
inline void write_logits(const MarkovArgs& args, const Logit* base_logits, const LogitsGroup& group,
                         int64_t request, const float* bias) {
    const Logit* base =
        base_logits + (request * args.num_positions + group.k) * args.draft_vocab + group.first;
    Logit* logits =
        static_cast<Logit*>(args.logits) + (request * args.num_drafts + group.k) * args.vocab;
    if (args.d2t == nullptr) {
        for (int i = 0; i < group.count; ++i) {
            narrow(to_float(base[i]) + bias[i], logits + group.first + i);
        }
        return;
    }
    for (int i = 0; i < group.count; ++i) {
        narrow(to_float(base[i]) + bias[i], logits + target_id(args, group.first + i));
    }
}

// One group of draft ids for kRequests requests.
template <int kRequests>
void group_logits(const MarkovArgs& args, const LogitsGroup& group, int64_t request) {
    constexpr int kRows = FloatVector::kWidth == 16 ? 4 : 2;
    BiasLanes<kRequests> lanes;
    const float* embedding = args.embedding + request * args.padded_rank;
    with_type(args.w2_type, args.w2, [&](const auto* w2) {
        w2 += group.first * args.rank;
        int row = 0;
        for (; row + kRows <= group.count; row += kRows) {
            accumulate_rows<kRows, kRequests>(w2 + row * args.rank, args.rank, embedding,
                                              args.padded_rank, row, lanes);
        }
        for (; row < group.count; ++row) {
            accumulate_rows<1, kRequests>(w2 + row * args.rank, args.rank, embedding,
                                          args.padded_rank, row, lanes);
        }
    });
    for (int q = 0; q < kRequests; ++q) {
        for (int row = group.count; row < kBiasRows; ++row) {
            for (float& lane : lanes.lane[q][row]) lane = 0.0f;
        }
    }
    float bias[kRequests][kBiasRows];
    reduce_lanes(lanes, bias);
    with_type(args.logits_type, args.base_logits, [&](const auto* base_logits) {
        for (int q = 0; q < kRequests; ++q) {
            write_logits(args, base_logits, group, request + q, bias[q]);
        }
    });
}

template <class Embedding>
inline void embed_row(const MarkovArgs& args, const Embedding* w1, int64_t token, int64_t request,
                      int64_t k) {
    const Embedding* row = w1 + token * args.rank;
    Embedding* kept =
        static_cast<Embedding*>(args.prev_embed) + (request * args.num_drafts + k) * args.rank;
    float* widened = args.embedding + request * args.padded_rank;
    for (int64_t j = 0; j < args.rank; ++j) {
        kept[j] = row[j];
        widened[j] = to_float(row[j]);
    }
    for (int64_t j = args.rank; j < args.padded_rank; ++j) widened[j] = 0.0f;
}

// 1 / (1 + 2^(-z log2 e)), from the power of two that does not overflow.
float sigmoid(float z) {
    const float magnitude = z < 0.0f ? z : -z;
    const float s = exp2_nonpositive(magnitude * static_cast<float>(kLog2E));
    return (z < 0.0f ? s : 1.0f) / (1.0f + s);
}

// Sum of x * weight in 256 lanes and a halving tree; size is a multiple of 256.
float canonical_dot(const float* x, const float* weight, int64_t size) {
    float lane[kConfidenceLanes];
    for (float& l : lane) l = 0.0f;
    for (int64_t i = 0; i < size; i += kConfidenceLanes) {
        for (int l = 0; l < kConfidenceLanes; l += FloatVector::kWidth) {
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

int64_t embed_previous(const MarkovArgs& args, int64_t k) {
    for (int64_t b = 0; b < args.batch; ++b) {
        const int64_t token = k == 0 ? args.anchor[b] : args.token_ids[b * args.num_drafts + k - 1];
        if (token < 0 || token >= args.num_embeddings) return b;
        with_type(args.w1_type, args.w1, [&](const auto* w1) { embed_row(args, w1, token, b, k); });
    }
    return -1;
}

void markov_logits(const MarkovArgs& args, int64_t k, int64_t group_begin, int64_t group_end) {
    for (int64_t g = group_begin; g < group_end; ++g) {
        const int64_t left = args.draft_vocab - g * kBiasRows;
        const LogitsGroup group{k, g * kBiasRows,
                                left < kBiasRows ? static_cast<int>(left) : kBiasRows};
        int64_t b = 0;
        for (; b + 4 <= args.batch; b += 4) group_logits<4>(args, group, b);
        for (; b + 2 <= args.batch; b += 2) group_logits<2>(args, group, b);
        for (; b < args.batch; ++b) group_logits<1>(args, group, b);
    }
}

void draw_tokens(const MarkovArgs& args, int64_t k, int64_t request_begin, int64_t request_end) {
    DrawBuffers buffers(args.vocab);
    const LawTables tables(args.vocab);
    Law law{};
    law.dtype = args.logits_type;
    law.vocab = static_cast<int32_t>(args.vocab);
    tables.attach(law, args.vocab);
    for (int64_t b = request_begin; b < request_end; ++b) {
        const int64_t row = b * args.num_drafts + k;
        with_type(args.logits_type, args.logits,
                  [&](const auto* logits) { law.row = logits + row * args.vocab; });
        const float temperature = args.greedy ? 0.0f : args.temperature[b];
        const double u =
            uniform(args.seeds[b], args.positions[b] + k, Stream::kDraft, static_cast<int32_t>(k));
        row_statistics(law, temperature, buffers.target_tile);
        args.token_ids[row] = draw(law, u, buffers);
    }
}

void widen_weight(FloatType type, const void* data, int64_t size, float* to) {
    with_type(type, data, [&](const auto* from) {
        for (int64_t i = 0; i < size; ++i) to[i] = to_float(from[i]);
    });
}

void confidence(const ConfidenceArgs& args, int64_t row_begin, int64_t row_end, float* scratch) {
    for (int64_t i = args.hidden_size + args.rank; i < args.padded_size; ++i) scratch[i] = 0.0f;
    for (int64_t row = row_begin; row < row_end; ++row) {
        with_type(args.hidden_type, args.hidden, [&](const auto* hidden) {
            for (int64_t i = 0; i < args.hidden_size; ++i) {
                scratch[i] = to_float(hidden[row * args.hidden_size + i]);
            }
        });
        with_type(args.embed_type, args.prev_embed, [&](const auto* embed) {
            for (int64_t i = 0; i < args.rank; ++i) {
                scratch[args.hidden_size + i] = to_float(embed[row * args.rank + i]);
            }
        });
        float z = canonical_dot(scratch, args.weight, args.padded_size) + args.bias;
        if (args.temperatures != nullptr) z /= args.temperatures[row % args.num_drafts];
        args.confidence[row] = sigmoid(z);
    }
}

void calibrate(const CalibrateArgs& args, int64_t row_begin, int64_t row_end) {
    for (int64_t row = row_begin; row < row_end; ++row) {
        args.confidence[row] =
            sigmoid(args.conf_logits[row] / args.temperatures[row % args.num_drafts]);
    }
}

}  // namespace dspark::DSPARK_ISA
