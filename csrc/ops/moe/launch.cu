// The launch sequences of the mixture-of-experts dispatch: one text for every device compiler and
// the emulator.
#include "ops/moe/launch.h"

#include "device/sequence.h"
#include "ops/moe/kernel_plan.h"
#include "ops/moe/kernel_rows.h"

namespace dspark::DSPARK_ISA {
namespace {

using namespace moe;

// Blocks of a grid that goes through more items than that.
constexpr int64_t kMostBlocks = int64_t{1} << 20;

int64_t ceil_div_of(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

int plan(const PlanArgs& args, LaunchTarget& target) {
    return with_warp_size([&](auto warp_size) {
        constexpr int W = warp_size;
        Sequence sequence(target);
        if (dspark::moe::fits_one_block(args)) {
            sequence.run("plan", plan_kernel<W>, 1, args);
        } else {
            const int64_t blocks = args.num_segments * dspark::moe::expert_ranges(args.num_experts);
            sequence.run("count_slots", count_slots_kernel<W>, blocks, args);
            sequence.run("place_slots", place_slots_kernel<W>, blocks, args);
        }
        return sequence.code();
    });
}

// Cuts rows into pieces of at most `most` units, as even as can be.
template <class Args>
Items<Args> items_of(const Args& args, int64_t row_units, int64_t most) {
    Items<Args> items = {args, 0, ceil_div_of(row_units, most), 0, row_units};
    items.piece_units = ceil_div_of(row_units, items.pieces);
    items.count = args.rows.num_tokens * items.pieces;
    return items;
}

int64_t blocks_for(int64_t items) {
    return items < kMostBlocks ? items : kMostBlocks;
}

int permute(const PermuteArgs& args, LaunchTarget& target) {
    return with_warp_size([&](auto warp_size) {
        constexpr int W = warp_size;
        Items<PermuteArgs> items =
            items_of(args, args.row_bytes / args.unit, kPermuteUnits * kThreads);
        items.count += ceil_div_of(args.rows.capacity, kWarps<W>);
        Sequence sequence(target);
        sequence.run("permute", permute_kernel<W>, blocks_for(items.count), items);
        return sequence.code();
    });
}

int combine(const CombineArgs& args, LaunchTarget& target) {
    const int64_t elements = args.dtype == FloatType::kFloat32 ? 4 : 8;  // of 16 bytes
    const int64_t row_units = args.is_aligned ? args.row_size / elements : args.row_size;
    const Items<CombineArgs> items = items_of(args, row_units, kThreads);
    return with_warp_size([&](auto warp_size) {
        Sequence sequence(target);
        sequence.run("combine", combine_kernel<warp_size>, blocks_for(items.count), items);
        return sequence.code();
    });
}

}  // namespace

const MoeLaunch& moe_launch() {
    static const MoeLaunch functions = {plan, permute, combine};
    return functions;
}

}  // namespace dspark::DSPARK_ISA
