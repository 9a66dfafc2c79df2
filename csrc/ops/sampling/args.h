// Arguments of the sampling kernels: plain pointers, strides and sizes.
//
// B requests, K draft slots, N target rows, V vocabulary. Strides count elements.
#pragma once

#include <cstdint>

#include "device/law.h"

namespace dspark {

// Rows of logits (or probabilities); the entries of a row are consecutive.
struct RowsView {
    Global<const void> data;  // null: absent
    FloatType dtype;
    int64_t request_stride;  // [B, K, V]: between requests; 0 for [N, V]
    int64_t row_stride;
    int32_t vocab;
};

// int32 or int64 values.
struct IndexView {
    Global<const void> data;  // null: absent
    bool is_int64;

    DSPARK_DEVICE int64_t operator[](int64_t i) const {
        if (is_int64) return global_cast<const int64_t>(data)[i];
        return global_cast<const int32_t>(data)[i];
    }
};

// What shapes a target law, one value per request (or per row). Null: the filter is off.
struct LawArgs {
    Global<const float> temperature;  // >= 0; 0 is greedy
    IndexView top_k;
    Global<const float> top_p;
    Global<const float> min_p;
};

struct TargetProbsArgs {
    RowsView logits;      // [N, V]
    LawArgs law;          // [N]
    int64_t rows;         // N
    Global<float> probs;  // [N, V]
};

struct SampleArgs {
    RowsView logits;                  // [N, V]
    LawArgs law;                      // [N]
    int64_t rows;                     // N
    Global<const int64_t> seeds;      // [N]
    Global<const int64_t> positions;  // [N]
    bool draft_stream;                // draw from stream DRAFT instead of RESAMPLE
    Global<const double> uniforms;    // [N], or null
    Global<const int64_t> slots;      // [N] index in the draft block, or null for 0
    Global<int64_t> ids;              // [N]
    Global<float> logprobs;           // [N]
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
    RowsView target_logits;                 // [N, V]
    IndexView draft_token_ids;              // [B, K]
    int64_t draft_ids_stride;               // between requests
    RowsView draft_logits;                  // [B, K, V_draft], or absent
    RowsView draft_probs;                   // [B, K, V_draft] float32, or absent
    IndexView query_start_loc;              // [B + 1]
    LawArgs law;                            // [B]
    Global<const float> draft_temperature;  // [B]
    Global<const float> synthetic_rates;    // [K], or null
    Global<const int64_t> seeds;            // [B]; null where nothing is drawn
    Global<const int64_t> positions;        // [B] of the first draft
    Global<const double> uniforms;          // [B, K + 1], or null
    int64_t target_rows;                    // N
    int64_t batch;                          // B
    int32_t num_drafts;                     // K
    // scratch: laws are computed when first used, so rows that no decision needs are not read
    Global<Law> target_laws;  // [B, K + 1]
    Global<Law> draft_laws;   // [B, K]
    // rejection_sample
    Global<int64_t> token_ids;     // [B, K + 1]
    Global<int32_t> num_accepted;  // [B]
    Global<int32_t> num_emitted;   // [B]
    Global<int64_t> last_token;    // [B]
    Global<int32_t> status;        // [B]
    Global<float> logprobs;        // [B, K + 1], or null
    // block_acceptance
    Global<double> prefix_prob;    // [B, K]
    Global<double> residual_mass;  // [B, K]
    Global<double> accept_prob;    // [B, K]
};

}  // namespace dspark
