// From tensors to the argument structs of the verify kernels: every check of the family.
#pragma once

#include <optional>
#include <string>

#include "host/check.h"
#include "host/tensor.h"
#include "ops/verify/args.h"

namespace dspark::verify {

using host::Arg;
using host::dense;
using host::Dims;
using host::fail;
using host::new_tensor;
using host::OptionalTensor;
using host::ScalarType;
using host::Tensor;

// One call of an operator.
struct Call {
    const char* op;
    const Tensor& like;  // every tensor is on its device

    template <class T>
    const T* input(const char* name, const Tensor& tensor, ScalarType dtype, Dims shape) const {
        Arg(op, name, tensor).on_device_of(like).dtype({dtype}).shape(shape).dense();
        return static_cast<const T*>(tensor.const_data_ptr());
    }
    template <class T>
    const T* optional_input(const char* name, const OptionalTensor& tensor, ScalarType dtype,
                            Dims shape) const {
        return tensor ? input<T>(name, *tensor, dtype, shape) : nullptr;
    }
    template <class T>
    T* counter(const char* name, const Tensor& tensor, Dims shape) const {
        Arg(op, name, tensor).on_device_of(like).dtype({ScalarType::Long}).shape(shape).dense();
        return static_cast<T*>(tensor.mutable_data_ptr());
    }
    void at_least(const char* name, int64_t value, int64_t low, const char* why = "") const {
        if (value >= low) return;
        fail(op, name,
             std::string(why) + "expected at least " + std::to_string(low) + ", got " +
                 std::to_string(value));
    }
};

// ---- schedule -----------------------------------------------------------------------------------

inline ScheduleMode parse_mode(const std::string& mode) {
    if (mode == "fixed") return ScheduleMode::kFixed;
    if (mode == "threshold") return ScheduleMode::kThreshold;
    if (mode == "early_stop") return ScheduleMode::kEarlyStop;
    if (mode == "budget") return ScheduleMode::kBudget;
    if (mode == "lagged") return ScheduleMode::kLagged;
    if (mode == "uniform") return ScheduleMode::kUniform;
    fail("schedule", "mode",
         "expected early_stop, budget, lagged, uniform, threshold or fixed, got " + mode);
}

struct ScheduleInputs {
    const OptionalTensor& confidence;
    const std::string& mode;
    const OptionalTensor& capacity;
    const OptionalTensor& cost;
    const OptionalTensor& budget;
    const OptionalTensor& lagged_confidence;
    const OptionalTensor& num_requests;
    double threshold;
    int64_t num_drafts, min_drafts, max_rows, num_other_rows;
};

// What a mode needs and what it does not take.
inline void check_mode(const Call& call, const ScheduleInputs& in, ScheduleMode mode) {
    const std::string named = "mode " + in.mode;
    if (mode == ScheduleMode::kThreshold && !(in.threshold >= 0.0 && in.threshold <= 1.0)) {
        fail(call.op, "threshold",
             "expected a number in [0, 1], got " + std::to_string(in.threshold));
    }
    const bool uses_cost = mode == ScheduleMode::kEarlyStop || mode == ScheduleMode::kLagged ||
                           mode == ScheduleMode::kUniform;
    if (uses_cost && !in.cost) {
        fail(call.op, "cost",
             named +
                 " weighs drafts against the measured time of a pass: expected a CostTable "
                 "(see profile_cost_table), got None");
    }
    if ((mode == ScheduleMode::kBudget) != in.budget.has_value()) {
        fail(call.op, "budget",
             in.budget ? named + " does not use it, expected None"
                       : named + " needs int32 [], the rows of the pass, got None");
    }
    if (mode == ScheduleMode::kLagged && !in.lagged_confidence) {
        fail(call.op, "lagged_confidence",
             named + " needs float32 [B, K] of the previous step, got None");
    }
    if (in.lagged_confidence && mode != ScheduleMode::kLagged && mode != ScheduleMode::kUniform) {
        fail(call.op, "lagged_confidence", named + " does not use it, expected None");
    }
}

inline void check_limits(const Call& call, const ScheduleInputs& in, int64_t batch,
                         int64_t positions) {
    call.at_least("num_drafts", in.num_drafts, 0);
    if (in.num_drafts > positions) {
        fail(call.op, "num_drafts",
             "expected at most K=" + std::to_string(positions) + ", got " +
                 std::to_string(in.num_drafts));
    }
    call.at_least("min_drafts", in.min_drafts, 0);
    call.at_least("num_other_rows", in.num_other_rows, 0);
    if (in.num_other_rows > INT32_MAX) {
        fail(call.op, "num_other_rows",
             "expected at most 2^31 - 1, got " + std::to_string(in.num_other_rows));
    }
    if (in.max_rows >= 0) {
        call.at_least("max_rows", in.max_rows, batch, "every anchor needs a row: ");
    }
    if (positions > kMostCandidates || batch * (positions + 1) > kMostCandidates) {
        fail(call.op, in.confidence ? "confidence" : "num_drafts",
             "expected B * (K + 1) of at most " + std::to_string(kMostCandidates) +
                 ", got B=" + std::to_string(batch) + ", K=" + std::to_string(positions));
    }
}

// Checks the inputs, which are dense, against each other.
inline ScheduleArgs check_schedule(const Call& call, const ScheduleInputs& in) {
    ScheduleArgs args = {};
    args.mode = parse_mode(in.mode);
    const int64_t batch = in.confidence ? in.confidence->size(0) : in.capacity->numel();
    const int64_t positions = in.confidence ? in.confidence->size(1) : in.num_drafts;
    const host::Dim requests = {"B", batch};
    check_mode(call, in, args.mode);
    check_limits(call, in, batch, positions);
    args.confidence =
        call.optional_input<float>("confidence", in.confidence, ScalarType::Float, {{"B"}, {"K"}});
    args.lagged_confidence = call.optional_input<float>(
        "lagged_confidence", in.lagged_confidence, ScalarType::Float, {requests, {"K", positions}});
    args.capacity =
        call.optional_input<int32_t>("capacity", in.capacity, ScalarType::Int, {requests});
    args.num_requests =
        call.optional_input<int32_t>("num_requests", in.num_requests, ScalarType::Int, {});
    args.budget = call.optional_input<int32_t>("budget", in.budget, ScalarType::Int, {});
    args.cost = call.optional_input<double>("cost", in.cost, ScalarType::Double, {{"rows"}});
    if (in.cost) {
        args.cost_size = in.cost->size(0);
        call.at_least("cost", args.cost_size, 2, "number of entries: ");
    }
    args.threshold = static_cast<float>(in.threshold);
    args.batch = static_cast<int32_t>(batch);
    args.num_positions = static_cast<int32_t>(positions);
    args.num_drafts = static_cast<int32_t>(in.num_drafts);
    args.min_drafts = static_cast<int32_t>(in.min_drafts < positions ? in.min_drafts : positions);
    args.max_rows = in.max_rows < 0 ? INT64_MAX : in.max_rows;
    args.num_other_rows = in.num_other_rows;
    return args;
}

// ---- the rows of a pass -------------------------------------------------------------------------

inline RowLayout check_layout(const Call& call, const Tensor& query_start_loc, int64_t batch,
                              int64_t rows_per_request, int64_t num_rows) {
    call.at_least("rows_per_request", rows_per_request, 0);
    if (rows_per_request > 0 && batch > 0) {
        call.at_least("max_rows", num_rows / batch, rows_per_request, "rows for each request: ");
    }
    return {call.input<int32_t>("query_start_loc", query_start_loc, ScalarType::Int,
                                {{"B+1", batch + 1}}),
            batch, rows_per_request};
}

// The most bytes, up to 16, that divide two addresses and a distance.
inline int64_t common_unit(const void* a, const void* b, int64_t bytes) {
    const uint64_t all = reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b) |
                         static_cast<uint64_t>(bytes);
    int64_t unit = 16;
    while (all % static_cast<uint64_t>(unit) != 0) unit /= 2;
    return unit;
}

struct Complaint {
    const char* argument;
    const char* expected;
};

inline Complaint complaint_about(VerifyFault fault) {
    switch (fault) {
        case VerifyFault::kNone:
            break;
        case VerifyFault::kAnchor:
            return {"anchor", "a token id >= 0"};
        case VerifyFault::kPosition:
            return {"seq_lens", "a length >= 0 that can grow"};
        case VerifyFault::kLength:
            return {"verify_lens", "0 to K drafts"};
        case VerifyFault::kRows:
            return {"query_start_loc", "a row per anchor and draft, in order, within max_rows"};
        case VerifyFault::kRowsPerRequest:
            return {"rows_per_request", "room for the anchor and every draft"};
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

inline void check_faults(const char* op, VerifyCheck check) {
    if (check.fault == VerifyFault::kNone) return;
    const Complaint complaint = complaint_about(check.fault);
    fail(op, complaint.argument,
         std::string("expected ") + complaint.expected + ", got " + std::to_string(check.got) +
             " for request " + std::to_string(check.request));
}

}  // namespace dspark::verify
