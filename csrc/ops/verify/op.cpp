// The verify family on the CPU and on GPUs: how each runs its kernels.
#include "ops/verify/op.h"

#include <vector>

#include "backends/cpu/isa.h"
#include "ops/verify/cpu.h"
#if defined(DSPARK_BUILD_CUDA) || defined(DSPARK_BUILD_HIP)
#include "host/gpu.h"
#include "ops/verify/launch.h"
#define DSPARK_HAS_GPU
#endif

namespace dspark::verify {
namespace {

struct OnCpu {
    static constexpr bool kOnDevice = false;

    static void check_device(const char* op, const char* name, const Tensor& tensor) {
        Arg(op, name, tensor).on_cpu();
    }
    static void run(ScheduleArgs& args, const Tensor&) {
        const auto batch = static_cast<size_t>(args.batch);
        std::vector<uint64_t> keys(batch * (static_cast<size_t>(args.num_positions) + 1));
        std::vector<float> survival(batch);
        args.keys = keys.data();
        args.heap = keys.data() + batch * static_cast<size_t>(args.num_positions);
        args.survival = survival.data();
        DSPARK_CPU_DISPATCH(schedule, args);
    }
    static void run(const PackArgs& args, const Tensor&) {
        check_faults("pack", DSPARK_CPU_DISPATCH(pack, args));
    }
    static void run(const UnpackArgs& args, const Tensor&) {
        const int64_t bytes = (args.num_drafts + 1) * args.row_size * args.element_size;
        torch::stable::parallel_for(
            0, args.layout.batch, 1 + (int64_t{1} << 18) / (bytes + 1),
            [&](int64_t begin, int64_t end) { DSPARK_CPU_DISPATCH(unpack, args, begin, end); });
    }
    static void run(const CommitArgs& args, const Tensor&) {
        check_faults("commit", DSPARK_CPU_DISPATCH(commit, args));
    }
    static void run(const AccumulateStatsArgs& args, const Tensor&) {
        check_faults("accumulate_stats", DSPARK_CPU_DISPATCH(accumulate_stats, args));
    }
};

#ifdef DSPARK_HAS_GPU

// On torch's current stream of the device; without waiting for the kernels, so that a graph can
// capture them.
struct OnGpu {
    static constexpr bool kOnDevice = true;

    static void check_device(const char* op, const char* name, const Tensor& tensor) {
        if (!tensor.is_cuda()) fail(op, name, "expected the GPU of the other tensors, got cpu");
    }
    static void run(ScheduleArgs& args, const Tensor& like) {
        const gpu::Device device("schedule", like);
        const Tensor workspace = allocate_workspace(args, like);
        run_on(device, args, &VerifyLaunch::schedule);
    }
    static void run(const PackArgs& args, const Tensor& like) {
        launch("pack", args, like, &VerifyLaunch::pack);
    }
    static void run(const UnpackArgs& args, const Tensor& like) {
        launch("unpack", args, like, &VerifyLaunch::unpack);
    }
    static void run(const CommitArgs& args, const Tensor& like) {
        launch("commit", args, like, &VerifyLaunch::commit);
    }
    static void run(const AccumulateStatsArgs& args, const Tensor& like) {
        launch("accumulate_stats", args, like, &VerifyLaunch::accumulate_stats);
    }

  private:
    template <class Args>
    static void launch(const char* op, const Args& args, const Tensor& like,
                       int (*VerifyLaunch::*sequence)(const Args&, LaunchTarget&)) {
        run_on(gpu::Device(op, like), args, sequence);
    }

    template <class Args>
    static void run_on(const gpu::Device& device, const Args& args,
                       int (*VerifyLaunch::*sequence)(const Args&, LaunchTarget&)) {
        LaunchTarget target = {device.stream()};
        const int code = (device.backend().verify->*sequence)(args, target);
        device.check(code, target.failed);
    }
};

#endif

}  // namespace
}  // namespace dspark::verify

STABLE_TORCH_LIBRARY_IMPL(dspark_ext, CPU, m) {
    dspark::verify::Operators<dspark::verify::OnCpu>::implement(m);
}

#ifdef DSPARK_HAS_GPU
STABLE_TORCH_LIBRARY_IMPL(dspark_ext, CUDA, m) {
    dspark::verify::Operators<dspark::verify::OnGpu>::implement(m);
}
#endif
