// The sampling operators on the emulator: what csrc/ops/sampling/op.cpp does for a GPU, with CPU
// tensors for its memory. Operators of the namespace dspark_simt, with the schemas of dspark_ext.
//
// The kernels may touch what they are entitled to and nothing else: the rows of valid requests,
// each a buffer of its own, parameters, outputs and scratch. Outputs and scratch hold garbage
// before.
#include <cmath>

#include "memory.h"
#include "ops/sampling/op.h"

namespace dspark::sampling {
namespace {

// Memory of one call: besides, what the argument structs of this family describe.
class SamplingMemory : public Memory {
  public:
    void index(const IndexView& view, int64_t count, const char* name, int64_t first = 0) {
        const int64_t bytes = view.is_int64 ? 8 : 4;
        if (view.data == nullptr) return;
        const char* data = static_cast<const char*>(view.data.address());
        add(data + first * bytes, count * bytes, name, emulator::kReadOnly);
    }
    void row(const RowsView& view, int64_t request, int64_t row, const char* name) {
        if (view.data == nullptr) return;
        const int64_t bytes = view.dtype == FloatType::kFloat32 ? 4 : 2;
        const int64_t begin = request * view.request_stride + row * view.row_stride;
        const char* data = static_cast<const char*>(view.data.address());
        add(data + begin * bytes, view.vocab * bytes, name, emulator::kReadOnly);
    }
    void law(const LawArgs& law, int64_t count) {
        input(law.temperature, count, "temperature");
        index(law.top_k, count, "top_k");
        input(law.top_p, count, "top_p");
        input(law.min_p, count, "min_p");
    }
};

// ---- which rows the kernels may read; validity.h, written a second time for the host ------------

bool is_valid_law(const LawArgs& law, int64_t i) {
    const float temperature = law.temperature.address()[i];
    return temperature >= 0.0f && !std::isinf(temperature) &&
           (law.top_p == nullptr || !std::isnan(law.top_p.address()[i])) &&
           (law.min_p == nullptr || !std::isnan(law.min_p.address()[i]));
}

int64_t row_start(const VerifyArgs& args, int64_t b) {
    const void* data = args.query_start_loc.data.address();
    return args.query_start_loc.is_int64 ? static_cast<const int64_t*>(data)[b]
                                         : static_cast<const int32_t*>(data)[b];
}

bool is_valid_request(const VerifyArgs& args, int64_t b) {
    const int64_t begin = row_start(args, b);
    const int64_t end = row_start(args, b + 1);
    const float temperature = args.draft_temperature.address()[b];
    return begin >= 0 && end <= args.target_rows && end > begin &&
           end <= begin + args.num_drafts + 1 && is_valid_law(args.law, b) && temperature >= 0.0f &&
           !std::isinf(temperature);
}

void add_verify_inputs(const VerifyArgs& args, SamplingMemory& memory) {
    for (int64_t b = 0; b < args.batch; ++b) {
        if (!is_valid_request(args, b)) continue;
        const int64_t begin = row_start(args, b);
        const int64_t rows = row_start(args, b + 1) - begin;
        memory.index(args.draft_token_ids, rows - 1, "draft_token_ids", b * args.draft_ids_stride);
        for (int64_t i = 0; i < rows; ++i) {
            memory.row(args.target_logits, 0, begin + i, "target_logits");
            if (i + 1 == rows) break;
            memory.row(args.draft_logits, b, i, "draft_logits");
            memory.row(args.draft_probs, b, i, "draft_probs");
        }
    }
    const GivenStatistics& given = args.draft_statistics;
    const int64_t slots = args.batch * args.num_drafts;
    const int64_t tiles = slots * ((int64_t{args.draft_logits.vocab} + 4095) / 4096);
    memory.input(given.temperature, slots, "draft_statistics.temperature");
    memory.input(given.tile_max, tiles, "draft_statistics.tile_max");
    memory.input(given.tile_sum, tiles, "draft_statistics.tile_sum");
    memory.input(given.tile_nan, tiles, "draft_statistics.tile_nan");
    memory.index(args.query_start_loc, args.batch + 1, "query_start_loc");
    memory.law(args.law, args.batch);
    memory.input(args.draft_temperature, args.batch, "draft_temperature");
    memory.input(args.synthetic_rates, args.num_drafts, "synthetic_acceptance_rates");
    memory.input(args.seeds, args.batch, "seeds");
    memory.input(args.positions, args.batch, "positions");
    memory.input(args.uniforms, args.batch * (args.num_drafts + 1), "uniforms");
}

// ---- the backend of op.h ------------------------------------------------------------------------

struct OnEmulator {
    static constexpr bool kOnDevice = true;

    static void check_device(const char* op, const char* name, const Tensor& logits) {
        Arg(op, name, logits).on_cpu();
    }

    static void run_target_probs(TargetProbsArgs& args, const Tensor& logits) {
        SamplingMemory memory;
        add_rows(args, memory);
        memory.output(args.probs, args.rows * args.logits.vocab, "probs");
        launch("target_probs", args, logits, memory, &SamplingLaunch::target_probs);
    }

    static void run_sample(SampleArgs& args, const Tensor& logits) {
        SamplingMemory memory;
        add_rows(args, memory);
        memory.input(args.seeds, args.rows, "seeds");
        memory.input(args.positions, args.rows, "positions");
        memory.input(args.uniforms, args.rows, "uniforms");
        memory.input(args.slots, args.rows, "slots");
        memory.output(args.ids, args.rows, "ids");
        memory.output(args.logprobs, args.rows, "logprobs");
        launch("sample", args, logits, memory, &SamplingLaunch::sample);
    }

    static void run_rejection_sample(VerifyArgs& args, const Tensor& logits) {
        SamplingMemory memory;
        add_verify_inputs(args, memory);
        const int64_t emitted = args.batch * (args.num_drafts + 1);
        memory.output(args.token_ids, emitted, "token_ids");
        memory.output(args.num_accepted, args.batch, "num_accepted");
        memory.output(args.num_emitted, args.batch, "num_emitted");
        memory.output(args.last_token, args.batch, "last_token");
        memory.output(args.status, args.batch, "status");
        memory.output(args.logprobs, emitted, "logprobs");
        launch("rejection_sample", args, logits, memory, &SamplingLaunch::rejection_sample);
    }

    static void run_block_acceptance(VerifyArgs& args, const Tensor& logits) {
        SamplingMemory memory;
        add_verify_inputs(args, memory);
        const int64_t slots = args.batch * args.num_drafts;
        memory.output(args.prefix_prob, slots, "prefix_prob");
        memory.output(args.residual_mass, slots, "residual_mass");
        memory.output(args.accept_prob, slots, "accept_prob");
        launch("block_acceptance", args, logits, memory, &SamplingLaunch::block_acceptance);
    }

  private:
    template <class Args>
    static void add_rows(const Args& args, SamplingMemory& memory) {
        for (int64_t row = 0; row < args.rows; ++row) {
            if (is_valid_law(args.law, row)) memory.row(args.logits, 0, row, "logits");
        }
        memory.law(args.law, args.rows);
    }

    template <class Args>
    static void launch(const char* op, Args& args, const Tensor& logits, SamplingMemory& memory,
                       int (*SamplingLaunch::*sequence)(const Args&, LaunchTarget&)) {
        const Tensor workspace = allocate_workspace(args, logits);
        memory.scratch(workspace.mutable_data_ptr(), workspace.numel());
        memory.register_all();
        emulator::clear_error();
        LaunchTarget target = {nullptr};
        const int code = (simt::sampling_launch().*sequence)(args, target);
        refuse_too_many_blocks(op, code);
        if (code != 0) fail(op, "the emulator", emulator::error_text(code));
    }
};

}  // namespace
}  // namespace dspark::sampling

STABLE_TORCH_LIBRARY_IMPL(dspark_simt, CPU, m) {
    dspark::sampling::Operators<dspark::sampling::OnEmulator>::implement(m);
}
