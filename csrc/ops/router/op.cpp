// The router family on the CPU and on GPUs: how each runs its kernels.
#include "ops/router/op.h"

#include "backends/cpu/isa.h"
#include "ops/router/cpu.h"
#if defined(DSPARK_BUILD_CUDA) || defined(DSPARK_BUILD_HIP)
#include "host/gpu.h"
#include "ops/router/launch.h"
#define DSPARK_HAS_GPU
#endif

namespace dspark::router {
namespace {

constexpr int64_t kLogitsPerThread = 1 << 15;  // fewer are not worth another thread

struct OnCpu {
    static void check_device(const Tensor& tensor) { Arg(kRoute, "logits", tensor).on_cpu(); }

    static void run(const RouteArgs& args, const Tensor&) {
        torch::stable::parallel_for(
            0, args.num_tokens, 1 + kLogitsPerThread / args.num_experts,
            [&](int64_t begin, int64_t end) { DSPARK_CPU_DISPATCH(route, args, begin, end); });
    }
};

#ifdef DSPARK_HAS_GPU

// On torch's current stream of the device; without waiting for the kernel, so that a graph can
// capture it.
struct OnGpu {
    static void check_device(const Tensor& tensor) {
        if (!tensor.is_cuda()) {
            fail(kRoute, "logits", "expected the GPU of the other tensors, got cpu");
        }
    }

    static void run(const RouteArgs& args, const Tensor& like) {
        const gpu::Device device(kRoute, like);
        LaunchTarget target = {device.stream()};
        const int code = device.backend().router->route(args, target);
        device.check(code, target.failed);
    }
};

#endif

}  // namespace
}  // namespace dspark::router

STABLE_TORCH_LIBRARY_IMPL(dspark_ext, CPU, m) {
    dspark::router::Operators<dspark::router::OnCpu>::implement(m);
}

#ifdef DSPARK_HAS_GPU
STABLE_TORCH_LIBRARY_IMPL(dspark_ext, CUDA, m) {
    dspark::router::Operators<dspark::router::OnGpu>::implement(m);
}
#endif
