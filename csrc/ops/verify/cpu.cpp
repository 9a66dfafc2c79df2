// CPU kernels of the verify family; compiled once per instruction set, in namespace
// dspark::DSPARK_ISA.
#include "ops/verify/cpu.h"

namespace dspark::DSPARK_ISA {
namespace {

constexpr float kSmallestSurvival = 0x1p-100f;  // below it a survival counts as 0

int32_t clamp(int32_t value, int32_t low, int32_t high) {
    return value < low ? low : value > high ? high : value;
}

float clamp_confidence(float c) {
    return c > 0.0f ? (c < 1.0f ? c : 1.0f) : 0.0f;
}  // NaN: 0

// survival[b, j] = product of the conditional confidences up to j, left to right.
void compute_survival(const ScheduleArgs& args) {
    for (int64_t b = 0; b < args.batch; ++b) {
        float a = 1.0f;
        for (int64_t j = 0; j < args.num_positions; ++j) {
            a *= clamp_confidence(args.confidence[b * args.num_positions + j]);
            if (a < kSmallestSurvival) a = 0.0f;
            args.survival[b * args.num_positions + j] = a;
        }
    }
}

// limits[b] = drafts request b can take at all.
void compute_limits(const ScheduleArgs& args) {
    for (int64_t b = 0; b < args.batch; ++b) {
        const int32_t room = args.capacity == nullptr ? args.num_drafts : args.capacity[b];
        args.limits[b] = clamp(room, 0, args.num_drafts);
    }
}

// Cuts limits[b] before the first conditional confidence below the threshold.
void apply_threshold(const ScheduleArgs& args) {
    for (int64_t b = 0; b < args.batch; ++b) {
        const float* confidence = args.confidence + b * args.num_positions;
        int32_t n = 0;
        while (n < args.limits[b] && clamp_confidence(confidence[n]) >= args.threshold) ++n;
        args.limits[b] = n;
    }
}

double cost_of(const ScheduleArgs& args, int64_t rows) {
    const int64_t last = args.cost_size - 1;
    if (rows <= last) return args.cost[rows];
    return args.cost[last] +
           static_cast<double>(rows - last) * (args.cost[last] - args.cost[last - 1]);
}

bool precedes(const ScheduleCandidate& a, const ScheduleCandidate& b) {
    if (a.survival != b.survival) return a.survival > b.survival;
    if (a.position != b.position) return a.position < b.position;
    return a.request < b.request;
}

void sift_down(ScheduleCandidate* heap, int32_t size, int32_t parent) {
    const ScheduleCandidate moved = heap[parent];
    for (int32_t child; (child = 2 * parent + 1) < size; parent = child) {
        if (child + 1 < size && precedes(heap[child + 1], heap[child])) ++child;
        if (!precedes(heap[child], moved)) break;
        heap[parent] = heap[child];
    }
    heap[parent] = moved;
}

// Step 1: the first `count` drafts of every request, position by position.
void admit_minimum(const ScheduleArgs& args, int32_t count, int64_t& rows, double& tau) {
    for (int32_t j = 0; j < count; ++j) {
        for (int32_t b = 0; b < args.batch && rows < args.max_rows; ++b) {
            if (j >= args.limits[b]) continue;
            args.verify_lens[b] = j + 1;
            ++rows;
            tau += args.survival == nullptr
                       ? 1.0
                       : static_cast<double>(args.survival[int64_t{b} * args.num_positions + j]);
        }
    }
}

// The next draft of a request; false when it may not take another one.
bool next_candidate(const ScheduleArgs& args, int32_t request, ScheduleCandidate& candidate) {
    const int32_t position = args.verify_lens[request];
    if (position >= args.limits[request]) return false;
    const float survival = args.survival[int64_t{request} * args.num_positions + position];
    candidate = {survival, position, request};
    return survival > 0.0f;
}

// Step 2: candidates in order, from a heap that holds the next draft of each request. Survivals
// fall along a request, so the heap yields the order of the whole list.
void admit_candidates(const ScheduleArgs& args, int64_t& rows, double& tau) {
    int32_t size = 0;
    for (int32_t b = 0; b < args.batch; ++b) size += next_candidate(args, b, args.heap[size]);
    for (int32_t i = size / 2 - 1; i >= 0; --i) sift_down(args.heap, size, i);

    const bool stops = args.mode == ScheduleMode::kEarlyStop;
    double theta = stops && size > 0 ? tau / cost_of(args, args.num_other_rows + rows) : 0.0;
    while (size > 0 && rows < args.max_rows) {
        const ScheduleCandidate best = args.heap[0];
        const double new_tau = tau + static_cast<double>(best.survival);
        if (stops) {
            const double new_theta = new_tau / cost_of(args, args.num_other_rows + rows + 1);
            if (!(new_theta > theta)) break;
            theta = new_theta;
        }
        tau = new_tau;
        ++rows;
        args.verify_lens[best.request] = best.position + 1;
        if (!next_candidate(args, best.request, args.heap[0])) args.heap[0] = args.heap[--size];
        if (size > 0) sift_down(args.heap, size, 0);
    }
}

}  // namespace

void schedule(const ScheduleArgs& args) {
    if (args.survival != nullptr) compute_survival(args);
    compute_limits(args);
    for (int64_t b = 0; b < args.batch; ++b) args.verify_lens[b] = 0;

    int64_t rows = args.batch;
    double tau = static_cast<double>(args.batch);
    const bool fixed = args.mode == ScheduleMode::kFixed;
    admit_minimum(args, fixed ? args.num_drafts : args.min_drafts, rows, tau);
    if (args.mode == ScheduleMode::kThreshold) apply_threshold(args);
    if (!fixed) admit_candidates(args, rows, tau);

    args.query_start_loc[0] = 0;
    for (int64_t b = 0; b < args.batch; ++b) {
        args.query_start_loc[b + 1] = args.query_start_loc[b] + args.verify_lens[b] + 1;
    }
    *args.num_rows = static_cast<int32_t>(rows);
    *args.expected_tokens = static_cast<float>(tau);
}

namespace {

bool has_block(const PackArgs& args, int64_t request, int64_t position) {
    const int64_t column = position / args.block_size;
    return column < args.num_blocks && args.block_table[request * args.num_blocks + column] >= 0;
}

VerifyCheck check_request(const PackArgs& args, int64_t b) {
    const int64_t length = args.verify_lens[b];
    const int64_t begin = args.query_start_loc[b];
    const int64_t end = args.query_start_loc[b + 1];
    const int64_t position = args.seq_lens[b];
    if (args.anchor[b] < 0) return {VerifyFault::kAnchor, b, args.anchor[b]};
    if (position < 0) return {VerifyFault::kPosition, b, position};
    if (length < 0 || length > args.num_drafts) return {VerifyFault::kLength, b, length};
    if (b == 0 && begin != 0) return {VerifyFault::kRows, b, begin};
    if (end - begin != length + 1 || end > args.max_rows) return {VerifyFault::kRows, b, end};
    if (args.block_table == nullptr) return {};
    for (int64_t i = 0; i <= length; ++i) {
        if (!has_block(args, b, position + i)) return {VerifyFault::kBlock, b, position + i};
    }
    return {};
}

int64_t slot_of(const PackArgs& args, int64_t request, int64_t position) {
    if (args.block_table == nullptr) return position;
    const int64_t column = position / args.block_size;
    const int64_t block = args.block_table[request * args.num_blocks + column];
    return block * args.block_size + position % args.block_size;
}

}  // namespace

VerifyCheck pack(const PackArgs& args) {
    for (int64_t b = 0; b < args.batch; ++b) {
        const VerifyCheck check = check_request(args, b);
        if (check.fault != VerifyFault::kNone) return check;
    }
    for (int64_t b = 0; b < args.batch; ++b) {
        const int64_t begin = args.query_start_loc[b];
        for (int64_t i = 0; i <= args.verify_lens[b]; ++i) {
            const int64_t draft = i > 0 ? args.draft_token_ids[b * args.num_drafts + i - 1] : 0;
            const int64_t position = args.seq_lens[b] + i;
            args.input_ids[begin + i] = i == 0 ? args.anchor[b] : draft < 0 ? 0 : draft;
            args.positions[begin + i] = position;
            args.request_ids[begin + i] = static_cast<int32_t>(b);
            args.slot_mapping[begin + i] = slot_of(args, b, position);
        }
    }
    const int64_t num_rows = args.batch > 0 ? args.query_start_loc[args.batch] : 0;
    for (int64_t row = num_rows; row < args.max_rows; ++row) {
        args.input_ids[row] = 0;
        args.positions[row] = 0;
        args.request_ids[row] = -1;
        args.slot_mapping[row] = -1;
    }
    return {};
}

VerifyCheck commit(const CommitArgs& args) {
    for (int64_t b = 0; b < args.batch; ++b) {
        const int64_t begin = args.query_start_loc[b];
        const int64_t end = args.query_start_loc[b + 1];
        if (begin < 0 || end < begin || end > args.num_rows) return {VerifyFault::kRows, b, end};
        if (args.num_emitted[b] < 0 || args.num_emitted[b] > end - begin) {
            return {VerifyFault::kEmitted, b, args.num_emitted[b]};
        }
    }
    for (int64_t row = 0; row < args.num_rows; ++row) args.row_kept[row] = false;
    for (int64_t b = 0; b < args.batch; ++b) {
        const int64_t begin = args.query_start_loc[b];
        const int64_t num_rows = args.query_start_loc[b + 1] - begin;
        const int64_t kept = args.num_emitted[b];
        for (int64_t i = 0; i < kept; ++i) args.row_kept[begin + i] = true;
        args.new_seq_lens[b] = args.seq_lens[b] + kept;
        args.anchor[b] = args.last_token[b];
        args.num_rejected[b] = static_cast<int32_t>(num_rows - kept);
    }
    return {};
}

VerifyCheck accumulate_stats(const AccumulateStatsArgs& args) {
    for (int64_t b = 0; b < args.batch; ++b) {
        const int64_t row = args.request_ids == nullptr ? b : args.request_ids[b];
        const int64_t length = args.verify_lens[b];
        if (row < 0) continue;
        if (row >= args.num_requests) return {VerifyFault::kSlot, b, row};
        if (length < 0 || length > args.num_drafts) return {VerifyFault::kLength, b, length};
        if (args.num_accepted[b] < 0 || args.num_accepted[b] > length) {
            return {VerifyFault::kAccepted, b, args.num_accepted[b]};
        }
    }
    for (int64_t b = 0; b < args.batch; ++b) {
        const int64_t row = args.request_ids == nullptr ? b : args.request_ids[b];
        if (row < 0) continue;
        const int64_t accepted = args.num_accepted[b];
        for (int64_t j = 0; j < args.verify_lens[b]; ++j) {
            ++args.verified[row * args.num_drafts + j];
            if (j <= accepted) ++args.reached[row * args.num_drafts + j];
        }
        ++args.histogram[row * (args.num_drafts + 1) + accepted];
    }
    return {};
}

}  // namespace dspark::DSPARK_ISA
