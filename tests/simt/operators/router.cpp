// The router operators on the emulator: what csrc/ops/router/op.cpp does for a GPU, with CPU
// tensors for its memory.
#include "memory.h"
#include "ops/router/launch.h"
#include "ops/router/op.h"

namespace dspark::router {
namespace {

template <class T>
void add_rows(const RouteArgs& args, Memory& memory) {
    const int64_t count = (args.num_tokens - 1) * args.row_stride + args.num_experts;
    memory.input(global_cast<const T>(args.logits), count, "logits");
}

void add(const RouteArgs& args, Memory& memory) {
    if (args.dtype == FloatType::kFloat32) {
        add_rows<float>(args, memory);
    } else {
        add_rows<BFloat16>(args, memory);
    }
    memory.input(args.bias, args.num_experts, "bias");
    const int64_t id_size = args.hash_ids_are_wide ? 8 : 4;
    memory.input(global_cast<const char>(args.hash_ids), args.num_tokens * id_size, "hash_ids");
    memory.input(args.hash_table, args.hash_rows * args.num_chosen, "hash_table");
    const int64_t slots = args.num_chosen + (args.has_shared_expert ? 1 : 0);
    memory.output(args.ids, args.num_tokens * slots, "ids");
    memory.output(args.weights, args.num_tokens * slots, "weights");
    memory.output(args.status, args.num_tokens, "status");
}

struct OnEmulator {
    static void check_device(const Tensor& tensor) { Arg(kRoute, "logits", tensor).on_cpu(); }

    static void run(const RouteArgs& args, const Tensor&) {
        Memory memory;
        add(args, memory);
        memory.register_all();
        emulator::clear_error();
        LaunchTarget target = {nullptr};
        const int code = simt::router_launch().route(args, target);
        if (code != 0) fail(kRoute, "the emulator", emulator::error_text(code));
    }
};

}  // namespace
}  // namespace dspark::router

STABLE_TORCH_LIBRARY_IMPL(dspark_simt, CPU, m) {
    dspark::router::Operators<dspark::router::OnEmulator>::implement(m);
}
