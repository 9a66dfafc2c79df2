// Arguments of the sampling kernels: plain pointers, strides and sizes.
//
// B requests, K draft slots, N target rows, V vocabulary. Strides count elements.
#pragma once

#include <cstdint>

#include "device/float_type.h"

namespace dspark {

// Rows of logits (or probabilities); the entries of a row are consecutive.
struct RowsView {
    const void* data;  // null: absent
    FloatType dtype;
    int64_t request_stride;  // [B, K, V]: between requests; 0 for [N, V]
    int64_t row_stride;
    int32_t vocab;
};

// int32 or int64 values.
struct IndexView {
    const void* data;  // null: absent
    bool is_int64;

    int64_t operator[](int64_t i) const {
        return is_int64 ? static_cast<const int64_t*>(data)[i]
                        : static_cast<const int32_t*>(data)[i];
    }
};

// What shapes a target law, one value per request (or per row). Null: the filter is off.
struct LawArgs {
    const float* temperature;  // >= 0; 0 is greedy
    IndexView top_k;
    const float* top_p;
    const float* min_p;
};

// Which entries of a row a law keeps: x > cut.x, or x == cut.x and index <= cut.id.
struct Cut {
    float x;
    int32_t id;
};

// One row under temperature and filters: what docs/numerics.md sections 2 to 4 derive from it.
struct Law {
    const void* row;
    FloatType dtype;
    int32_t vocab;
    bool is_ready;
    bool is_greedy;
    bool has_nan;
    bool is_empty;       // nothing above -inf
    float scale;         // c; not for greedy
    float maximum;       // M
    int32_t argmax;      // greedy only
    Cut cut;             // what is kept
    double total;        // Z, over what is kept
    float* tile_max;     // [tiles] m_t
    float* tile_sum;     // [tiles] S_t, over what is kept
    double* tile_scale;  // [tiles] e_t
};

struct TargetProbsArgs {
    RowsView logits;  // [N, V]
    LawArgs law;      // [N]
    int64_t rows;     // N
    float* probs;     // [N, V]
};

struct SampleArgs {
    RowsView logits;           // [N, V]
    LawArgs law;               // [N]
    int64_t rows;              // N
    const int64_t* seeds;      // [N]
    const int64_t* positions;  // [N]
    bool draft_stream;         // draw from stream DRAFT instead of RESAMPLE
    const double* uniforms;    // [N], or null
    const int64_t* slots;      // [N] index in the draft block, or null for 0
    int64_t* ids;              // [N]
    float* logprobs;           // [N]
};

enum class Method { kBlock, kToken, kGreedy, kSynthetic };

// Status bits, docs/numerics.md section 8.
enum Status : int32_t {
    kNanRow = 1,
    kInvalidDraft = 2,
    kEmptyRow = 4,
    kZeroResidual = 8,
    kInvalidId = 16,
};

struct VerifyArgs {
    Method method;
    RowsView target_logits;          // [N, V]
    IndexView draft_token_ids;       // [B, K]
    int64_t draft_ids_stride;        // between requests
    RowsView draft_logits;           // [B, K, V_draft], or absent
    RowsView draft_probs;            // [B, K, V_draft] float32, or absent
    IndexView query_start_loc;       // [B + 1]
    LawArgs law;                     // [B]
    const float* draft_temperature;  // [B]
    const float* synthetic_rates;    // [K], or null
    const int64_t* seeds;            // [B]; null where nothing is drawn
    const int64_t* positions;        // [B] of the first draft
    const double* uniforms;          // [B, K + 1], or null
    int64_t target_rows;             // N
    int64_t batch;                   // B
    int32_t num_drafts;              // K
    // scratch: laws are computed when first used, so rows that no decision needs are not read
    Law* target_laws;  // [N]
    Law* draft_laws;   // [B, K]
    // rejection_sample
    int64_t* token_ids;     // [B, K + 1]
    int32_t* num_accepted;  // [B]
    int32_t* num_emitted;   // [B]
    int64_t* last_token;    // [B]
    int32_t* status;        // [B]
    float* logprobs;        // [B, K + 1], or null
    // block_acceptance
    double* prefix_prob;    // [B, K]
    double* residual_mass;  // [B, K]
    double* accept_prob;    // [B, K]
};

}  // namespace dspark
