// Arguments of the verify kernels: plain pointers and sizes. All arrays are dense and row-major.
#pragma once

#include <cstdint>

namespace dspark {

enum class ScheduleMode { kFixed, kThreshold, kEarlyStop };

// The draft of a request that would be admitted next.
struct ScheduleCandidate {
    float survival;
    int32_t position;  // 0 for x_1
    int32_t request;
};

// B requests, K draft positions. docs/numerics.md section 9.
struct ScheduleArgs {
    const float* confidence;  // [B, K] conditional; null only in mode fixed
    const int32_t* capacity;  // [B], or null: no limit
    const double* cost;       // [cost_size] seconds by number of rows; null unless early_stop
    int64_t cost_size;        // >= 2
    ScheduleMode mode;
    float threshold;         // of the conditional confidence
    int32_t batch;           // B
    int32_t num_positions;   // K
    int32_t num_drafts;      // at most this many per request, <= K
    int32_t min_drafts;      // admitted whatever their survival
    int64_t max_rows;        // anchors included; >= B
    int64_t num_other_rows;  // rows of the same pass that belong to nobody here
    // scratch
    float* survival;          // [B, K]; null without confidence: every draft counts as certain
    int32_t* limits;          // [B]
    ScheduleCandidate* heap;  // [B]
    // outputs
    int32_t* verify_lens;      // [B]
    int32_t* query_start_loc;  // [B + 1]
    int32_t* num_rows;         // []
    float* expected_tokens;    // []
};

struct PackArgs {
    const int64_t* anchor;           // [B]
    const int64_t* draft_token_ids;  // [B, K]
    const int64_t* seq_lens;         // [B] position of the anchor
    const int32_t* verify_lens;      // [B]
    const int32_t* query_start_loc;  // [B + 1]
    const int32_t* block_table;      // [B, num_blocks], or null: slot = position
    int64_t num_blocks;
    int64_t block_size;
    int64_t batch;
    int64_t num_drafts;
    int64_t max_rows;
    // outputs, [max_rows]
    int64_t* input_ids;
    int64_t* positions;
    int32_t* request_ids;
    int64_t* slot_mapping;
};

struct CommitArgs {
    const int32_t* num_emitted;      // [B]
    const int64_t* last_token;       // [B]
    const int64_t* seq_lens;         // [B]
    const int32_t* query_start_loc;  // [B + 1]
    int64_t batch;
    int64_t num_rows;
    // outputs
    int64_t* new_seq_lens;  // [B]
    int64_t* anchor;        // [B]
    bool* row_kept;         // [num_rows]
    int32_t* num_rejected;  // [B]
};

struct AccumulateStatsArgs {
    const int32_t* verify_lens;   // [B]
    const int32_t* num_accepted;  // [B]
    const int32_t* request_ids;   // [B] counter row, negative: not counted; null: row b
    int64_t batch;
    int64_t num_requests;  // rows of the counters, R
    int64_t num_drafts;    // K
    // counters, updated
    int64_t* verified;   // [R, K] steps in which the position was verified
    int64_t* reached;    // [R, K] of those, steps in which every earlier draft was accepted
    int64_t* histogram;  // [R, K + 1] steps by number of accepted drafts
};

// What a kernel found wrong in its data: the first offending request and the value it met.
enum class VerifyFault {
    kNone,
    kAnchor,
    kPosition,
    kLength,
    kRows,
    kBlock,
    kEmitted,
    kAccepted,
    kSlot
};
struct VerifyCheck {
    VerifyFault fault = VerifyFault::kNone;
    int64_t request = -1;
    int64_t got = 0;
};

}  // namespace dspark
