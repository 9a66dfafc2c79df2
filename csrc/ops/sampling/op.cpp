// The sampling family on the CPU and on GPUs: how each runs its kernels.
#include <vector>

#include "backends/cpu/isa.h"
#include "ops/sampling/cpu.h"
#include "ops/sampling/op.h"
#if defined(DSPARK_BUILD_CUDA) || defined(DSPARK_BUILD_HIP)
#include "host/gpu.h"
#define DSPARK_HAS_GPU
#endif

namespace dspark::sampling {
namespace {

// ---- CPU ----------------------------------------------------------------------------------------

// Items per thread at least, so that a thread has some ten microseconds of work: 2^17 logits.
int64_t grain(int64_t logits_per_item) {
    return 1 + (int64_t{1} << 17) / (logits_per_item + 1);
}

// Room for the laws of every row: 16 bytes per tile of 4096 entries.
class LawTable {
  public:
    LawTable(int64_t laws, int64_t vocab) {
        const int64_t tiles = (vocab + 4095) / 4096;
        laws_.resize(static_cast<size_t>(laws), Law{});
        floats_.resize(static_cast<size_t>(2 * laws * tiles));
        doubles_.resize(static_cast<size_t>(laws * tiles));
        for (int64_t i = 0; i < laws; ++i) {
            Law& law = laws_[static_cast<size_t>(i)];
            law.tile_max = floats_.data() + 2 * i * tiles;
            law.tile_sum = law.tile_max + tiles;
            law.tile_scale = doubles_.data() + i * tiles;
        }
    }
    Law* data() { return laws_.data(); }

  private:
    std::vector<Law> laws_;
    std::vector<float> floats_;
    std::vector<double> doubles_;
};

// Runs a verification kernel over all requests. With fewer requests than threads, the rows' laws
// are filled first, in parallel over rows.
template <class Kernel>
void verify_in_parallel(VerifyArgs& args, Kernel kernel) {
    const int64_t draft_rows = args.draft_logits.data != nullptr ? args.batch * args.num_drafts : 0;
    const int64_t target_rows = args.batch * (args.num_drafts + 1);
    LawTable table(target_rows + draft_rows, args.target_logits.vocab);
    args.target_laws = table.data();
    args.draft_laws = table.data() + target_rows;
    if (args.batch < static_cast<int64_t>(torch::stable::get_num_threads())) {
        torch::stable::parallel_for(0, target_rows + draft_rows, grain(args.target_logits.vocab),
                                    [&](int64_t begin, int64_t end) {
                                        DSPARK_CPU_DISPATCH(prepare_laws, args, begin, end);
                                    });
    }
    const int64_t logits_per_request =
        2 * (args.num_drafts + 1) * int64_t{args.target_logits.vocab};
    torch::stable::parallel_for(0, args.batch, grain(logits_per_request), kernel);
}

struct OnCpu {
    static constexpr bool kOnDevice = false;

    static void check_device(const char* op, const char* name, const Tensor& logits) {
        Arg(op, name, logits).on_cpu();
    }
    static void run_target_probs(const TargetProbsArgs& args, const Tensor&) {
        torch::stable::parallel_for(0, args.rows, grain(args.logits.vocab),
                                    [&](int64_t begin, int64_t end) {
                                        DSPARK_CPU_DISPATCH(target_probs, args, begin, end);
                                    });
    }
    static void run_sample(const SampleArgs& args, const Tensor&) {
        torch::stable::parallel_for(
            0, args.rows, grain(args.logits.vocab),
            [&](int64_t begin, int64_t end) { DSPARK_CPU_DISPATCH(sample, args, begin, end); });
    }
    static void run_rejection_sample(VerifyArgs& args, const Tensor&) {
        verify_in_parallel(args, [&](int64_t begin, int64_t end) {
            DSPARK_CPU_DISPATCH(rejection_sample, args, begin, end);
        });
    }
    static void run_block_acceptance(VerifyArgs& args, const Tensor&) {
        verify_in_parallel(args, [&](int64_t begin, int64_t end) {
            DSPARK_CPU_DISPATCH(block_acceptance, args, begin, end);
        });
    }
};

// ---- GPU ----------------------------------------------------------------------------------------

#ifdef DSPARK_HAS_GPU

struct OnGpu {
    static constexpr bool kOnDevice = true;

    static void check_device(const char* op, const char* name, const Tensor& logits) {
        if (!logits.is_cuda()) fail(op, name, "expected the GPU of the other tensors, got cpu");
    }
    static void run_target_probs(TargetProbsArgs& args, const Tensor& logits) {
        launch("target_probs", args, logits, &SamplingLaunch::target_probs);
    }
    static void run_sample(SampleArgs& args, const Tensor& logits) {
        launch("sample", args, logits, &SamplingLaunch::sample);
    }
    static void run_rejection_sample(VerifyArgs& args, const Tensor& logits) {
        launch("rejection_sample", args, logits, &SamplingLaunch::rejection_sample);
    }
    static void run_block_acceptance(VerifyArgs& args, const Tensor& logits) {
        launch("block_acceptance", args, logits, &SamplingLaunch::block_acceptance);
    }

  private:
    // On torch's current stream of the device; without waiting for the kernels, so that a graph can
    // capture it.
    template <class Args>
    static void launch(const char* op, Args& args, const Tensor& logits,
                       int (*SamplingLaunch::*sequence)(const Args&, LaunchTarget&)) {
        const gpu::Device device(op, logits);
        const Tensor workspace = allocate_workspace(args, logits);
        LaunchTarget target = {device.stream()};
        const int code = (device.backend().sampling->*sequence)(args, target);
        refuse_too_many_blocks(op, code);
        device.check(code, target.failed);
    }
};

#endif

}  // namespace
}  // namespace dspark::sampling

STABLE_TORCH_LIBRARY_IMPL(dspark_ext, CPU, m) {
    dspark::sampling::Operators<dspark::sampling::OnCpu>::implement(m);
}

#ifdef DSPARK_HAS_GPU
STABLE_TORCH_LIBRARY_IMPL(dspark_ext, CUDA, m) {
    dspark::sampling::Operators<dspark::sampling::OnGpu>::implement(m);
}
#endif
