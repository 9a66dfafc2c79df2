// grouped_gemm on warpgroups, of weights in panels (docs/numerics.md section 13): products of 64
// rows of weights with up to 64 rows of x, both read from shared memory by the products themselves.
// Codes are made halves of by threads, which hand them over in registers; 32 columns of them are
// summed before they are scaled. kernel_wgmma_stages.h is the other half: how a step gets there.
#pragma once

#include "ops/moe/kernel_wgmma_stages.h"

namespace dspark::DSPARK_ISA::experts {

// ---- what a warpgroup has -----------------------------------------------------------------------

DSPARK_DEVICE int group_of_thread() {
    return thread_idx() / kWarpgroupThreads;
}
// The row of the panel of sums 0 and 1 of the calling lane; that of sums 2 and 3 is 8 further.
DSPARK_DEVICE int group_row() {
    return thread_idx() % kWarpgroupThreads / 32 * 16 + lane_index<32>() / 4;
}

template <class Format>
DSPARK_DEVICE Operand x_operand(const GroupShared<Format>& shared, int stage, int product) {
    return operand_at(shared.x, stage * shared.kXWords + 64 * product, 128, 128 * shared.kPieces);
}
template <class Format>
DSPARK_DEVICE int panel_begin(const GroupShared<Format>& shared, int stage) {
    return stage * shared.kWeightWords + group_of_thread() * kPanelWords;
}

// ---- weights of 16 bits -------------------------------------------------------------------------

// Sums of all steps of an item. A stage is given back when the products of the next are on their
// way and its own have finished.
template <int W, class Format, int kColumns>
DSPARK_DEVICE void multiply_halves_of_item(int64_t steps, StageTurn<Format>& turn,
                                           GroupShared<Format>& shared,
                                           float (&sums)[kColumns / 2]) {
    int before = -1;
    for (int64_t step = 0; step < steps; ++step) {
        const int stage = turn.stage;
        await_phase(shared.full[stage], turn.parity);
        begin_products();
        for (int i = 0; i < Format::kStepColumns / 16; ++i) {
            const Operand left =
                operand_at(shared.weights, panel_begin(shared, stage) + 64 * i, 128, 1024);
            multiply_group<typename Format::Half, kColumns>(left, x_operand(shared, stage, i), true,
                                                            sums);
        }
        end_batch();
        await_products<1>();
        if (before >= 0) arrive<W>(shared.empty[before]);
        before = stage;
        turn.advance();
    }
    await_products<0>();
    take_sums(sums);
    if (before >= 0) arrive<W>(shared.empty[before]);
}

// ---- codes --------------------------------------------------------------------------------------

template <class Format>
constexpr int kBlocks = Format::kStepColumns / 32;

// Products of 32 columns, which are on their way once they have been issued.
template <class Format, int kColumns>
struct BlockProducts {
    uint32_t left[2][4];
    float sums[kColumns / 2];

    DSPARK_DEVICE void issue(int block, int stage, const GroupShared<Format>& shared) {
        for (int r = 0; r < 2; ++r) {
            const int row = group_row() + 8 * r;
            const int begin = panel_begin(shared, stage) + row / 8 * 256 + row % 8 * 4;
            const Bytes16 halves = Format::halves(shared.weights, begin, block);
            for (int i = 0; i < 4; ++i) left[i / 2][i % 2 * 2 + r] = halves.word[i];
        }
        begin_products();
        for (int i = 0; i < 2; ++i) {
            multiply_group<typename Format::Half, kColumns>(
                left[i], x_operand(shared, stage, 2 * block + i), i > 0, sums);
        }
        end_batch();
    }
    // Once they have been awaited.
    DSPARK_DEVICE void add_to(int block, int stage, const GroupShared<Format>& shared,
                              float (&total)[kColumns / 2]) {
        take_sums(sums);
        const int row = group_of_thread() * kPanelRows + group_row();
        const int begin = stage * shared.kScaleWords + row * Format::kRowScales;
        const float scale = Format::scale(shared.scales, begin, block);
        const float scale_of_lower =
            Format::scale(shared.scales, begin + 8 * Format::kRowScales, block);
        for (int i = 0; i < kColumns / 2; ++i) {
            total[i] = fma(sums[i], i / 2 % 2 == 0 ? scale : scale_of_lower, total[i]);
        }
    }
};

// The products of blocks b and b + 1, and the sums of block b - 1, which are on their way in `odd`.
template <int b, class Format, int kColumns>
DSPARK_DEVICE void multiply_blocks(int stage, const GroupShared<Format>& shared,
                                   BlockProducts<Format, kColumns>& even,
                                   BlockProducts<Format, kColumns>& odd,
                                   float (&total)[kColumns / 2]) {
    if constexpr (b < kBlocks<Format>) {
        even.issue(b, stage, shared);
        if constexpr (b > 0) {
            await_products<1>();
            odd.add_to(b - 1, stage, shared, total);
        }
        odd.issue(b + 1, stage, shared);
        await_products<1>();
        even.add_to(b, stage, shared, total);
        multiply_blocks<b + 2>(stage, shared, even, odd, total);
    }
}

template <int W, class Format, int kColumns>
DSPARK_DEVICE void multiply_codes_of_item(int64_t steps, StageTurn<Format>& turn,
                                          GroupShared<Format>& shared,
                                          float (&total)[kColumns / 2]) {
    BlockProducts<Format, kColumns> even, odd;
    for (int64_t step = 0; step < steps; ++step) {
        await_phase(shared.full[turn.stage], turn.parity);
        multiply_blocks<0>(turn.stage, shared, even, odd, total);
        await_products<0>();
        odd.add_to(kBlocks<Format> - 1, turn.stage, shared, total);
        arrive<W>(shared.empty[turn.stage]);
        turn.advance();
    }
}

// ---- results ------------------------------------------------------------------------------------

// Two products side by side, of rows v and v + 1 of the weights, or what becomes of them.
DSPARK_DEVICE void store_products_of(const GroupedGemmArgs& args, int64_t row, int64_t v,
                                     const float (&pair)[2]) {
    const int64_t columns = out_columns(args.activation, args.weight.rows);
    if (args.activation == Activation::kNone) {
        store_rounded(args, row * columns + v, pair[0]);
        if (v + 1 < args.weight.rows) store_rounded(args, row * columns + v + 1, pair[1]);
    } else {
        const float value = clamped_swiglu(pair[0], pair[1], args.limit);
        store_rounded(args, row * columns + v / 2, value);
    }
}

// The sums of columns kFirst .. kFirst + 31, by way of shared memory; then of those behind.
template <int kFirst, int W, class Format, int kColumns>
DSPARK_DEVICE void store_sums(const GroupedGemmArgs& args, const GroupItem& item,
                              const float (&sums)[kColumns / 2], GroupShared<Format>& shared) {
    if constexpr (kFirst < kColumns) {
        constexpr int kEnd =
            kFirst + kGroupSumColumns < kColumns ? kFirst + kGroupSumColumns : kColumns;
        const int begin = warp_index<W>() * kGroupSumWords;
        const int lane = lane_index<W>();
        sync_warp<W>();
        for (int i = kFirst / 2; i < kEnd / 2; ++i) {
            const int column = i / 4 * 8 + lane % 4 * 2 + i % 2 - kFirst;
            const int row = lane / 4 + i / 2 % 2 * 8;
            shared.sums[begin + column * kGroupSumStride + row] = sums[i];
        }
        sync_warp<W>();
        const int64_t first = item.first_weight + warp_index<W>() * kGroupSumRows;
        const int count = (item.num_rows < kEnd ? item.num_rows : kEnd) - kFirst;
        for (int i = lane; i < count * (kGroupSumRows / 2); i += W) {
            const int column = i / (kGroupSumRows / 2);
            const int row = i % (kGroupSumRows / 2) * 2;
            if (first + row >= args.weight.rows) continue;
            const int at = begin + column * kGroupSumStride + row;
            const float pair[2] = {shared.sums[at], shared.sums[at + 1]};
            store_products_of(args, item.first_row + kFirst + column, first + row, pair);
        }
        store_sums<kFirst + kGroupSumColumns, W, Format, kColumns>(args, item, sums, shared);
    }
}

template <int W, class Format, int kColumns>
DSPARK_DEVICE void multiply_item_by_group(const GroupedGemmArgs& args, const GroupItem& item,
                                          StageTurn<Format>& turn, GroupShared<Format>& shared) {
    float sums[kColumns / 2] = {};
    if constexpr (Format::kHasCodes) {
        multiply_codes_of_item<W, Format, kColumns>(steps_of(args.weight), turn, shared, sums);
    } else {
        multiply_halves_of_item<W, Format, kColumns>(steps_of(args.weight), turn, shared, sums);
    }
    store_sums<0, W, Format, kColumns>(args, item, sums, shared);
}

// ---- the kernel ---------------------------------------------------------------------------------

// The stages of an item pass by.
template <int W, class Format>
DSPARK_DEVICE void pass_item(int64_t steps, StageTurn<Format>& turn, GroupShared<Format>& shared) {
    for (int64_t step = 0; step < steps; ++step) {
        await_phase(shared.full[turn.stage], turn.parity);
        arrive<W>(shared.empty[turn.stage]);
        turn.advance();
    }
}

template <int W, class Format>
DSPARK_DEVICE void multiply_items_by_group(const GroupLaunch& launch, GroupShared<Format>& shared) {
    const GroupedGemmArgs& args = launch.args;
    StageTurn<Format> turn;
    for (GroupItem item = find_group_item(launch, block_idx().x, 0); item.first_weight >= 0;
         item = group_item_after(launch, item)) {
        if (group_of_thread() >= panels_of(args.weight, item)) {
            pass_item<W>(steps_of(args.weight), turn, shared);
        } else if (item.num_rows <= 16) {
            multiply_item_by_group<W, Format, 16>(args, item, turn, shared);
        } else if (item.num_rows <= 32) {
            multiply_item_by_group<W, Format, 32>(args, item, turn, shared);
        } else if (item.num_rows <= 48) {
            multiply_item_by_group<W, Format, 48>(args, item, turn, shared);
        } else {
            multiply_item_by_group<W, Format, 64>(args, item, turn, shared);
        }
    }
}

// Only for hardware with warpgroups: the host asks.
template <int W, class Format>
DSPARK_KERNEL(kGroupThreads, 1)
void warpgroup_gemm_kernel(GroupLaunch launch) {
    check_warp_size<W>();
    if constexpr (kHasWarpgroups<W>) {
        DSPARK_LARGE_SHARED(GroupShared<Format>, shared);
        if (thread_idx() == 0) init_stages<W>(shared);
        sync_block();
        if (group_of_thread() == kPanelsOfItem) {
            bring_items<W>(launch, shared);
        } else {
            multiply_items_by_group<W>(launch, shared);
            const GroupedGemmArgs& args = launch.args;
            for (int64_t rows = block_idx().x; rows * kGroups < args.rows.capacity;
                 rows += grid_dim().x) {
                clear_unused_rows(args, rows);
            }
        }
    } else {
        trap();
    }
}

}  // namespace dspark::DSPARK_ISA::experts
