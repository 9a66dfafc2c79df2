// The mixture-of-experts dispatch on the CPU and on GPUs: how each runs its kernels.
#include "ops/moe/op.h"

#include <memory>

#include "backends/cpu/isa.h"
#include "ops/moe/cpu.h"
#if defined(DSPARK_BUILD_CUDA) || defined(DSPARK_BUILD_HIP)
#include "host/gpu.h"
#include "ops/moe/launch.h"
#define DSPARK_HAS_GPU
#endif

namespace dspark::moe {
namespace {

struct OnCpu {
    // Below these a task is not worth a thread of its own.
    static constexpr int64_t kMinSlotsPerSegment = 16384;
    static constexpr int64_t kMinBytesPerThread = 1 << 18;
    static constexpr int64_t kMostSegmentsOnCpu = 64;

    static void check_device(const char* op, const char* name, const Tensor& tensor) {
        Arg(op, name, tensor).on_cpu();
    }

    static void run(PlanArgs& args, const Tensor&) {
        cut_segments(args, kMostSegmentsOnCpu, kMinSlotsPerSegment);
        const std::unique_ptr<int64_t[]> cursors(
            new int64_t[static_cast<size_t>(args.num_segments * args.num_experts)]);
        args.cursors = cursors.get();
        torch::stable::parallel_for(0, args.num_segments, 1, [&](int64_t begin, int64_t end) {
            DSPARK_CPU_DISPATCH(count_slots, args, begin, end);
        });
        DSPARK_CPU_DISPATCH(lay_out_experts, args);
        torch::stable::parallel_for(0, args.num_segments, 1, [&](int64_t begin, int64_t end) {
            DSPARK_CPU_DISPATCH(place_slots, args, begin, end);
        });
    }

    static void run(const PermuteArgs& args, const Tensor&) {
        check_rows("permute", args.rows, args.rows.capacity);
        check_sorted(args.rows);
        const int64_t token_bytes = args.row_bytes * (args.rows.slots_per_token + 1);
        torch::stable::parallel_for(0, args.rows.num_tokens, grain(token_bytes),
                                    [&](int64_t begin, int64_t end) {
                                        DSPARK_CPU_DISPATCH(permute_tokens, args, begin, end);
                                    });
        torch::stable::parallel_for(0, args.rows.capacity, grain(args.row_bytes / 4),
                                    [&](int64_t begin, int64_t end) {
                                        DSPARK_CPU_DISPATCH(clear_padding, args, begin, end);
                                    });
    }

    static void run(const CombineArgs& args, const Tensor&) {
        check_rows("combine", args.rows, args.num_rows);
        const int64_t token_bytes = 4 * args.row_size * (args.rows.slots_per_token + 1);
        torch::stable::parallel_for(
            0, args.rows.num_tokens, grain(token_bytes),
            [&](int64_t begin, int64_t end) { DSPARK_CPU_DISPATCH(combine, args, begin, end); });
    }

  private:
    static int64_t grain(int64_t bytes) { return kMinBytesPerThread / (bytes + 1) + 1; }

    static void check_rows(const char* op, const PlanRows& rows, int64_t num_rows) {
        const int64_t slot = DSPARK_CPU_DISPATCH(first_bad_row, rows, num_rows);
        if (slot < 0) return;
        fail(op, "inverse",
             "expected rows below " + std::to_string(num_rows) + ", got " +
                 std::to_string(rows.inverse[slot]) + " for slot " + std::to_string(slot));
    }

    // A row that `sorted` gives to a slot is that slot's in `inverse`, or nothing would fill it.
    static void check_sorted(const PlanRows& rows) {
        const int64_t slots = rows.num_tokens * rows.slots_per_token;
        for (int64_t row = 0; row < rows.capacity; ++row) {
            const int64_t slot = rows.sorted[row];
            if (slot < 0 || slot >= slots || rows.inverse[slot] == row) continue;
            fail("permute", "sorted",
                 "expected what inverse says, got slot " + std::to_string(slot) + " of row " +
                     std::to_string(rows.inverse[slot]) + " in row " + std::to_string(row));
        }
    }
};

#ifdef DSPARK_HAS_GPU

// On torch's current stream of the device; without waiting for the kernels, so that a graph can
// capture them.
struct OnGpu {
    static void check_device(const char* op, const char* name, const Tensor& tensor) {
        if (!tensor.is_cuda()) fail(op, name, "expected the GPU of the other tensors, got cpu");
    }
    static void run(PlanArgs& args, const Tensor& like) {
        const gpu::Device device("plan", like);
        const Tensor workspace = allocate_workspace(args, like);
        run_on(device, args, &MoeLaunch::plan);
    }
    static void run(const PermuteArgs& args, const Tensor& like) {
        run_on(gpu::Device("permute", like), args, &MoeLaunch::permute);
    }
    static void run(const CombineArgs& args, const Tensor& like) {
        run_on(gpu::Device("combine", like), args, &MoeLaunch::combine);
    }

  private:
    template <class Args>
    static void run_on(const gpu::Device& device, const Args& args,
                       int (*MoeLaunch::*sequence)(const Args&, LaunchTarget&)) {
        LaunchTarget target = {device.stream()};
        const int code = (device.backend().moe->*sequence)(args, target);
        device.check(code, target.failed);
    }
};

#endif

}  // namespace
}  // namespace dspark::moe

STABLE_TORCH_LIBRARY_IMPL(dspark_ext, CPU, m) {
    dspark::moe::Operators<dspark::moe::OnCpu>::implement(m);
}

#ifdef DSPARK_HAS_GPU
STABLE_TORCH_LIBRARY_IMPL(dspark_ext, CUDA, m) {
    dspark::moe::Operators<dspark::moe::OnGpu>::implement(m);
}
#endif
