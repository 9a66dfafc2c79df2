// Checks, allocation and dispatch of the verify family.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <climits>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "host/check.h"
#include "host/tensor.h"
#include "ops/verify/cpu.h"

namespace dspark {
namespace {

using host::Arg;
using host::dense;
using host::fail;
using host::new_tensor;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

using Dims = std::initializer_list<host::Dim>;

void check_tensor(const char* op, const char* name, const Tensor& tensor, ScalarType dtype,
                  Dims dims) {
    Arg(op, name, tensor).on_cpu().dtype({dtype}).shape(dims);
}

void check_at_least(const char* op, const char* name, int64_t value, int64_t low,
                    const char* why = "") {
    if (value >= low) return;
    fail(op, name,
         std::string(why) + "expected at least " + std::to_string(low) + ", got " +
             std::to_string(value));
}

ScheduleMode parse_mode(const std::string& mode) {
    if (mode == "fixed") return ScheduleMode::kFixed;
    if (mode == "threshold") return ScheduleMode::kThreshold;
    if (mode != "early_stop") {
        fail("schedule", "mode", "expected fixed, threshold or early_stop, got " + mode);
    }
    return ScheduleMode::kEarlyStop;
}

struct ScheduleLimits {
    int64_t num_drafts, min_drafts, max_rows, num_other_rows;
};

// Checks the inputs against each other and puts them into `args`.
ScheduleArgs schedule_inputs(const std::optional<Tensor>& confidence, const std::string& mode,
                             const std::optional<Tensor>& capacity,
                             const std::optional<Tensor>& cost, double threshold,
                             const ScheduleLimits& limits) {
    const char* op = "schedule";
    ScheduleArgs args{};
    args.mode = parse_mode(mode);
    const bool fixed = args.mode == ScheduleMode::kFixed;
    if (!confidence && !fixed) {
        fail(op, "confidence", "mode " + mode + " needs float32 [B, K], got None");
    }
    if (!confidence && !capacity) {
        fail(op, "capacity", "without confidence it tells B: expected int32 [B], got None");
    }
    if (confidence) check_tensor(op, "confidence", *confidence, ScalarType::Float, {{"B"}, {"K"}});
    const int64_t batch = confidence ? confidence->size(0) : capacity->numel();
    const int64_t positions = confidence ? confidence->size(1) : limits.num_drafts;
    if (capacity) check_tensor(op, "capacity", *capacity, ScalarType::Int, {{"B", batch}});
    check_at_least(op, "num_drafts", limits.num_drafts, 0);
    if (limits.num_drafts > positions) {
        fail(op, "num_drafts",
             "expected at most K=" + std::to_string(positions) + ", got " +
                 std::to_string(limits.num_drafts));
    }
    check_at_least(op, "min_drafts", limits.min_drafts, 0);
    check_at_least(op, "num_other_rows", limits.num_other_rows, 0);
    if (limits.max_rows >= 0) {
        check_at_least(op, "max_rows", limits.max_rows, batch, "every anchor needs a row: ");
    }
    if (batch * (positions + 1) >= INT32_MAX) fail(op, "confidence", "B*(K+1) exceeds int32");
    if (args.mode == ScheduleMode::kThreshold && !(threshold >= 0.0 && threshold <= 1.0)) {
        fail(op, "threshold", "expected a number in [0, 1], got " + std::to_string(threshold));
    }
    if (args.mode == ScheduleMode::kEarlyStop && !cost) {
        fail(op, "cost",
             "mode early_stop weighs drafts against the measured time of a pass: expected a "
             "CostTable (see profile_cost_table), got None");
    }
    if (cost) {
        check_tensor(op, "cost", *cost, ScalarType::Double, {{"rows"}});
        check_at_least(op, "cost", cost->size(0), 2, "number of entries: ");
        args.cost = cost->const_data_ptr<double>();
        args.cost_size = cost->size(0);
    }
    args.confidence = confidence ? confidence->const_data_ptr<float>() : nullptr;
    args.capacity = capacity ? capacity->const_data_ptr<int32_t>() : nullptr;
    args.threshold = static_cast<float>(threshold);
    args.batch = static_cast<int32_t>(batch);
    args.num_positions = static_cast<int32_t>(positions);
    args.num_drafts = static_cast<int32_t>(limits.num_drafts);
    args.min_drafts =
        static_cast<int32_t>(limits.min_drafts < positions ? limits.min_drafts : positions);
    args.max_rows = limits.max_rows < 0 ? INT64_MAX : limits.max_rows;
    args.num_other_rows = limits.num_other_rows;
    return args;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> schedule(std::optional<Tensor> confidence,
                                                    std::string mode,
                                                    std::optional<Tensor> capacity,
                                                    std::optional<Tensor> cost, double threshold,
                                                    int64_t num_drafts, int64_t min_drafts,
                                                    int64_t max_rows, int64_t num_other_rows) {
    if (confidence) confidence = dense(*confidence);
    if (capacity) capacity = dense(*capacity);
    if (cost) cost = dense(*cost);
    ScheduleArgs args = schedule_inputs(confidence, mode, capacity, cost, threshold,
                                        {num_drafts, min_drafts, max_rows, num_other_rows});
    const Tensor& like = confidence ? *confidence : *capacity;
    Tensor verify_lens = new_tensor(like, {args.batch}, ScalarType::Int);
    Tensor query_start_loc = new_tensor(like, {args.batch + 1}, ScalarType::Int);
    Tensor num_rows = new_tensor(like, {}, ScalarType::Int);
    Tensor expected_tokens = new_tensor(like, {}, ScalarType::Float);
    std::vector<float> survival(confidence ? confidence->numel() : 0);
    std::vector<int32_t> limits(args.batch);
    std::vector<ScheduleCandidate> heap(args.batch);
    args.survival = confidence ? survival.data() : nullptr;
    args.limits = limits.data();
    args.heap = heap.data();
    args.verify_lens = verify_lens.mutable_data_ptr<int32_t>();
    args.query_start_loc = query_start_loc.mutable_data_ptr<int32_t>();
    args.num_rows = num_rows.mutable_data_ptr<int32_t>();
    args.expected_tokens = expected_tokens.mutable_data_ptr<float>();
    DSPARK_CPU_DISPATCH(schedule, args);
    return {verify_lens, query_start_loc, num_rows, expected_tokens};
}

struct Complaint {
    const char* argument;
    const char* expected;
};

Complaint complaint_about(VerifyFault fault) {
    switch (fault) {
        case VerifyFault::kNone:
            break;
        case VerifyFault::kAnchor:
            return {"anchor", "a token id >= 0"};
        case VerifyFault::kPosition:
            return {"seq_lens", "a length >= 0"};
        case VerifyFault::kLength:
            return {"verify_lens", "0 to K drafts"};
        case VerifyFault::kRows:
            return {"query_start_loc", "a row per anchor and draft, in order, within max_rows"};
        case VerifyFault::kBlock:
            return {"block_table", "a block for every position of the rows"};
        case VerifyFault::kEmitted:
            return {"num_emitted", "0 to the number of rows"};
        case VerifyFault::kAccepted:
            return {"num_accepted", "0 to verify_lens"};
        case VerifyFault::kSlot:
            return {"request_ids", "ids below num_requests"};
    }
    return {"", ""};
}

void check_faults(const char* op, VerifyCheck check) {
    if (check.fault == VerifyFault::kNone) return;
    const Complaint complaint = complaint_about(check.fault);
    fail(op, complaint.argument,
         std::string("expected ") + complaint.expected + ", got " + std::to_string(check.got) +
             " for request " + std::to_string(check.request));
}

std::tuple<Tensor, Tensor, Tensor, Tensor> pack(Tensor anchor, Tensor draft_token_ids,
                                                Tensor seq_lens, Tensor verify_lens,
                                                Tensor query_start_loc, int64_t max_rows,
                                                std::optional<Tensor> block_table,
                                                int64_t block_size) {
    const char* op = "pack";
    check_tensor(op, "draft_token_ids", draft_token_ids, ScalarType::Long, {{"B"}, {"K"}});
    const int64_t batch = draft_token_ids.size(0);
    check_tensor(op, "anchor", anchor, ScalarType::Long, {{"B", batch}});
    check_tensor(op, "seq_lens", seq_lens, ScalarType::Long, {{"B", batch}});
    check_tensor(op, "verify_lens", verify_lens, ScalarType::Int, {{"B", batch}});
    check_tensor(op, "query_start_loc", query_start_loc, ScalarType::Int, {{"B+1", batch + 1}});
    check_at_least(op, "max_rows", max_rows, 0);
    if (block_table) {
        check_tensor(op, "block_table", *block_table, ScalarType::Int,
                     {{"B", batch}, {"num_blocks"}});
        check_at_least(op, "block_size", block_size, 1);
        block_table = dense(*block_table);
    }
    anchor = dense(anchor);
    draft_token_ids = dense(draft_token_ids);
    seq_lens = dense(seq_lens);
    verify_lens = dense(verify_lens);
    query_start_loc = dense(query_start_loc);
    Tensor input_ids = new_tensor(anchor, {max_rows}, ScalarType::Long);
    Tensor positions = new_tensor(anchor, {max_rows}, ScalarType::Long);
    Tensor request_ids = new_tensor(anchor, {max_rows}, ScalarType::Int);
    Tensor slot_mapping = new_tensor(anchor, {max_rows}, ScalarType::Long);
    PackArgs args{};
    args.anchor = anchor.const_data_ptr<int64_t>();
    args.draft_token_ids = draft_token_ids.const_data_ptr<int64_t>();
    args.seq_lens = seq_lens.const_data_ptr<int64_t>();
    args.verify_lens = verify_lens.const_data_ptr<int32_t>();
    args.query_start_loc = query_start_loc.const_data_ptr<int32_t>();
    args.block_table = block_table ? block_table->const_data_ptr<int32_t>() : nullptr;
    args.num_blocks = block_table ? block_table->size(1) : 0;
    args.block_size = block_size;
    args.batch = batch;
    args.num_drafts = draft_token_ids.size(1);
    args.max_rows = max_rows;
    args.input_ids = input_ids.mutable_data_ptr<int64_t>();
    args.positions = positions.mutable_data_ptr<int64_t>();
    args.request_ids = request_ids.mutable_data_ptr<int32_t>();
    args.slot_mapping = slot_mapping.mutable_data_ptr<int64_t>();
    check_faults(op, DSPARK_CPU_DISPATCH(pack, args));
    return {input_ids, positions, request_ids, slot_mapping};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> commit(Tensor num_emitted, Tensor last_token,
                                                  Tensor seq_lens, Tensor query_start_loc,
                                                  int64_t num_rows) {
    const char* op = "commit";
    check_tensor(op, "num_emitted", num_emitted, ScalarType::Int, {{"B"}});
    const int64_t batch = num_emitted.size(0);
    check_tensor(op, "last_token", last_token, ScalarType::Long, {{"B", batch}});
    check_tensor(op, "seq_lens", seq_lens, ScalarType::Long, {{"B", batch}});
    check_tensor(op, "query_start_loc", query_start_loc, ScalarType::Int, {{"B+1", batch + 1}});
    check_at_least(op, "num_rows", num_rows, 0);
    num_emitted = dense(num_emitted);
    last_token = dense(last_token);
    seq_lens = dense(seq_lens);
    query_start_loc = dense(query_start_loc);
    Tensor new_seq_lens = new_tensor(seq_lens, {batch}, ScalarType::Long);
    Tensor anchor = new_tensor(seq_lens, {batch}, ScalarType::Long);
    Tensor row_kept = new_tensor(seq_lens, {num_rows}, ScalarType::Bool);
    Tensor num_rejected = new_tensor(seq_lens, {batch}, ScalarType::Int);
    CommitArgs args{};
    args.num_emitted = num_emitted.const_data_ptr<int32_t>();
    args.last_token = last_token.const_data_ptr<int64_t>();
    args.seq_lens = seq_lens.const_data_ptr<int64_t>();
    args.query_start_loc = query_start_loc.const_data_ptr<int32_t>();
    args.batch = batch;
    args.num_rows = num_rows;
    args.new_seq_lens = new_seq_lens.mutable_data_ptr<int64_t>();
    args.anchor = anchor.mutable_data_ptr<int64_t>();
    args.row_kept = row_kept.mutable_data_ptr<bool>();
    args.num_rejected = num_rejected.mutable_data_ptr<int32_t>();
    check_faults(op, DSPARK_CPU_DISPATCH(commit, args));
    return {new_seq_lens, anchor, row_kept, num_rejected};
}

void check_counter(const char* name, const Tensor& counter, Dims dims) {
    Arg("accumulate_stats", name, counter).on_cpu().dtype({ScalarType::Long}).shape(dims).dense();
}

void accumulate_stats(Tensor verify_lens, Tensor num_accepted, std::optional<Tensor> request_ids,
                      Tensor verified, Tensor reached, Tensor histogram) {
    const char* op = "accumulate_stats";
    check_tensor(op, "verify_lens", verify_lens, ScalarType::Int, {{"B"}});
    const int64_t batch = verify_lens.size(0);
    check_tensor(op, "num_accepted", num_accepted, ScalarType::Int, {{"B", batch}});
    check_counter("verified", verified, {{"R"}, {"K"}});
    const int64_t num_requests = verified.size(0), num_drafts = verified.size(1);
    check_counter("reached", reached, {{"R", num_requests}, {"K", num_drafts}});
    check_counter("histogram", histogram, {{"R", num_requests}, {"K+1", num_drafts + 1}});
    if (request_ids) {
        check_tensor(op, "request_ids", *request_ids, ScalarType::Int, {{"B", batch}});
        request_ids = dense(*request_ids);
    } else {
        check_at_least(op, "num_requests", num_requests, batch, "without request_ids: ");
    }
    verify_lens = dense(verify_lens);
    num_accepted = dense(num_accepted);
    AccumulateStatsArgs args{};
    args.verify_lens = verify_lens.const_data_ptr<int32_t>();
    args.num_accepted = num_accepted.const_data_ptr<int32_t>();
    args.request_ids = request_ids ? request_ids->const_data_ptr<int32_t>() : nullptr;
    args.batch = batch;
    args.num_requests = num_requests;
    args.num_drafts = num_drafts;
    args.verified = verified.mutable_data_ptr<int64_t>();
    args.reached = reached.mutable_data_ptr<int64_t>();
    args.histogram = histogram.mutable_data_ptr<int64_t>();
    check_faults(op, DSPARK_CPU_DISPATCH(accumulate_stats, args));
}

}  // namespace
}  // namespace dspark

STABLE_TORCH_LIBRARY_IMPL(dspark_ext, CPU, m) {
    m.impl("schedule", TORCH_BOX(&dspark::schedule));
    m.impl("pack", TORCH_BOX(&dspark::pack));
    m.impl("commit", TORCH_BOX(&dspark::commit));
    m.impl("accumulate_stats", TORCH_BOX(&dspark::accumulate_stats));
}
