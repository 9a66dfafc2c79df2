// Arguments of the draft kernels: plain pointers and sizes. All arrays are dense and row-major.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "device/float_type.h"

namespace dspark {

enum class MarkovHead { kVanilla, kGated, kRnn };

// Lanes of the bias product and of the head's products with embeddings and states.
constexpr int kBiasLanes = 16;
// Draft ids whose logits a CPU writes together.
constexpr int kBiasRows = 64;
// Lanes of products with hidden rows and of the confidence head's sum.
constexpr int kHiddenLanes = 256;

// B requests, K rows of base logits each, n of them drafted; docs/numerics.md section 10.
struct MarkovArgs {
    Global<const void> base_logits;  // [B, K, draft_vocab] of logits_type
    Global<const int64_t> anchor;    // [B]
    Global<const void> w1;           // [num_embeddings, rank] of w1_type
    Global<const void> w2;           // [draft_vocab, rank] of w2_type
    Global<const void> hidden;       // [B, K, hidden_size] of hidden_type; null for vanilla
    Global<const void>
        head_weight;               // gated [rank, d + rank], rnn [3 rank, 2 rank + d]; d of hidden
    Global<const void> head_bias;  // gated [rank], rnn [3 rank]; null: zeros
    Global<const float> first_state;  // [B, rank] s before x_1, or null: zeros; rnn only
    Global<const int64_t> d2t;        // [draft_vocab] target id minus draft id, or null: equal
    Global<const float> temperature;  // [B], >= 0
    Global<const int64_t> seeds;      // [B]
    Global<const int64_t> positions;  // [B] absolute position of x_1
    MarkovHead head;
    FloatType logits_type;
    FloatType w1_type;
    FloatType w2_type;
    FloatType hidden_type;
    FloatType head_weight_type;
    FloatType head_bias_type;
    bool greedy;  // argmax whatever the temperature
    bool exact;   // the fixed order of the bias product; false: matrix units may be used
    int64_t batch;
    int64_t num_positions;   // K
    int64_t num_drafts;      // n <= K
    int64_t num_embeddings;  // rows of w1
    int64_t draft_vocab;
    int64_t vocab;  // width of the logits kept, >= draft_vocab
    int64_t tiles;  // of a row of logits kept
    int64_t rank;
    int64_t padded_rank;  // multiple of kBiasLanes
    int64_t hidden_size;  // d
    // scratch; of vectors with padded_rank entries those behind rank are zero
    Global<float> embedding;    // [B, padded_rank] e of the previous token
    Global<float> bias_input;   // [B, padded_rank] u, what w2 is multiplied with
    Global<float> state;        // [B, padded_rank] s; rnn only
    Global<float> hidden_dots;  // [B, n, rows of head_weight] H; gated and rnn only
    // scratch of the CPU
    Global<float> head_logits;     // [B, rows of head_weight] z
    Global<float> widened_hidden;  // [B, n, padded_hidden] zeros behind hidden_size
    int64_t padded_hidden;         // multiple of kHiddenLanes
    // outputs
    Global<int64_t> token_ids;      // [B, n]
    Global<void> logits;            // [B, n, vocab] of logits_type
    Global<void> prev_embed;        // [B, n, rank] of w1_type
    Global<float> last_state;       // [B, rank] s after x_n, or null: not wanted; rnn only
    Global<float> row_temperature;  // [B, n] what the row was drawn with: 0 is greedy
    Global<float> tile_max;         // [B, n, tiles] m_t
    Global<float> tile_sum;         // [B, n, tiles] S_t, 0 on greedy rows
    Global<uint8_t> tile_nan;       // [B, n, tiles] whether the tile holds a NaN
};

// Rows of logits on their own.
struct RowStatisticsArgs {
    Global<const void> logits;        // [rows, vocab] of logits_type
    Global<const float> temperature;  // [rows]
    FloatType logits_type;
    int64_t rows;
    int64_t vocab;
    int64_t tiles;
    // outputs, as in MarkovArgs
    Global<float> tile_max;    // [rows, tiles]
    Global<float> tile_sum;    // [rows, tiles]
    Global<uint8_t> tile_nan;  // [rows, tiles]
};

// A draw from rows of which this process holds some tiles.
struct DrawShardArgs {
    Global<const void> logits;        // [rows, width] of logits_type: whole tiles of the rows
    Global<const float> tile_max;     // [rows, tiles] of the whole rows
    Global<const float> tile_sum;     // [rows, tiles]
    Global<const float> temperature;  // [rows]
    Global<const int64_t> seeds;      // [rows]
    Global<const int64_t> positions;  // [rows] of the token to draw
    FloatType logits_type;
    int64_t rows;
    int64_t width;
    int64_t first_tile;  // of the tiles held
    int64_t tiles;       // of a whole row
    int32_t slot;        // of the token in its block
    // output
    Global<int64_t> token_ids;  // [rows]; -1 where another process holds the tile drawn
};

struct ConfidenceArgs {
    Global<const void> hidden;         // [rows, hidden_size] of hidden_type
    Global<const void> prev_embed;     // [rows, rank] of embed_type
    Global<const void> weight;         // [hidden_size + rank] of weight_type
    Global<const void> bias;           // [1] of bias_type, or null: none
    Global<const float> temperatures;  // [num_drafts], or null: no division
    FloatType hidden_type;
    FloatType embed_type;
    FloatType weight_type;
    FloatType bias_type;
    int64_t rows;
    int64_t num_drafts;  // position of a row = row mod num_drafts
    int64_t hidden_size;
    int64_t rank;
    int64_t padded_size;           // hidden_size + rank, up to a multiple of kHiddenLanes
    Global<float> widened_weight;  // [padded_size] scratch of the CPU: the weight, zeros behind it
    Global<float> confidence;      // [rows]
};

struct CalibrateArgs {
    Global<const float> conf_logits;   // [rows]
    Global<const float> temperatures;  // [num_drafts]
    int64_t rows;
    int64_t num_drafts;
    Global<float> confidence;  // [rows]
};

}  // namespace dspark
