// The gated and rnn heads on the CPU: products of the rows of head_weight with hidden rows,
// embeddings and states.
#pragma once

#include "backends/cpu/lane_dot.h"
#include "ops/draft/algorithm.h"
#include "ops/draft/cpu_types.h"

namespace dspark::DSPARK_ISA::draft {

constexpr int kChunks = kHiddenLanes / kDotLanes;

// Products of up to FloatVector::kWidth rows with kColumns vectors in kHiddenLanes lanes; both are
// padded to a multiple of kHiddenLanes.
template <int kColumns>
inline void hidden_dot_rows(const DotRows<float>& matrix, const DotColumns& columns,
                            FloatVector (&out)[kColumns]) {
    FloatVector quads[kColumns][4];
    for (int j = 0; j < 4; ++j) {
        const float* rows[kQuads];
        for (int q = 0; q < kQuads; ++q) rows[q] = matrix.row(4 * q + j);
        DotLanes chunk[kChunks][kColumns][kQuads];
        for (int c = 0; c < kChunks; ++c) {
            for (auto& column : chunk[c]) {
                for (DotLanes& lanes : column) {
                    for (FloatVector& v : lanes.v) v = FloatVector(0.0f);
                }
            }
            add_products(rows, columns, c * kDotLanes, matrix.size, kHiddenLanes, chunk[c]);
        }
        for (int half = kChunks / 2; half > 0; half /= 2) {
            for (int c = 0; c < half; ++c) {
                for (int i = 0; i < kColumns * kQuads * kDotVectors; ++i) {
                    FloatVector& low =
                        chunk[c][i / (kQuads * kDotVectors)][i / kDotVectors % kQuads]
                            .v[i % kDotVectors];
                    const FloatVector high =
                        chunk[c + half][i / (kQuads * kDotVectors)][i / kDotVectors % kQuads]
                            .v[i % kDotVectors];
                    low = low + high;
                }
            }
        }
        for (int c = 0; c < kColumns; ++c) quads[c][j] = fold_to_quads(chunk[0][c]);
    }
    for (int c = 0; c < kColumns; ++c) out[c] = fold_quads(quads[c]);
}

// Some rows of head_weight, widened.
struct HeadRows {
    int64_t first;
    int count;  // 1 .. FloatVector::kWidth

    // The entries of `size` columns from `column` on, as rows of `padded` floats.
    DotRows<float> widened(const MarkovArgs& args, int64_t column, int64_t size, int64_t padded,
                           float* scratch) const {
        const int64_t stride = head_row_size(args);
        with_type(args.head_weight_type, args.head_weight, [&](const auto* weight) {
            widen_rows(weight + first * stride + column, stride, count, size, scratch, padded);
        });
        return {scratch, padded, padded, count};
    }
};

// Calls visit(HeadRows) for groups kBiasLanes * begin .. of rows of head_weight.
template <class Visit>
inline void for_head_rows(const MarkovArgs& args, int64_t group_begin, int64_t group_end,
                          const Visit& visit) {
    const int64_t all = head_rows(args);
    const int64_t end = group_end * kBiasLanes < all ? group_end * kBiasLanes : all;
    for (int64_t row = group_begin * kBiasLanes; row < end; row += FloatVector::kWidth) {
        const int64_t left = end - row;
        visit(HeadRows{row,
                       left < FloatVector::kWidth ? static_cast<int>(left) : FloatVector::kWidth});
    }
}

inline void store_first(float* to, FloatVector from, int count) {
    float all[FloatVector::kWidth];
    store(all, from);
    for (int i = 0; i < count; ++i) to[i] = all[i];
}

inline void group_hidden_dots(const MarkovArgs& args, const HeadRows& rows, float* scratch) {
    const int64_t size = args.padded_hidden;
    const DotRows<float> matrix =
        rows.widened(args, hidden_column(args), args.hidden_size, size, scratch);
    const DotColumns hidden = {args.widened_hidden, size};
    const int64_t pairs = args.batch * args.num_drafts;
    float* to = args.hidden_dots + rows.first;
    int64_t c = 0;
    for (; c + kDotColumns <= pairs; c += kDotColumns) {
        FloatVector out[kDotColumns];
        hidden_dot_rows(matrix, hidden.from(c), out);
        for (int i = 0; i < kDotColumns; ++i) {
            store_first(to + (c + i) * head_rows(args), out[i], rows.count);
        }
    }
    for (; c < pairs; ++c) {
        FloatVector out[1];
        hidden_dot_rows(matrix, hidden.from(c), out);
        store_first(to + c * head_rows(args), out[0], rows.count);
    }
}

// The products of some rows, from `column` on, with one of `vectors` per request:
// visit(request, row, product).
template <class Visit>
inline void group_dots(const MarkovArgs& args, const HeadRows& rows, int64_t column,
                       const float* vectors, float* scratch, const Visit& visit) {
    const DotRows<float> matrix = rows.widened(args, column, args.rank, args.padded_rank, scratch);
    dot_columns(matrix, {vectors, args.padded_rank}, args.batch,
                [&](int64_t first, const FloatVector* out, int count) {
                    for (int i = 0; i < count; ++i) {
                        float product[FloatVector::kWidth];
                        store(product, out[i]);
                        for (int r = 0; r < rows.count; ++r) {
                            visit(first + i, rows.first + r, product[r]);
                        }
                    }
                });
}

// z of draft k of every request.
inline void group_head_logits(const MarkovArgs& args, int64_t k, const HeadRows& rows,
                              float* scratch) {
    const int64_t all = head_rows(args);
    const bool is_rnn = args.head == MarkovHead::kRnn;
    const auto hidden_dot = [&](int64_t request, int64_t row) {
        return args.hidden_dots[(request * args.num_drafts + k) * all + row];
    };
    group_dots(args, rows, embedding_column(args), args.embedding, scratch,
               [&](int64_t request, int64_t row, float product) {
                   args.head_logits[request * all + row] =
                       is_rnn
                           ? product
                           : gated_logit(hidden_dot(request, row), product, head_bias(args, row));
               });
    if (!is_rnn) return;
    group_dots(args, rows, state_column(args), args.state, scratch,
               [&](int64_t request, int64_t row, float product) {
                   float& z = args.head_logits[request * all + row];
                   z = rnn_logit(hidden_dot(request, row), z, product, head_bias(args, row));
               });
}

// u of a request, and its next state, from z.
inline void request_inputs(const MarkovArgs& args, int64_t request) {
    const int64_t rank = args.rank;
    const float* z = args.head_logits + request * head_rows(args);
    const float* embedding = args.embedding + request * args.padded_rank;
    float* input = args.bias_input + request * args.padded_rank;
    for (int64_t j = 0; j < rank && args.head == MarkovHead::kGated; ++j) {
        input[j] = gated_input(z[j], embedding[j]);
    }
    for (int64_t j = 0; j < rank && args.head == MarkovHead::kRnn; ++j) {
        float& state = args.state[request * args.padded_rank + j];
        state = next_state(z[j], z[rank + j], state);
        input[j] = rnn_input(z[2 * rank + j]);
    }
}

}  // namespace dspark::DSPARK_ISA::draft
