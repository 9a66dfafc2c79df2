// The verify family on the CPU: how it runs its kernels.
#include "ops/verify/op.h"

#include <vector>

#include "backends/cpu/isa.h"
#include "ops/verify/cpu.h"

namespace dspark::verify {
namespace {

struct OnCpu {
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

}  // namespace
}  // namespace dspark::verify

STABLE_TORCH_LIBRARY_IMPL(dspark_ext, CPU, m) {
    dspark::verify::Operators<dspark::verify::OnCpu>::implement(m);
}
