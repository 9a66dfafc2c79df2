// The expert layer on the CPU and on GPUs: how each runs its kernels.
#include "ops/moe/op_experts.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "backends/cpu/isa.h"
#include "ops/moe/cpu_experts.h"
#include "ops/moe/cpu_experts_pairs.h"
#if defined(DSPARK_BUILD_CUDA) || defined(DSPARK_BUILD_HIP)
#include "host/gpu.h"
#include "ops/moe/launch_experts.h"
#define DSPARK_HAS_GPU
#endif

namespace dspark::experts {
namespace {

struct OnCpu {
    static constexpr int64_t kMinElementsPerThread = 1 << 14;

    static void check_device(const char* op, const char* name, const Tensor& tensor) {
        Arg(op, name, tensor).on_cpu();
    }

    static void check_layout(WeightLayout layout) {
        if (layout != WeightLayout::kPanels) return;
        fail(kGemm, "layout",
             "expected rows or pairs on a CPU; panels are for GPUs: prepare the weights for cpu");
    }

    static void run(const GroupedGemmArgs& args, const Tensor&) {
        const int64_t bad = DSPARK_CPU_DISPATCH(first_bad_tile, args);
        if (bad >= 0) {
            fail(kGemm, "plan",
                 "expected tiles of experts below " + std::to_string(args.weight.num_experts) +
                     " and rows below " + std::to_string(args.rows.capacity) + ", got expert " +
                     std::to_string(args.tiles.expert[bad]) + ", first row " +
                     std::to_string(args.tiles.row[bad]) + " and " +
                     std::to_string(args.tiles.size[bad]) + " rows for tile " +
                     std::to_string(bad));
        }
        check_covered(args);
        const int64_t columns = out_columns(args.activation, args.weight.rows);
        torch::stable::parallel_for(0, args.rows.capacity, grain(columns),
                                    [&](int64_t begin, int64_t end) {
                                        DSPARK_CPU_DISPATCH(clear_unused_rows, args, begin, end);
                                    });
        if (takes_pairs(args)) {
            run_pairs(args);
        } else {
            run_lanes(args);
        }
    }

    static void run(const SwigluArgs& args, const Tensor&) {
        torch::stable::parallel_for(
            0, args.num_rows, grain(args.width),
            [&](int64_t begin, int64_t end) { DSPARK_CPU_DISPATCH(swiglu, args, begin, end); });
    }

  private:
    static int64_t grain(int64_t elements) { return kMinElementsPerThread / (elements + 1) + 1; }

    // A row that holds a slot lies in a tile, or nothing would fill it.
    static void check_covered(const GroupedGemmArgs& args) {
        std::vector<bool> is_covered(static_cast<size_t>(args.rows.capacity));
        const auto row_of = [&](int64_t row) { return is_covered.begin() + row; };
        for (int64_t t = 0; t < tiles_in_use(args.tiles); ++t) {
            const int64_t first = args.tiles.row[t];
            std::fill(row_of(first), row_of(first + args.tiles.size[t]), true);
        }
        const int64_t slots = args.rows.num_tokens * args.rows.slots_per_token;
        for (int64_t row = 0; row < args.rows.capacity; ++row) {
            const int64_t slot = args.rows.sorted[row];
            if (slot < 0 || slot >= slots || *row_of(row)) continue;
            fail(kGemm, "plan",
                 "expected a tile over every row that holds a slot, got none over row " +
                     std::to_string(row) + " of slot " + std::to_string(slot));
        }
    }

    static void run_lanes(const GroupedGemmArgs& args) {
        const int64_t columns = out_columns(args.activation, args.weight.rows);
        const int64_t ranges = (columns + kItemColumns - 1) / kItemColumns;
        torch::stable::parallel_for(
            0, tiles_in_use(args.tiles) * ranges, 1, [&](int64_t begin, int64_t end) {
                const std::unique_ptr<float[]> scratch(
                    new float[static_cast<size_t>(scratch_floats(args.weight))]);
                DSPARK_CPU_DISPATCH(grouped_gemm, args, begin, end, scratch.get());
            });
    }

    // Threads get items of equal cost, so that tiles of many rows are spread over them.
    static void run_pairs(const GroupedGemmArgs& args) {
        constexpr int64_t kMinCostPerThread = 64;
        const int64_t cost = DSPARK_CPU_DISPATCH(pairs_cost, args);
        torch::stable::parallel_for(0, cost, kMinCostPerThread, [&](int64_t begin, int64_t end) {
            struct alignas(64) Line {
                char bytes[64];
            };
            const int64_t lines = pair_scratch_bytes(args.weight) / 64 + 1;
            const std::unique_ptr<Line[]> scratch(new Line[static_cast<size_t>(lines)]);
            DSPARK_CPU_DISPATCH(grouped_gemm_pairs, args, begin, end, scratch[0].bytes);
        });
    }

    // Threads get equal shares of these, so that none is left with the empty end of the table.
    static int64_t tiles_in_use(const TileTable& tiles) {
        int64_t count = 0;
        while (count < tiles.count && tiles.expert[count] >= 0) ++count;
        return count;
    }
};

#ifdef DSPARK_HAS_GPU

// On torch's current stream of the device; without waiting for the kernels, so that a graph can
// capture them.
struct OnGpu {
    static void check_device(const char* op, const char* name, const Tensor& tensor) {
        if (!tensor.is_cuda()) fail(op, name, "expected the GPU of the other tensors, got cpu");
    }
    static void check_layout(WeightLayout layout) { check_gpu_layout(layout); }
    static void run(const GroupedGemmArgs& args, const Tensor& like) {
        run_on(gpu::Device(kGemm, like), args, &ExpertsLaunch::grouped_gemm);
    }
    static void run(const SwigluArgs& args, const Tensor& like) {
        run_on(gpu::Device(kSwiglu, like), args, &ExpertsLaunch::swiglu);
    }

  private:
    template <class Args>
    static void run_on(const gpu::Device& device, const Args& args,
                       int (*ExpertsLaunch::*sequence)(const Args&, LaunchTarget&)) {
        LaunchTarget target = {device.stream()};
        const int code = (device.backend().experts->*sequence)(args, target);
        device.check(code, target.failed);
    }
};

#endif

}  // namespace
}  // namespace dspark::experts

STABLE_TORCH_LIBRARY_IMPL(dspark_ext, CPU, m) {
    dspark::experts::Operators<dspark::experts::OnCpu>::implement(m);
}

#ifdef DSPARK_HAS_GPU
STABLE_TORCH_LIBRARY_IMPL(dspark_ext, CUDA, m) {
    dspark::experts::Operators<dspark::experts::OnGpu>::implement(m);
}
#endif
