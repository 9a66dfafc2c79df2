// The operators of the verify family: checks and allocation, then the kernels of a backend.
//
// A Backend is a struct of static members:
//     kOnDevice                        the kernels are those of a GPU, with their limits
//     check_device(op, name, tensor)   fails unless the backend serves the tensor's device
//     run(args, like)                  for each argument struct; `like` is on the device
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <string>
#include <tuple>

#include "ops/verify/checks.h"
#include "ops/verify/workspace.h"

namespace dspark::verify {

template <class Backend>
struct Operators {
    static Call call(const char* op, const char* name, const Tensor& like) {
        Backend::check_device(op, name, like);
        return {op, like};
    }

    template <class T>
    static Tensor output(const Tensor& like, host::Shape shape, ScalarType dtype, Global<T>& data) {
        Tensor tensor = new_tensor(like, shape, dtype);
        data = static_cast<T*>(tensor.mutable_data_ptr());
        return tensor;
    }

    static std::tuple<Tensor, Tensor, Tensor, Tensor> schedule(
        OptionalTensor confidence, host::Text mode, OptionalTensor capacity, OptionalTensor cost,
        const OptionalTensor& budget, OptionalTensor lagged_confidence,
        const OptionalTensor& num_requests, double threshold, int64_t num_drafts,
        int64_t min_drafts, int64_t max_rows, int64_t num_other_rows) {
        const char* op = "schedule";
        if (!confidence && mode != "fixed") {
            fail(op, "confidence", "mode " + mode + " needs float32 [B, K], got None");
        }
        if (!confidence && !capacity) {
            fail(op, "capacity", "without confidence it tells B: expected int32 [B], got None");
        }
        if (confidence) Arg(op, "confidence", *confidence).shape({{"B"}, {"K"}});
        confidence = dense(confidence);
        lagged_confidence = dense(lagged_confidence);
        capacity = dense(capacity);
        cost = dense(cost);
        const Tensor& like = confidence ? *confidence : *capacity;
        ScheduleArgs args = check_schedule(
            call(op, confidence ? "confidence" : "capacity", like),
            {confidence, mode, capacity, cost, budget, lagged_confidence, num_requests, threshold,
             num_drafts, min_drafts, max_rows, num_other_rows});
        Tensor verify_lens = output(like, {args.batch}, ScalarType::Int, args.verify_lens);
        Tensor query_start_loc =
            output(like, {args.batch + 1}, ScalarType::Int, args.query_start_loc);
        Tensor num_rows = output(like, {}, ScalarType::Int, args.num_rows);
        Tensor expected_tokens = output(like, {}, ScalarType::Float, args.expected_tokens);
        if (Backend::kOnDevice && args.num_positions > kMostDeviceDrafts) {
            fail(op, "confidence",
                 "expected at most K=" + std::to_string(kMostDeviceDrafts) + " on a GPU, got " +
                     std::to_string(args.num_positions));
        }
        Backend::run(args, like);
        return {verify_lens, query_start_loc, num_rows, expected_tokens};
    }

    static std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> pack(
        const Tensor& anchor, const Tensor& draft_token_ids, const Tensor& seq_lens,
        const Tensor& verify_lens, const Tensor& query_start_loc, int64_t max_rows,
        const OptionalTensor& block_table, int64_t block_size, int64_t rows_per_request) {
        const Call op = call("pack", "draft_token_ids", draft_token_ids);
        Arg(op.op, "draft_token_ids", draft_token_ids).shape({{"B"}, {"K"}});
        const int64_t batch = draft_token_ids.size(0);
        const host::Dim requests = {"B", batch};
        const Tensor dense_ids[] = {dense(anchor), dense(draft_token_ids), dense(seq_lens),
                                    dense(verify_lens), dense(query_start_loc)};
        const OptionalTensor dense_table = dense(block_table);
        PackArgs args = {};
        args.anchor = op.input<int64_t>("anchor", dense_ids[0], ScalarType::Long, {requests});
        args.draft_token_ids =
            op.input<int64_t>("draft_token_ids", dense_ids[1], ScalarType::Long, {requests, {"K"}});
        args.seq_lens = op.input<int64_t>("seq_lens", dense_ids[2], ScalarType::Long, {requests});
        args.verify_lens =
            op.input<int32_t>("verify_lens", dense_ids[3], ScalarType::Int, {requests});
        op.at_least("max_rows", max_rows, 0);
        args.layout = check_layout(op, dense_ids[4], batch, rows_per_request, max_rows);
        args.block_table = op.optional_input<int32_t>("block_table", dense_table, ScalarType::Int,
                                                      {requests, {"num_blocks"}});
        if (dense_table) {
            op.at_least("block_size", block_size, 1);
            args.num_blocks = dense_table->size(1);
            args.block_size = block_size;
        }
        args.num_drafts = draft_token_ids.size(1);
        args.max_rows = max_rows;
        Tensor input_ids = output(anchor, {max_rows}, ScalarType::Long, args.input_ids);
        Tensor positions = output(anchor, {max_rows}, ScalarType::Long, args.positions);
        Tensor request_ids = output(anchor, {max_rows}, ScalarType::Int, args.request_ids);
        Tensor slot_mapping = output(anchor, {max_rows}, ScalarType::Long, args.slot_mapping);
        Tensor sample_rows = output(anchor, {max_rows}, ScalarType::Long, args.sample_rows);
        Backend::run(args, anchor);
        return {input_ids, positions, request_ids, slot_mapping, sample_rows};
    }

    static Tensor unpack(const Tensor& rows, const Tensor& fill, const Tensor& query_start_loc,
                         int64_t num_drafts, int64_t rows_per_request) {
        const Call op = call("unpack", "rows", rows);
        if (rows.dim() < 1) fail(op.op, "rows", "expected shape [max_rows, ...], got []");
        if (query_start_loc.numel() < 1) fail(op.op, "query_start_loc", "expected shape [B+1]");
        op.at_least("num_drafts", num_drafts, 0);
        const Tensor source = dense(rows);
        const Tensor starts = dense(query_start_loc);
        const int64_t batch = query_start_loc.numel() - 1;
        UnpackArgs args = {};
        args.rows = source.const_data_ptr();
        args.fill = op.input<void>("fill", fill, rows.scalar_type(), {});
        args.num_rows = rows.size(0);
        args.layout = check_layout(op, starts, batch, rows_per_request, args.num_rows);
        args.num_drafts = num_drafts;
        args.element_size = rows.element_size();
        args.row_size = 1;
        std::vector<int64_t> shape = {batch, num_drafts + 1};
        for (int64_t d = 1; d < rows.dim(); ++d) {
            shape.push_back(rows.size(d));
            args.row_size *= rows.size(d);
        }
        Tensor block = new_tensor(rows, shape, rows.scalar_type());
        args.block = block.mutable_data_ptr();
        args.unit = common_unit(source.const_data_ptr(), block.const_data_ptr(),
                                args.row_size * args.element_size);
        Backend::run(args, rows);
        return block;
    }

    static std::tuple<Tensor, Tensor, Tensor, Tensor> commit(
        const Tensor& num_emitted, const Tensor& last_token, const Tensor& seq_lens,
        const Tensor& query_start_loc, int64_t num_rows, int64_t rows_per_request) {
        const Call op = call("commit", "num_emitted", num_emitted);
        Arg(op.op, "num_emitted", num_emitted).shape({{"B"}});
        const int64_t batch = num_emitted.size(0);
        const host::Dim requests = {"B", batch};
        const Tensor dense_inputs[] = {dense(num_emitted), dense(last_token), dense(seq_lens),
                                       dense(query_start_loc)};
        CommitArgs args = {};
        args.num_emitted =
            op.input<int32_t>("num_emitted", dense_inputs[0], ScalarType::Int, {requests});
        args.last_token =
            op.input<int64_t>("last_token", dense_inputs[1], ScalarType::Long, {requests});
        args.seq_lens =
            op.input<int64_t>("seq_lens", dense_inputs[2], ScalarType::Long, {requests});
        op.at_least("num_rows", num_rows, 0);
        args.layout = check_layout(op, dense_inputs[3], batch, rows_per_request, num_rows);
        args.num_rows = num_rows;
        Tensor new_seq_lens = output(seq_lens, {batch}, ScalarType::Long, args.new_seq_lens);
        Tensor anchor = output(seq_lens, {batch}, ScalarType::Long, args.anchor);
        Tensor row_kept = output(seq_lens, {num_rows}, ScalarType::Bool, args.row_kept);
        Tensor num_rejected = output(seq_lens, {batch}, ScalarType::Int, args.num_rejected);
        Backend::run(args, seq_lens);
        return {new_seq_lens, anchor, row_kept, num_rejected};
    }

    static void accumulate_stats(const Tensor& verify_lens, const Tensor& num_accepted,
                                 const OptionalTensor& request_ids, const Tensor& verified,
                                 const Tensor& reached, const Tensor& histogram) {
        const Call op = call("accumulate_stats", "verify_lens", verify_lens);
        Arg(op.op, "verify_lens", verify_lens).shape({{"B"}});
        Arg(op.op, "verified", verified).shape({{"R"}, {"K"}});
        const host::Dim requests = {"B", verify_lens.size(0)};
        const Tensor lens = dense(verify_lens);
        const Tensor accepted = dense(num_accepted);
        const OptionalTensor ids = dense(request_ids);
        AccumulateStatsArgs args = {};
        args.batch = requests.size;
        args.num_requests = verified.size(0);
        args.num_drafts = verified.size(1);
        args.verify_lens = op.input<int32_t>("verify_lens", lens, ScalarType::Int, {requests});
        args.num_accepted =
            op.input<int32_t>("num_accepted", accepted, ScalarType::Int, {requests});
        args.request_ids =
            op.optional_input<int32_t>("request_ids", ids, ScalarType::Int, {requests});
        const host::Dim slots = {"R", args.num_requests};
        const host::Dim drafts = {"K", args.num_drafts};
        args.verified = op.counter<int64_t>("verified", verified, {slots, drafts});
        args.reached = op.counter<int64_t>("reached", reached, {slots, drafts});
        args.histogram =
            op.counter<int64_t>("histogram", histogram, {slots, {"K+1", args.num_drafts + 1}});
        if (!ids)
            op.at_least("num_requests", args.num_requests, args.batch, "without request_ids: ");
        Backend::run(args, verify_lens);
    }

    // For a dispatch key whose tensors the backend serves.
    template <class Library>
    static void implement(Library& m) {
        m.impl("schedule", TORCH_BOX(&schedule));
        m.impl("pack", TORCH_BOX(&pack));
        m.impl("unpack", TORCH_BOX(&unpack));
        m.impl("commit", TORCH_BOX(&commit));
        m.impl("accumulate_stats", TORCH_BOX(&accumulate_stats));
    }
};

// Puts the scratch of a call into one allocation on the device of `like`. It may be freed as soon
// as the kernels are launched: torch reuses it in the order of the stream.
inline Tensor allocate_workspace(ScheduleArgs& args, const Tensor& like) {
    const int64_t bytes = place_workspace(args, nullptr);
    Tensor workspace = new_tensor(like, {bytes}, ScalarType::Byte);
    place_workspace(args, static_cast<char*>(workspace.mutable_data_ptr()));
    return workspace;
}

}  // namespace dspark::verify
