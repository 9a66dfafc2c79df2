// Arguments of the verify kernels: plain pointers and sizes. All arrays are dense and row-major.
#pragma once

#include <cstdint>

#include "device/backend.h"

namespace dspark {

enum class ScheduleMode { kFixed, kThreshold, kEarlyStop, kBudget, kLagged, kUniform };

// Most candidates of a schedule, B * K, and their number of bits.
constexpr int kPlaceBits = 22;
constexpr int64_t kMostCandidates = int64_t{1} << kPlaceBits;

// Candidates that one block of a device sorts.
constexpr int kTileCandidates = 4096;

// Scratch of the device kernels where one block cannot hold the candidates. Of [2, ...] the second
// half belongs to the lagged confidences.
struct ScheduleScratch {
    int32_t tiles;
    Global<uint64_t> tile_keys;   // [2, tiles, kTileCandidates] each tile ascending
    Global<uint64_t> keys;        // [2, tiles * kTileCandidates] ascending
    Global<int64_t> tile_counts;  // [2, tiles] candidates, + 2^32 for each that is forced
    Global<int64_t> tile_units;   // [2, tiles] tokens of the forced ones
    Global<int64_t> run_units;    // [tiles] tokens of kTileCandidates ascending candidates
    Global<int64_t> run_ends;     // [tiles] where the order ends, as far as can be seen there
    Global<double> run_rates;     // [tiles] and the rate there
};

// B requests, K draft positions. docs/numerics.md section 9.
struct ScheduleArgs {
    Global<const float> confidence;  // [B, K] conditional; null only in mode fixed
    Global<const float>
        lagged_confidence;               // [B, K] of an earlier step; null unless lagged, uniform
    Global<const int32_t> capacity;      // [B], or null: no limit
    Global<const int32_t> num_requests;  // [] requests that exist, the first ones; null: B
    Global<const int32_t> budget;        // [] rows, anchors included; null unless mode budget
    Global<const double> cost;  // [cost_size] seconds by number of rows; null where not looked at
    int64_t cost_size;          // >= 2
    ScheduleMode mode;
    float threshold;         // of the conditional confidence
    int32_t batch;           // B
    int32_t num_positions;   // K
    int32_t num_drafts;      // at most this many per request, <= K
    int32_t min_drafts;      // admitted whatever their survival, <= K
    int64_t max_rows;        // anchors included; >= B
    int64_t num_other_rows;  // rows of the same pass that belong to nobody here
    // scratch
    Global<float> survival;   // [B] running products; mode uniform
    Global<uint64_t> keys;    // [B, K] CPU only
    Global<uint64_t> heap;    // [B] CPU only
    ScheduleScratch scratch;  // device only
    // outputs
    Global<int32_t> verify_lens;      // [B]
    Global<int32_t> query_start_loc;  // [B + 1]
    Global<int32_t> num_rows;         // []
    Global<float> expected_tokens;    // []
};

// Which rows of a pass belong to a request: query_start_loc[b] .. query_start_loc[b + 1] - 1, or,
// padded, the first of rows_per_request rows from b * rows_per_request on.
struct RowLayout {
    Global<const int32_t> query_start_loc;  // [B + 1]
    int64_t batch;                          // B
    int64_t rows_per_request;               // 0: not padded
};

struct PackArgs {
    Global<const int64_t> anchor;           // [B]
    Global<const int64_t> draft_token_ids;  // [B, K]
    Global<const int64_t> seq_lens;         // [B] position of the anchor
    Global<const int32_t> verify_lens;      // [B]
    RowLayout layout;
    Global<const int32_t> block_table;  // [B, num_blocks], or null: slot = position
    int64_t num_blocks;
    int64_t block_size;
    int64_t num_drafts;  // K
    int64_t max_rows;
    // outputs, [max_rows]
    Global<int64_t> input_ids;
    Global<int64_t> positions;
    Global<int32_t> request_ids;
    Global<int64_t> slot_mapping;
    Global<int64_t> sample_rows;
};

struct UnpackArgs {
    Global<const void> rows;  // [num_rows, row_size] elements
    Global<const void> fill;  // [] element
    RowLayout layout;
    int64_t num_rows;
    int64_t num_drafts;    // K
    int64_t row_size;      // elements of a row
    int64_t element_size;  // bytes: 1, 2, 4, 8 or 16
    int64_t unit;          // bytes, as many as 16: every row begins and ends at a multiple of them
    // output
    Global<void> block;  // [B, K + 1, row_size]
};

struct CommitArgs {
    Global<const int32_t> num_emitted;  // [B]
    Global<const int64_t> last_token;   // [B]
    Global<const int64_t> seq_lens;     // [B]
    RowLayout layout;
    int64_t num_rows;
    // outputs
    Global<int64_t> new_seq_lens;  // [B]
    Global<int64_t> anchor;        // [B]
    Global<bool> row_kept;         // [num_rows]
    Global<int32_t> num_rejected;  // [B]
};

struct AccumulateStatsArgs {
    Global<const int32_t> verify_lens;   // [B]
    Global<const int32_t> num_accepted;  // [B]
    Global<const int32_t> request_ids;   // [B] counter row, negative: not counted; null: row b
    int64_t batch;
    int64_t num_requests;  // rows of the counters, R
    int64_t num_drafts;    // K
    // counters, updated
    Global<int64_t> verified;   // [R, K] steps in which the position was verified
    Global<int64_t> reached;    // [R, K] of those, steps in which every earlier draft was accepted
    Global<int64_t> histogram;  // [R, K + 1] steps by number of accepted drafts
};

// What a CPU kernel found wrong in its data: the first offending request and the value it met.
enum class VerifyFault {
    kNone,
    kAnchor,
    kPosition,
    kLength,
    kRows,
    kRowsPerRequest,
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
