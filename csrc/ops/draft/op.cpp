// The draft family on the CPU: how it runs its kernels.
#include "ops/draft/op.h"

#include <vector>

#include "backends/cpu/isa.h"
#include "ops/draft/cpu.h"
#include "ops/draft/op_block.h"

namespace dspark::draft {
namespace {

struct OnCpu {
    static constexpr bool kOnDevice = false;

    static void check_device(const char* op, const char* name, const Tensor& tensor) {
        Arg(op, name, tensor).on_cpu();
    }
    static void run(MarkovArgs& args, const Tensor&) { run_block(args); }
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

}  // namespace
}  // namespace dspark::draft

STABLE_TORCH_LIBRARY_IMPL(dspark_ext, CPU, m) {
    dspark::draft::Operators<dspark::draft::OnCpu>::implement(m);
}
