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

// Scratch of the device kernels: the laws of a call, R rows, and how the weights of those that
// filters cut are spread.
struct LawScratch {
    Global<Law> laws;            // [R]
    Global<float> tile_max;      // [R, tiles]
    Global<float> tile_sum;      // [R, tiles]
    Global<double> tile_scale;   // [R, tiles]
    Global<int32_t> tile_first;  // [R, tiles] id of the first entry equal to m_t; greedy rows only
    Global<uint8_t> tile_nan;    // [R, tiles] whether the tile holds a NaN
    int32_t tiles;
    Global<uint64_t> profiles;  // [filtered rows, tiles, 3], or null without filters
    int64_t filtered_rows;      // the first ones
};

struct TargetProbsArgs {
    RowsView logits;      // [N, V]
    LawArgs law;          // [N]
    int64_t rows;         // N
    Global<float> probs;  // [N, V]
    LawScratch scratch;   // device only, N rows
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
    LawScratch scratch;               // device only, N rows
};

enum class Method { kBlock, kToken, kGreedy, kSynthetic };

// Status bits, docs/numerics.md section 8.
enum Status : int32_t {
    kNanRow = 1,
    kInvalidDraft = 2,
    kEmptyRow = 4,
    kZeroResidual = 8,
    kInvalidId = 16,
    kInvalidRequest = 32,  // devices only: the CPU operators raise an error instead
};

// How a block ended: `accepted` drafts stand. The next token comes from the residual of `prefix`
// times the target law over the proposal of the next slot or, if that has none, from the target
// law.
struct Ending {
    int32_t accepted;
    bool has_proposal;
    int32_t status;  // why the next slot has no proposal
    double prefix;
};

// The slots that block_accept chooses among.
struct Candidates {
    int32_t count;   // slots before the first without a proposal, or up to the first prefix of 0
    int32_t status;  // why slot `count` has no proposal
};

// What the kernels of a verification tell each other about a request.
struct Decision {
    bool is_valid;
    bool has_ended;         // false: block_accept needs the residual masses first
    Ending ending;          // if has_ended
    Candidates candidates;  // block rule
};

// Statistics of the draft rows, from whoever drew from them: of row (b, i) under `temperature`, per
// tile m_t, S_t and whether it holds a NaN (docs/numerics.md sections 1 to 3).
struct GivenStatistics {
    Global<const float> temperature;  // [B, K]; null: nothing is given
    Global<const float> tile_max;     // [B, K, tiles of V_draft]
    Global<const float> tile_sum;     // [B, K, tiles of V_draft]
    Global<const uint8_t> tile_nan;   // [B, K, tiles of V_draft]
};

struct VerifyArgs {
    Method method;
    RowsView target_logits;                 // [N, V]
    IndexView draft_token_ids;              // [B, K]
    int64_t draft_ids_stride;               // between requests
    RowsView draft_logits;                  // [B, K, V_draft], or absent
    RowsView draft_probs;                   // [B, K, V_draft] float32, or absent
    GivenStatistics draft_statistics;       // of draft_logits
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
    // Laws of the CPU kernels, computed when first used: rows that no decision needs are not read.
    Global<Law> target_laws;  // [B, K + 1]
    Global<Law> draft_laws;   // [B, K]
    // Scratch of the device kernels.
    LawScratch scratch;              // B (K + 1) target rows, then B K draft rows
    Global<Decision> decisions;      // [B]
    Global<double> prefixes;         // [B, K] block rule
    Global<double> slot_p;           // [B, K] p of the drafted id
    Global<int32_t> needs_residual;  // [B, K] 1: the residual of row i over slot i
    Global<double> residual_totals;  // [B, K, tiles] its tile totals
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
