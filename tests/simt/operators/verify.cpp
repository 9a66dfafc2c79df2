// The verify operators on the emulator: what csrc/ops/verify/op.cpp does for a GPU, with CPU
// tensors for its memory. Operators of the namespace dspark_simt, with the schemas of dspark_ext.
#include "memory.h"
#include "ops/verify/launch.h"
#include "ops/verify/op.h"

namespace dspark::verify {
namespace {

void add_layout(const RowLayout& layout, Memory& memory) {
    memory.input(layout.query_start_loc, layout.batch + 1, "query_start_loc");
}

void add(const ScheduleArgs& args, Memory& memory) {
    const int64_t drafts = int64_t{args.batch} * args.num_positions;
    memory.input(args.confidence, drafts, "confidence");
    memory.input(args.lagged_confidence, drafts, "lagged_confidence");
    memory.input(args.capacity, args.batch, "capacity");
    memory.input(args.num_requests, 1, "num_requests");
    memory.input(args.budget, 1, "budget");
    memory.input(args.cost, args.cost_size, "cost");
    memory.output(args.verify_lens, args.batch, "verify_lens");
    memory.output(args.query_start_loc, args.batch + 1, "query_start_loc");
    memory.output(args.num_rows, 1, "num_rows");
    memory.output(args.expected_tokens, 1, "expected_tokens");
}

void add(const PackArgs& args, Memory& memory) {
    const int64_t batch = args.layout.batch;
    memory.input(args.anchor, batch, "anchor");
    memory.input(args.draft_token_ids, batch * args.num_drafts, "draft_token_ids");
    memory.input(args.seq_lens, batch, "seq_lens");
    memory.input(args.verify_lens, batch, "verify_lens");
    add_layout(args.layout, memory);
    memory.input(args.block_table, batch * args.num_blocks, "block_table");
    memory.output(args.input_ids, args.max_rows, "input_ids");
    memory.output(args.positions, args.max_rows, "positions");
    memory.output(args.request_ids, args.max_rows, "request_ids");
    memory.output(args.slot_mapping, args.max_rows, "slot_mapping");
    memory.output(args.sample_rows, args.max_rows, "sample_rows");
}

void add(const UnpackArgs& args, Memory& memory) {
    const int64_t row_bytes = args.row_size * args.element_size;
    memory.input(global_cast<const char>(args.rows), args.num_rows * row_bytes, "rows");
    memory.input(global_cast<const char>(args.fill), args.element_size, "fill");
    add_layout(args.layout, memory);
    const int64_t entries = args.layout.batch * (args.num_drafts + 1);
    memory.output(global_cast<char>(args.block), entries * row_bytes, "block");
}

void add(const CommitArgs& args, Memory& memory) {
    const int64_t batch = args.layout.batch;
    memory.input(args.num_emitted, batch, "num_emitted");
    memory.input(args.last_token, batch, "last_token");
    memory.input(args.seq_lens, batch, "seq_lens");
    add_layout(args.layout, memory);
    memory.output(args.new_seq_lens, batch, "new_seq_lens");
    memory.output(args.anchor, batch, "next_anchor");
    memory.output(args.row_kept, args.num_rows, "row_kept");
    memory.output(args.num_rejected, batch, "num_rejected");
}

void add(const AccumulateStatsArgs& args, Memory& memory) {
    memory.input(args.verify_lens, args.batch, "verify_lens");
    memory.input(args.num_accepted, args.batch, "num_accepted");
    memory.input(args.request_ids, args.batch, "request_ids");
    const int64_t drafts = args.num_requests * args.num_drafts;
    memory.updated(args.verified, drafts, "verified");
    memory.updated(args.reached, drafts, "reached");
    memory.updated(args.histogram, drafts + args.num_requests, "histogram");
}

struct OnEmulator {
    static constexpr bool kOnDevice = true;

    static void check_device(const char* op, const char* name, const Tensor& tensor) {
        Arg(op, name, tensor).on_cpu();
    }
    static void run(ScheduleArgs& args, const Tensor& like) {
        const Tensor workspace = allocate_workspace(args, like);
        Memory memory;
        memory.scratch(workspace.mutable_data_ptr(), workspace.numel());
        launch("schedule", args, memory, &VerifyLaunch::schedule);
    }
    static void run(const PackArgs& args, const Tensor&) {
        Memory memory;
        launch("pack", args, memory, &VerifyLaunch::pack);
    }
    static void run(const UnpackArgs& args, const Tensor&) {
        Memory memory;
        launch("unpack", args, memory, &VerifyLaunch::unpack);
    }
    static void run(const CommitArgs& args, const Tensor&) {
        Memory memory;
        launch("commit", args, memory, &VerifyLaunch::commit);
    }
    static void run(const AccumulateStatsArgs& args, const Tensor&) {
        Memory memory;
        launch("accumulate_stats", args, memory, &VerifyLaunch::accumulate_stats);
    }

  private:
    template <class Args>
    static void launch(const char* op, const Args& args, Memory& memory,
                       int (*VerifyLaunch::*sequence)(const Args&, LaunchTarget&)) {
        add(args, memory);
        memory.register_all();
        emulator::clear_error();
        LaunchTarget target = {nullptr};
        const int code = (simt::verify_launch().*sequence)(args, target);
        if (code != 0) fail(op, "the emulator", emulator::error_text(code));
    }
};

}  // namespace
}  // namespace dspark::verify

STABLE_TORCH_LIBRARY_IMPL(dspark_simt, CPU, m) {
    dspark::verify::Operators<dspark::verify::OnEmulator>::implement(m);
}
