// The draft operators on the emulator: what csrc/ops/draft/op.cpp does for a GPU, with CPU tensors
// for its memory. Operators of the namespace dspark_simt, with the schemas of dspark_ext.
#include "memory.h"
#include "ops/draft/op_shards.h"

namespace dspark::draft {
namespace {

// Arrays whose element type is known at run time only.
class DraftMemory : public Memory {
  public:
    void floats(FloatType type, Global<const void> data, int64_t count, const char* name,
                int64_t first = 0) {
        if (data == nullptr) return;
        const int64_t bytes = size_of(type);
        add(static_cast<const char*>(data.address()) + first * bytes, count * bytes, name,
            emulator::kReadOnly);
    }
    void result(FloatType type, Global<void> data, int64_t count, const char* name) {
        output(global_cast<char>(data), count * size_of(type), name);
    }

  private:
    static int64_t size_of(FloatType type) { return type == FloatType::kFloat32 ? 4 : 2; }
};

// Of every position the rows of the drafts, and no others.
void add(const MarkovCall& call, DraftMemory& memory) {
    const MarkovArgs& args = call.args;
    const int64_t batch = args.batch;
    for (int64_t b = 0; b < batch; ++b) {
        const int64_t first = b * args.num_positions;
        memory.floats(args.logits_type, args.base_logits, args.num_drafts * args.draft_vocab,
                      "base_logits", first * args.draft_vocab);
        memory.floats(args.hidden_type, args.hidden, args.num_drafts * args.hidden_size, "hidden",
                      first * args.hidden_size);
    }
    const int64_t rows = DSPARK_ISA::draft::head_rows(args);
    const int64_t row_size = DSPARK_ISA::draft::head_row_size(args);
    memory.floats(args.head_weight_type, args.head_weight, rows * row_size, "head_weight");
    memory.floats(args.head_bias_type, args.head_bias, rows, "head_bias");
    memory.floats(args.w1_type, args.w1, args.num_embeddings * args.rank, "w1");
    memory.floats(args.w2_type, args.w2, args.draft_vocab * args.rank, "w2");
    memory.input(args.anchor, batch, "anchor");
    memory.input(args.first_state, batch * args.rank, "first_state");
    memory.input(args.d2t, args.draft_vocab, "d2t");
    memory.input(args.temperature, batch, "temperature");
    memory.input(args.seeds, batch, "seeds");
    memory.input(args.positions, batch, "positions");
    const int64_t drafts = batch * args.num_drafts;
    memory.output(args.token_ids, drafts, "token_ids");
    memory.result(args.logits_type, args.logits, drafts * args.vocab, "logits");
    memory.result(args.w1_type, args.prev_embed, drafts * args.rank, "prev_embed");
    memory.output(args.last_state, batch * args.rank, "last_state");
    memory.output(args.row_temperature, drafts, "row_temperature");
    memory.output(args.tile_max, drafts * args.tiles, "tile_max");
    memory.output(args.tile_sum, drafts * args.tiles, "tile_sum");
    memory.output(args.tile_nan, drafts * args.tiles, "tile_nan");
}

void add(const RowStatisticsArgs& args, DraftMemory& memory) {
    memory.floats(args.logits_type, args.logits, args.rows * args.vocab, "logits");
    memory.input(args.temperature, args.rows, "temperature");
    memory.output(args.tile_max, args.rows * args.tiles, "tile_max");
    memory.output(args.tile_sum, args.rows * args.tiles, "tile_sum");
    memory.output(args.tile_nan, args.rows * args.tiles, "tile_nan");
}

void add(const DrawShardArgs& args, DraftMemory& memory) {
    memory.floats(args.logits_type, args.logits, args.rows * args.width, "logits");
    memory.input(args.tile_max, args.rows * args.tiles, "tile_max");
    memory.input(args.tile_sum, args.rows * args.tiles, "tile_sum");
    memory.input(args.temperature, args.rows, "temperature");
    memory.input(args.seeds, args.rows, "seeds");
    memory.input(args.positions, args.rows, "positions");
    memory.output(args.token_ids, args.rows, "token_ids");
}

void add(const ConfidenceArgs& args, DraftMemory& memory) {
    memory.floats(args.hidden_type, args.hidden, args.rows * args.hidden_size, "hidden");
    memory.floats(args.embed_type, args.prev_embed, args.rows * args.rank, "prev_embed");
    memory.floats(args.weight_type, args.weight, args.hidden_size + args.rank, "weight");
    memory.floats(args.bias_type, args.bias, 1, "bias");
    memory.input(args.temperatures, args.num_drafts, "temperatures");
    memory.output(args.confidence, args.rows, "confidence");
}

void add(const CalibrateArgs& args, DraftMemory& memory) {
    memory.input(args.conf_logits, args.rows, "conf_logits");
    memory.input(args.temperatures, args.num_drafts, "temperatures");
    memory.output(args.confidence, args.rows, "confidence");
}

struct OnEmulator {
    static constexpr bool kOnDevice = true;

    static void check_device(const char* op, const char* name, const Tensor& tensor) {
        Arg(op, name, tensor).on_cpu();
    }
    static void run(const MarkovArgs& args, const Tensor& like) {
        run_steps("markov_sample", args, like, &DraftLaunch::markov_sample);
    }
    static void run_logits(const MarkovArgs& args, const Tensor& like) {
        run_steps("markov_logits", args, like, &DraftLaunch::markov_logits);
    }
    static void run(const RowStatisticsArgs& args, const Tensor&) {
        DraftMemory memory;
        launch("row_statistics", args, memory, &DraftLaunch::row_statistics);
    }
    static void run(const DrawShardArgs& args, const Tensor&) {
        DraftMemory memory;
        launch("draw_shard", args, memory, &DraftLaunch::draw_shard);
    }
    static void run(const ConfidenceArgs& args, const Tensor&) {
        DraftMemory memory;
        launch("confidence", args, memory, &DraftLaunch::confidence);
    }
    static void run(const CalibrateArgs& args, const Tensor&) {
        DraftMemory memory;
        launch("calibrate", args, memory, &DraftLaunch::calibrate);
    }

  private:
    static void run_steps(const char* op, const MarkovArgs& args, const Tensor& like,
                          int (*DraftLaunch::*sequence)(const MarkovCall&, LaunchTarget&)) {
        MarkovCall call = {args, {}};
        const Tensor workspace = allocate_workspace(call, like);
        DraftMemory memory;
        memory.scratch(workspace.mutable_data_ptr(), workspace.numel());
        launch(op, call, memory, sequence);
    }

    template <class Args>
    static void launch(const char* op, const Args& args, DraftMemory& memory,
                       int (*DraftLaunch::*sequence)(const Args&, LaunchTarget&)) {
        add(args, memory);
        memory.register_all();
        emulator::clear_error();
        LaunchTarget target = {nullptr};
        const int code = (simt::draft_launch().*sequence)(args, target);
        refuse_too_many_blocks(op, "the emulator", code);
        if (code != 0) fail(op, "the emulator", emulator::error_text(code));
    }
};

}  // namespace
}  // namespace dspark::draft

STABLE_TORCH_LIBRARY_IMPL(dspark_simt, CPU, m) {
    dspark::draft::Operators<dspark::draft::OnEmulator>::implement(m);
    dspark::draft::ShardOperators<dspark::draft::OnEmulator>::implement(m);
}
