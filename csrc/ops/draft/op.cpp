// The draft family on the CPU and on GPUs: how each runs its kernels.
#include "ops/draft/op.h"

#include <vector>

#include "backends/cpu/isa.h"
#include "ops/draft/cpu.h"
#include "ops/draft/cpu_shards.h"
#include "ops/draft/op_block.h"
#include "ops/draft/op_shards.h"
#if defined(DSPARK_BUILD_CUDA) || defined(DSPARK_BUILD_HIP)
#include "host/gpu.h"
#define DSPARK_HAS_GPU
#endif

namespace dspark::draft {
namespace {

struct OnCpu {
    static constexpr bool kOnDevice = false;

    static void check_device(const char* op, const char* name, const Tensor& tensor) {
        Arg(op, name, tensor).on_cpu();
    }
    static void run(MarkovArgs& args, const Tensor&) { run_block(args); }
    static void run_logits(MarkovArgs& args, const Tensor&) { run_step("markov_logits", args); }
    static void run(const RowStatisticsArgs& args, const Tensor&) {
        torch::stable::parallel_for(0, args.rows * args.tiles, 1 + kEntriesPerThread / kTileSize,
                                    [&](int64_t begin, int64_t end) {
                                        DSPARK_CPU_DISPATCH(shard_statistics, args, begin, end);
                                    });
    }
    static void run(const DrawShardArgs& args, const Tensor&) {
        torch::stable::parallel_for(0, args.rows, 4, [&](int64_t begin, int64_t end) {
            DSPARK_CPU_DISPATCH(draw_shard, args, begin, end);
        });
    }
    static void run(ConfidenceArgs& args, const Tensor&) {
        std::vector<float> weight(static_cast<size_t>(args.padded_size));
        args.widened_weight = weight.data();
        DSPARK_CPU_DISPATCH(widen_weight, args);
        parallel_with_scratch(args.rows, 1 + kEntriesPerThread / (args.padded_size + 1),
                              args.padded_size, [&](int64_t begin, int64_t end, float* buffer) {
                                  DSPARK_CPU_DISPATCH(confidence, args, begin, end, buffer);
                              });
    }
    static void run(const CalibrateArgs& args, const Tensor&) {
        torch::stable::parallel_for(
            0, args.rows, kEntriesPerThread,
            [&](int64_t begin, int64_t end) { DSPARK_CPU_DISPATCH(calibrate, args, begin, end); });
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
    static void run(const MarkovArgs& args, const Tensor& like) {
        const gpu::Device device("markov_sample", like);
        MarkovCall call = {args, {}};
        const Tensor workspace = allocate_workspace(call, like);
        run_on(device, "markov_sample", "base_logits", call, &DraftLaunch::markov_sample);
    }
    static void run_logits(const MarkovArgs& args, const Tensor& like) {
        const gpu::Device device("markov_logits", like);
        MarkovCall call = {args, {}};
        const Tensor workspace = allocate_workspace(call, like);
        run_on(device, "markov_logits", "base_logits", call, &DraftLaunch::markov_logits);
    }
    static void run(const RowStatisticsArgs& args, const Tensor& like) {
        const gpu::Device device("row_statistics", like);
        run_on(device, "row_statistics", "logits", args, &DraftLaunch::row_statistics);
    }
    static void run(const DrawShardArgs& args, const Tensor& like) {
        const gpu::Device device("draw_shard", like);
        run_on(device, "draw_shard", "logits", args, &DraftLaunch::draw_shard);
    }
    static void run(const ConfidenceArgs& args, const Tensor& like) {
        const gpu::Device device("confidence", like);
        run_on(device, "confidence", "hidden", args, &DraftLaunch::confidence);
    }
    static void run(const CalibrateArgs& args, const Tensor& like) {
        const gpu::Device device("calibrate", like);
        run_on(device, "calibrate", "conf_logits", args, &DraftLaunch::calibrate);
    }

  private:
    template <class Args>
    static void run_on(const gpu::Device& device, const char* op, const char* name,
                       const Args& args,
                       int (*DraftLaunch::*sequence)(const Args&, LaunchTarget&)) {
        LaunchTarget target = {device.stream()};
        const int code = (device.backend().draft->*sequence)(args, target);
        refuse_too_many_blocks(op, name, code);
        device.check(code, target.failed);
    }
};

#endif

}  // namespace
}  // namespace dspark::draft

STABLE_TORCH_LIBRARY_IMPL(dspark_ext, CPU, m) {
    dspark::draft::Operators<dspark::draft::OnCpu>::implement(m);
    dspark::draft::ShardOperators<dspark::draft::OnCpu>::implement(m);
}

#ifdef DSPARK_HAS_GPU
STABLE_TORCH_LIBRARY_IMPL(dspark_ext, CUDA, m) {
    dspark::draft::Operators<dspark::draft::OnGpu>::implement(m);
    dspark::draft::ShardOperators<dspark::draft::OnGpu>::implement(m);
}
#endif
