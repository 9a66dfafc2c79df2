// The dispatch operators on the emulator: what csrc/ops/moe/op.cpp does for a GPU, with CPU tensors
// for its memory. Operators of the namespace dspark_simt, with the schemas of dspark_ext.
#include "memory.h"
#include "ops/moe/launch.h"
#include "ops/moe/op.h"

namespace dspark::moe {
namespace {

// Besides, rows with a distance: each a buffer of its own, so that the gaps are out of bounds.
class MoeMemory : public Memory {
  public:
    void rows(Global<const void> data, int64_t count, int64_t bytes, int64_t stride_bytes,
              const char* name) {
        if (data == nullptr || bytes == 0) return;
        const char* begin = static_cast<const char*>(data.address());
        if (stride_bytes == bytes) return add(begin, count * bytes, name, emulator::kReadOnly);
        for (int64_t row = 0; row < count; ++row) {
            add(begin + row * stride_bytes, bytes, name, emulator::kReadOnly);
        }
    }
};

int64_t bytes_of(FloatType dtype) {
    return dtype == FloatType::kFloat32 ? 4 : 2;
}

void add(const PlanArgs& args, MoeMemory& memory) {
    const int64_t id_bytes = args.is_int64 ? 8 : 4;
    memory.input(global_cast<const char>(args.ids), args.num_slots * id_bytes, "ids");
    memory.input(args.expert_map, args.num_ids, "expert_map");
    memory.output(args.counts, args.num_experts, "counts");
    memory.output(args.offsets, args.num_experts + 1, "offsets");
    memory.output(args.sorted, args.capacity, "sorted");
    memory.output(args.inverse, args.num_slots, "inverse");
    memory.output(args.total, 1, "total");
    memory.output(args.tile_expert, args.tile_capacity, "tile_expert");
    memory.output(args.tile_row, args.tile_capacity, "tile_row");
    memory.output(args.tile_size, args.tile_capacity, "tile_size");
    memory.output(args.num_tiles, 1, "num_tiles");
}

void add(const PermuteArgs& args, MoeMemory& memory) {
    const PlanRows& rows = args.rows;
    memory.rows(args.x, rows.num_tokens, args.row_bytes, args.x_stride, "x");
    memory.input(rows.sorted, rows.capacity, "sorted");
    memory.input(rows.inverse, rows.num_tokens * rows.slots_per_token, "inverse");
    memory.output(global_cast<char>(args.permuted), rows.capacity * args.row_bytes, "permuted");
}

void add(const CombineArgs& args, MoeMemory& memory) {
    const int64_t size = bytes_of(args.dtype);
    const int64_t tokens = args.rows.num_tokens;
    const int64_t slots = args.rows.slots_per_token;
    const int64_t bytes = args.row_size * size;
    memory.rows(args.y.data, args.num_rows, bytes, args.y.stride * size, "y");
    memory.input(args.rows.inverse, tokens * slots, "inverse");
    const int64_t weight = bytes_of(args.weights_dtype);
    const char* weights = static_cast<const char*>(args.weights.address());
    for (int64_t t = 0; t < tokens; ++t) {
        memory.rows(weights + t * args.weights_token_stride * weight, slots, weight,
                    args.weights_slot_stride * weight, "weights");
    }
    memory.rows(args.shared.data, tokens, bytes, args.shared.stride * size, "shared");
    memory.rows(args.residual.data, tokens, bytes, args.residual.stride * size, "residual");
    memory.output(global_cast<char>(args.out), tokens * bytes, "out");
}

struct OnEmulator {
    static void check_device(const char* op, const char* name, const Tensor& tensor) {
        Arg(op, name, tensor).on_cpu();
    }
    static void run(PlanArgs& args, const Tensor& like) {
        const Tensor workspace = allocate_workspace(args, like);
        MoeMemory memory;
        memory.scratch(workspace.mutable_data_ptr(), workspace.numel());
        launch("plan", args, memory, &MoeLaunch::plan);
    }
    static void run(const PermuteArgs& args, const Tensor&) {
        MoeMemory memory;
        launch("permute", args, memory, &MoeLaunch::permute);
    }
    static void run(const CombineArgs& args, const Tensor&) {
        MoeMemory memory;
        launch("combine", args, memory, &MoeLaunch::combine);
    }

  private:
    template <class Args>
    static void launch(const char* op, const Args& args, MoeMemory& memory,
                       int (*MoeLaunch::*sequence)(const Args&, LaunchTarget&)) {
        add(args, memory);
        memory.register_all();
        emulator::clear_error();
        LaunchTarget target = {nullptr};
        const int code = (simt::moe_launch().*sequence)(args, target);
        if (code != 0) fail(op, "the emulator", emulator::error_text(code));
    }
};

}  // namespace
}  // namespace dspark::moe

STABLE_TORCH_LIBRARY_IMPL(dspark_simt, CPU, m) {
    dspark::moe::Operators<dspark::moe::OnEmulator>::implement(m);
}
