// Arguments of the draft kernels: plain pointers and sizes. All arrays are dense and row-major.
#pragma once

#include <cstdint>

#include "device/float_type.h"

namespace dspark {

// Lanes of the bias product; embeddings are padded with zeros to a multiple of it.
constexpr int kBiasLanes = 16;
// Vocabulary rows that share a pass over the embeddings.
constexpr int kBiasRows = 16;
// Lanes of the confidence head's sum; its weight is padded with zeros to a multiple of it.
constexpr int kConfidenceLanes = 256;

// B requests, K rows of base logits each, n of them drafted; docs/numerics.md section 10.
struct MarkovArgs {
    const void* base_logits;   // [B, K, draft_vocab] of logits_type
    const int64_t* anchor;     // [B]
    const void* w1;            // [num_embeddings, rank] of w1_type
    const void* w2;            // [draft_vocab, rank] of w2_type
    const int64_t* d2t;        // [draft_vocab] target id minus draft id, or null: equal
    const float* temperature;  // [B], >= 0
    const int64_t* seeds;      // [B]
    const int64_t* positions;  // [B] absolute position of x_1
    FloatType logits_type;
    FloatType w1_type;
    FloatType w2_type;
    bool greedy;  // argmax whatever the temperature
    int64_t batch;
    int64_t num_positions;   // K
    int64_t num_drafts;      // n
    int64_t num_embeddings;  // rows of w1
    int64_t draft_vocab;
    int64_t vocab;  // width of the logits kept, >= draft_vocab
    int64_t rank;
    int64_t padded_rank;  // multiple of kBiasLanes
    // scratch
    float* embedding;  // [B, padded_rank] of the previous token, widened, zeros behind rank
    // outputs
    int64_t* token_ids;  // [B, n]
    void* logits;        // [B, n, vocab] of logits_type
    void* prev_embed;    // [B, n, rank] of w1_type
};

struct ConfidenceArgs {
    const void* hidden;      // [rows, hidden_size] of hidden_type
    const void* prev_embed;  // [rows, rank] of embed_type
    const float* weight;     // [padded_size] hidden part, embedding part, zeros
    float bias;
    const float* temperatures;  // [num_drafts], or null: no division
    FloatType hidden_type;
    FloatType embed_type;
    int64_t num_drafts;  // position of a row = row mod num_drafts
    int64_t hidden_size;
    int64_t rank;
    int64_t padded_size;  // multiple of kConfidenceLanes
    float* confidence;    // [rows]
};

struct CalibrateArgs {
    const float* conf_logits;   // [rows]
    const float* temperatures;  // [num_drafts]
    int64_t num_drafts;
    float* confidence;  // [rows]
};

}  // namespace dspark
