// The operators of the expert layer on the emulator: what csrc/ops/moe/op_experts.cpp does for a
// GPU, with CPU tensors for its memory.
#include "memory.h"
#include "ops/moe/launch_experts.h"
#include "ops/moe/op_experts.h"

namespace dspark::experts {
namespace {

int64_t bytes_of(FloatType dtype) {
    return dtype == FloatType::kFloat32 ? 4 : 2;
}

// Rows with a distance: each a buffer of its own, so that the gaps are out of bounds.
class ExpertMemory : public Memory {
  public:
    void rows(const RowsIn& rows, int64_t count, int64_t size, FloatType dtype, const char* name) {
        const char* begin = static_cast<const char*>(rows.data.address());
        for (int64_t row = 0; row < count; ++row) {
            add(begin + row * rows.stride * bytes_of(dtype), size * bytes_of(dtype), name,
                emulator::kReadOnly);
        }
    }
};

void add(const GroupedGemmArgs& args, ExpertMemory& memory) {
    const ExpertWeights& weight = args.weight;
    const int64_t tokens = args.rows.num_tokens;
    const int64_t capacity = args.rows.capacity;
    memory.rows(args.x, args.gather ? tokens : capacity, weight.columns, args.x_dtype, "x");
    memory.input(args.rows.sorted, capacity, "sorted");
    memory.input(args.tiles.expert, args.tiles.count, "tile_expert");
    memory.input(args.tiles.row, args.tiles.count, "tile_row");
    memory.input(args.tiles.size, args.tiles.count, "tile_size");
    const bool has_panels = weight.layout == WeightLayout::kPanels;
    const int64_t panels = (weight.rows + 63) / 64;
    memory.input(global_cast<const char>(weight.data),
                 weight.num_experts * (has_panels ? panels * ((weight.row_bytes + 127) / 128) * 8192
                                                  : weight.rows * weight.row_bytes),
                 "weight");
    const int64_t scales = weight.num_experts * (has_panels && weight.format == WeightFormat::kMxFp4
                                                     ? panels * ((weight.columns + 255) / 256) * 512
                                                     : weight.scale_rows * weight.scale_columns);
    memory.input(global_cast<const char>(weight.scale), scales * (weight.scale_is_e8m0 ? 1 : 4),
                 "scales");
    memory.output(global_cast<char>(args.out),
                  capacity * out_columns(args.activation, weight.rows) * bytes_of(args.out_dtype),
                  "out");
}

void add(const SwigluArgs& args, ExpertMemory& memory) {
    memory.rows(args.gate_up, args.num_rows, 2 * args.width, args.dtype, "gate_up");
    memory.output(global_cast<char>(args.out), args.num_rows * args.width * bytes_of(args.dtype),
                  "out");
}

struct OnEmulator {
    static void check_device(const char* op, const char* name, const Tensor& tensor) {
        Arg(op, name, tensor).on_cpu();
    }
    static void check_layout(WeightLayout layout) { check_gpu_layout(layout); }
    static void run(const GroupedGemmArgs& args, const Tensor&) {
        launch(kGemm, args, &ExpertsLaunch::grouped_gemm);
    }
    static void run(const SwigluArgs& args, const Tensor&) {
        launch(kSwiglu, args, &ExpertsLaunch::swiglu);
    }

  private:
    template <class Args>
    static void launch(const char* op, const Args& args,
                       int (*ExpertsLaunch::*sequence)(const Args&, LaunchTarget&)) {
        ExpertMemory memory;
        add(args, memory);
        memory.register_all();
        emulator::clear_error();
        LaunchTarget target = {nullptr};
        const int code = (simt::experts_launch().*sequence)(args, target);
        if (code != 0) fail(op, "the emulator", emulator::error_text(code));
    }
};

}  // namespace
}  // namespace dspark::experts

STABLE_TORCH_LIBRARY_IMPL(dspark_simt, CPU, m) {
    dspark::experts::Operators<dspark::experts::OnEmulator>::implement(m);
}
