// Checks, allocation and dispatch of the verify family.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <climits>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "ops/verify/cpu.h"

namespace dspark {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

std::string shape_text(const std::vector<int64_t>& shape) {
    std::string text = "[";
    for (size_t i = 0; i < shape.size(); ++i) {
        text += (i > 0 ? ", " : "") + (shape[i] < 0 ? "*" : std::to_string(shape[i]));
    }
    return text + "]";
}

// Shape (-1 matches any size) and dtype of one argument.
void check_tensor(const char* op, const char* name, const Tensor& tensor, ScalarType dtype,
                  const std::vector<int64_t>& shape) {
    const auto sizes = tensor.sizes();
    const std::vector<int64_t> got(sizes.begin(), sizes.end());
    bool matches = got.size() == shape.size();
    for (size_t i = 0; matches && i < got.size(); ++i) {
        matches = shape[i] < 0 || shape[i] == got[i];
    }
    STD_TORCH_CHECK(matches, "dspark_ext.", op, ": ", name, ": expected shape ", shape_text(shape),
                    ", got ", shape_text(got));
    STD_TORCH_CHECK(tensor.scalar_type() == dtype, "dspark_ext.", op, ": ", name, ": expected ",
                    torch::headeronly::toString(dtype), ", got ",
                    torch::headeronly::toString(tensor.scalar_type()));
}

Tensor new_tensor(const Tensor& like, const std::vector<int64_t>& shape, ScalarType dtype) {
    return torch::stable::new_empty(like, shape, dtype);
}

ScheduleMode parse_mode(const std::string& mode) {
    if (mode == "fixed") return ScheduleMode::kFixed;
    if (mode == "threshold") return ScheduleMode::kThreshold;
    STD_TORCH_CHECK(mode == "early_stop",
                    "dspark_ext.schedule: mode: expected fixed, threshold or "
                    "early_stop, got ",
                    mode);
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
    const bool early_stop = args.mode == ScheduleMode::kEarlyStop;
    STD_TORCH_CHECK(confidence || fixed, "dspark_ext.schedule: confidence: mode ", mode,
                    " needs confidences, got None; only mode fixed works without");
    STD_TORCH_CHECK(confidence || capacity,
                    "dspark_ext.schedule: without confidence the number of requests is taken from "
                    "capacity: expected int32 [B], got None");
    if (confidence) check_tensor(op, "confidence", *confidence, ScalarType::Float, {-1, -1});
    const int64_t batch = confidence ? confidence->size(0) : capacity->numel();
    const int64_t positions = confidence ? confidence->size(1) : limits.num_drafts;
    if (capacity) check_tensor(op, "capacity", *capacity, ScalarType::Int, {batch});
    STD_TORCH_CHECK(0 <= limits.num_drafts && limits.num_drafts <= positions,
                    "dspark_ext.schedule: num_drafts: expected 0 to K=", positions, ", got ",
                    limits.num_drafts);
    STD_TORCH_CHECK(limits.min_drafts >= 0, "dspark_ext.schedule: min_drafts: expected >= 0, got ",
                    limits.min_drafts);
    STD_TORCH_CHECK(limits.num_other_rows >= 0,
                    "dspark_ext.schedule: num_other_rows: expected >= 0, got ",
                    limits.num_other_rows);
    STD_TORCH_CHECK(limits.max_rows < 0 || limits.max_rows >= batch,
                    "dspark_ext.schedule: max_rows: every request needs the row of its anchor: "
                    "expected at least B=",
                    batch, ", got ", limits.max_rows);
    STD_TORCH_CHECK(batch * (positions + 1) < INT32_MAX,
                    "dspark_ext.schedule: B*(K+1)=", batch * (positions + 1),
                    " rows do not fit into int32");
    STD_TORCH_CHECK(args.mode != ScheduleMode::kThreshold || (threshold >= 0 && threshold <= 1),
                    "dspark_ext.schedule: threshold: expected a number in [0, 1], got ", threshold);
    STD_TORCH_CHECK(cost || !early_stop,
                    "dspark_ext.schedule: cost: mode early_stop weighs drafts against the measured "
                    "time of a pass: expected a CostTable (see profile_cost_table), got None");
    if (cost) {
        check_tensor(op, "cost", *cost, ScalarType::Double, {-1});
        STD_TORCH_CHECK(cost->size(0) >= 2,
                        "dspark_ext.schedule: cost: expected seconds for 0, 1, "
                        "... rows, at least 2 entries, got ",
                        cost->size(0));
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
    if (confidence) confidence = torch::stable::contiguous(*confidence);
    if (capacity) capacity = torch::stable::contiguous(*capacity);
    if (cost) cost = torch::stable::contiguous(*cost);
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

void check_faults(const char* op, VerifyCheck check) {
    const char* what = "";
    switch (check.fault) {
        case VerifyFault::kNone:
            return;
        case VerifyFault::kAnchor:
            what = "anchor, seq_lens: expected a token id and a position, both >= 0";
            break;
        case VerifyFault::kLength:
            what = "verify_lens: expected 0 to K drafts";
            break;
        case VerifyFault::kRows:
            what =
                "query_start_loc: expected verify_lens + 1 rows for each request in order, "
                "ending within max_rows";
            break;
        case VerifyFault::kBlock:
            what = "block_table: no block for a position of the request";
            break;
        case VerifyFault::kCount:
            what =
                "accepted drafts: expected 0 to the number verified (emitted tokens: 0 to the "
                "number of rows)";
            break;
        case VerifyFault::kSlot:
            what = "request_ids: expected an id below num_requests";
            break;
    }
    STD_TORCH_CHECK(false, "dspark_ext.", op, ": ", what, "; wrong at request ", check.request);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> pack(Tensor anchor, Tensor draft_token_ids,
                                                Tensor seq_lens, Tensor verify_lens,
                                                Tensor query_start_loc, int64_t max_rows,
                                                std::optional<Tensor> block_table,
                                                int64_t block_size) {
    const char* op = "pack";
    check_tensor(op, "draft_token_ids", draft_token_ids, ScalarType::Long, {-1, -1});
    const int64_t batch = draft_token_ids.size(0);
    check_tensor(op, "anchor", anchor, ScalarType::Long, {batch});
    check_tensor(op, "seq_lens", seq_lens, ScalarType::Long, {batch});
    check_tensor(op, "verify_lens", verify_lens, ScalarType::Int, {batch});
    check_tensor(op, "query_start_loc", query_start_loc, ScalarType::Int, {batch + 1});
    STD_TORCH_CHECK(max_rows >= 0, "dspark_ext.pack: max_rows: expected >= 0, got ", max_rows);
    if (block_table) {
        check_tensor(op, "block_table", *block_table, ScalarType::Int, {batch, -1});
        STD_TORCH_CHECK(block_size > 0,
                        "dspark_ext.pack: block_size: expected >= 1 with a "
                        "block_table, got ",
                        block_size);
        block_table = torch::stable::contiguous(*block_table);
    }
    anchor = torch::stable::contiguous(anchor);
    draft_token_ids = torch::stable::contiguous(draft_token_ids);
    seq_lens = torch::stable::contiguous(seq_lens);
    verify_lens = torch::stable::contiguous(verify_lens);
    query_start_loc = torch::stable::contiguous(query_start_loc);
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
    check_tensor(op, "num_emitted", num_emitted, ScalarType::Int, {-1});
    const int64_t batch = num_emitted.size(0);
    check_tensor(op, "last_token", last_token, ScalarType::Long, {batch});
    check_tensor(op, "seq_lens", seq_lens, ScalarType::Long, {batch});
    check_tensor(op, "query_start_loc", query_start_loc, ScalarType::Int, {batch + 1});
    STD_TORCH_CHECK(num_rows >= 0, "dspark_ext.commit: num_rows: expected >= 0, got ", num_rows);
    num_emitted = torch::stable::contiguous(num_emitted);
    last_token = torch::stable::contiguous(last_token);
    seq_lens = torch::stable::contiguous(seq_lens);
    query_start_loc = torch::stable::contiguous(query_start_loc);
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

void check_counter(const char* name, const Tensor& counter, const std::vector<int64_t>& shape) {
    check_tensor("accumulate_stats", name, counter, ScalarType::Long, shape);
    STD_TORCH_CHECK(counter.is_contiguous(), "dspark_ext.accumulate_stats: ", name,
                    ": expected a contiguous tensor");
}

void accumulate_stats(Tensor verify_lens, Tensor num_accepted, std::optional<Tensor> request_ids,
                      Tensor verified, Tensor reached, Tensor histogram) {
    const char* op = "accumulate_stats";
    check_tensor(op, "verify_lens", verify_lens, ScalarType::Int, {-1});
    const int64_t batch = verify_lens.size(0);
    check_tensor(op, "num_accepted", num_accepted, ScalarType::Int, {batch});
    check_counter("verified", verified, {-1, -1});
    const int64_t num_requests = verified.size(0), num_drafts = verified.size(1);
    check_counter("reached", reached, {num_requests, num_drafts});
    check_counter("histogram", histogram, {num_requests, num_drafts + 1});
    if (request_ids) {
        check_tensor(op, "request_ids", *request_ids, ScalarType::Int, {batch});
        request_ids = torch::stable::contiguous(*request_ids);
    } else {
        STD_TORCH_CHECK(batch <= num_requests,
                        "dspark_ext.accumulate_stats: verify_lens: expected "
                        "at most num_requests=",
                        num_requests, " without request_ids, got ", batch);
    }
    verify_lens = torch::stable::contiguous(verify_lens);
    num_accepted = torch::stable::contiguous(num_accepted);
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
