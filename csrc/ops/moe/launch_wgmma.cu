// The launch sequence of grouped_gemm on warpgroups, for every device compiler and the emulator.
// Where no hardware of a compiler has them, there is nothing in it.
#include "ops/moe/launch_wgmma.h"

#include "device/sequence.h"
#include "ops/moe/kernel_wgmma_experts.h"

namespace dspark::DSPARK_ISA {
namespace {

using namespace experts;
using dspark::experts::has_16_byte_rows;
using dspark::experts::suits_warpgroups;

int64_t ceil_div_of(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

// A block to a multiprocessor.
template <int W, class Format>
void launch_group(Sequence& sequence, const GroupLaunch& launch) {
    const int64_t work = launch.items + ceil_div_of(launch.args.rows.capacity, kGroups);
    const int64_t most = multiprocessors();
    sequence.run_large<GroupShared<Format>>("grouped_gemm", warpgroup_gemm_kernel<W, Format>,
                                            work < most ? work : most, kGroupThreads, launch);
}

template <int W, class Half>
void launch_groups(Sequence& sequence, const GroupLaunch& launch) {
    switch (launch.args.weight.format) {
        case WeightFormat::kFp8E4M3:
            return launch_group<W, GroupFp8<Fp8E4M3, Half>>(sequence, launch);
        case WeightFormat::kFp8E4M3Fnuz:
            return launch_group<W, GroupFp8<Fp8E4M3Fnuz, Half>>(sequence, launch);
        case WeightFormat::kMxFp4:
            return launch_group<W, GroupFp4<Half>>(sequence, launch);
        default:
            return launch_group<W, GroupHalves<Half>>(sequence, launch);
    }
}

template <int W>
void launch_any(Sequence& sequence, const GroupLaunch& launch) {
    if constexpr (kCanHaveWarpgroups<W>) {
        if (launch.args.x_dtype == FloatType::kBFloat16) {
            launch_groups<W, BFloat16>(sequence, launch);
        } else {
            launch_groups<W, Float16>(sequence, launch);
        }
    }
}

}  // namespace

bool takes_warpgroups(const GroupedGemmArgs& args) {
    return suits_warpgroups(args) && has_warpgroups();
}

int grouped_gemm_on_warpgroups(const GroupedGemmArgs& args, LaunchTarget& target) {
    const int64_t ranges = ceil_div_of(args.weight.rows, kGroupItemRows);
    const GroupLaunch launch = {args, ranges, args.tiles.count * ranges, has_16_byte_rows(args.x)};
    Sequence sequence(target);
    launch_any<32>(sequence, launch);
    return sequence.code();
}

}  // namespace dspark::DSPARK_ISA
