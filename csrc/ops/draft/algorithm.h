// The arithmetic of the draft family: docs/numerics.md section 10. Every backend runs this text;
// what differs is how lanes, rows and requests are spread over vectors and threads.
#pragma once

#include "device/narrow.h"
#include "device/numeric.h"
#include "device/tile.h"
#include "ops/draft/args.h"

namespace dspark::DSPARK_ISA::draft {

static_assert(kHiddenLanes == kLanes, "hidden rows are summed in the lanes of a tile");

// Entry i of an array that holds `type`, in float32.
DSPARK_DEVICE float read_float(FloatType type, Global<const void> data, int64_t i) {
    switch (type) {
        case FloatType::kBFloat16:
            return to_float(global_cast<const BFloat16>(data)[i]);
        case FloatType::kFloat16:
            return to_float(global_cast<const Float16>(data)[i]);
        case FloatType::kFloat32:
            break;
    }
    return global_cast<const float>(data)[i];
}

// ---- functions ----------------------------------------------------------------------------------

// 2^(-|z| log2 e)
DSPARK_DEVICE float exp_minus_magnitude(float z) {
    return exp2_nonpositive((z < 0.0f ? z : -z) * static_cast<float>(kLog2E));
}

// 1 / (1 + e^-z), from the power that does not overflow.
DSPARK_DEVICE float sigmoid(float z) {
    const float s = exp_minus_magnitude(z);
    return (z < 0.0f ? s : 1.0f) / (1.0f + s);
}

// Absolute error about 1e-7.
DSPARK_DEVICE float tanh(float x) {
    const float t = exp_minus_magnitude(2.0f * x);
    const float magnitude = (1.0f - t) / (1.0f + t);
    return x < 0.0f ? -magnitude : magnitude;
}

// ---- sums in lanes ------------------------------------------------------------------------------
// A product of two vectors of `size` entries in N lanes: lane l takes the entries l, l + N, ... in
// index order, acc = fma(x, w, acc) from 0; vectors count as padded with zeros to a multiple of N.
// Then the halving tree.

template <int N, class Lanes>
DSPARK_DEVICE float sum_lanes(Lanes& lane) {
    for (int half = N / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; ++l) lane[l] = lane[l] + lane[l + half];
    }
    return lane[0];
}

// One lane of it; x(i) and w(i) are the entries.
template <int N, class Left, class Right>
DSPARK_DEVICE float dot_lane(int lane, int64_t size, const Left& x, const Right& w) {
    float acc = 0.0f;
    for (int64_t i = lane; i < size; i += N) acc = fma(x(i), w(i), acc);
    // The padding: it makes a -0 a +0.
    return size % N != 0 && lane >= size % N ? fma(0.0f, 0.0f, acc) : acc;
}

// ---- tokens and embeddings ----------------------------------------------------------------------

DSPARK_DEVICE bool is_valid_temperature(float temperature) {
    return temperature >= 0.0f && temperature < kInfinity;
}

// A temperature as rows are drawn with it: 0 is greedy. NaN: nothing is drawn.
DSPARK_DEVICE float drawn_temperature(float temperature) {
    if (!is_valid_temperature(temperature)) return bit_cast<float>(0x7FC00000u);
    return temperature + 0.0f;  // -0 is +0
}

// That of the rows of request b.
DSPARK_DEVICE float row_temperature(const MarkovArgs& args, int64_t b) {
    const float temperature = drawn_temperature(args.temperature[b]);
    return args.greedy && temperature == temperature ? 0.0f : temperature;
}

// The token before draft k of request b, k = 0 for x_1.
DSPARK_DEVICE int64_t previous_token(const MarkovArgs& args, int64_t b, int64_t k) {
    return k == 0 ? args.anchor[b] : args.token_ids[b * args.num_drafts + k - 1];
}

// Other tokens have the zero embedding (a CPU refuses them).
DSPARK_DEVICE bool has_embedding(const MarkovArgs& args, int64_t token) {
    return token >= 0 && token < args.num_embeddings;
}

// Where the logit of a draft id goes; -1: nowhere (a CPU refuses it).
DSPARK_DEVICE int64_t target_id(const MarkovArgs& args, int64_t draft_id) {
    if (args.d2t == nullptr) return draft_id;
    const int64_t id = draft_id + args.d2t[draft_id];
    return id >= 0 && id < args.vocab ? id : -1;
}

// ---- heads --------------------------------------------------------------------------------------
// Rows of head_weight give H, E and S: their products with the hidden row (in kHiddenLanes), with
// the embedding e and with the state s (in kBiasLanes).

DSPARK_DEVICE int64_t head_rows(const MarkovArgs& args) {
    return args.head == MarkovHead::kRnn ? 3 * args.rank : args.rank;
}
// Entries of a row, and where in it the parts begin.
DSPARK_DEVICE int64_t head_row_size(const MarkovArgs& args) {
    return args.hidden_size + (args.head == MarkovHead::kRnn ? 2 * args.rank : args.rank);
}
DSPARK_DEVICE int64_t state_column(const MarkovArgs&) {
    return 0;  // rnn only
}
DSPARK_DEVICE int64_t embedding_column(const MarkovArgs& args) {
    return args.head == MarkovHead::kRnn ? args.rank : args.hidden_size;
}
DSPARK_DEVICE int64_t hidden_column(const MarkovArgs& args) {
    return args.head == MarkovHead::kRnn ? 2 * args.rank : 0;
}
DSPARK_DEVICE float head_bias(const MarkovArgs& args, int64_t row) {
    return args.head_bias == nullptr ? 0.0f : read_float(args.head_bias_type, args.head_bias, row);
}

// Entry j of the state of request b before x_1.
DSPARK_DEVICE float first_state(const MarkovArgs& args, int64_t b, int64_t j) {
    return args.first_state == nullptr ? 0.0f : args.first_state[b * args.rank + j];
}

DSPARK_DEVICE float gated_logit(float hidden, float embedding, float bias) {
    return (hidden + embedding) + bias;
}
DSPARK_DEVICE float rnn_logit(float hidden, float embedding, float state, float bias) {
    return ((hidden + embedding) + state) + bias;
}

// u of a gated head.
DSPARK_DEVICE float gated_input(float z, float embedding) {
    return sigmoid(z) * embedding;
}

// The next state and u of an rnn head, from the three thirds of z.
DSPARK_DEVICE float next_state(float gate, float candidate, float state) {
    const float g = sigmoid(gate);
    return g * state + (1.0f - g) * tanh(candidate);
}
DSPARK_DEVICE float rnn_input(float output) {
    return tanh(output);
}

// ---- confidences --------------------------------------------------------------------------------

// NaN for a temperature that is not finite and above 0 (a CPU refuses it).
DSPARK_DEVICE float calibrated(float logit, float temperature) {
    const bool is_valid = temperature > 0.0f && temperature < kInfinity;
    return is_valid ? sigmoid(logit / temperature) : bit_cast<float>(0x7FC00000u);
}

// `logit` is the sum in kHiddenLanes of [hidden ; prev_embed] times the weight.
DSPARK_DEVICE float confidence_of(const ConfidenceArgs& args, int64_t row, float logit) {
    if (args.bias != nullptr) logit = logit + read_float(args.bias_type, args.bias, 0);
    if (args.temperatures == nullptr) return sigmoid(logit);
    return calibrated(logit, args.temperatures[row % args.num_drafts]);
}

}  // namespace dspark::DSPARK_ISA::draft
