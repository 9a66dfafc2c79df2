// What passes through shared memory in grouped_gemm on warpgroups, and the warpgroup that brings
// it.
//
// A stage holds one step of 128 bytes of the rows of an item: of its two panels as they lie in
// device memory, which copies bring, and the same columns of up to 64 rows of x, which the threads
// of the bringing warpgroup put into the pieces that products read. Their registers hold the next
// step of x while its stage is still in use. Steps of all items of a block follow each other in the
// ring of stages, so that an item begins while the one before is being multiplied.
#pragma once

#include "device/half_codes.h"
#include "ops/moe/kernel_experts.h"
#include "ops/moe/tuning_wgmma.h"

namespace dspark::DSPARK_ISA::experts {

using dspark::experts::kGroupItemRows;
using dspark::experts::kGroupItemRowsOfX;
using dspark::experts::kGroupStages;
using dspark::experts::kGroupThreads;

constexpr int kPanelsOfItem = kGroupItemRows / kPanelRows;
constexpr int kPanelWords = kPanelRows * kPanelBytes / 4;
constexpr int kPanelScaleBytes = kPanelRows * 8;  // of fp4, in a step

// Sums on their way out: a warp has 16 rows, and puts 32 columns of them to shared memory at a
// time, so far apart that the lanes of a store meet in no bank.
constexpr int kGroupSumRows = 16;
constexpr int kGroupSumColumns = 32;
constexpr int kGroupSumStride = 20;
constexpr int kGroupSumWords = kGroupSumColumns * kGroupSumStride;

struct GroupLaunch {
    GroupedGemmArgs args;
    int64_t ranges;      // of kGroupItemRows rows of weights
    int64_t items;       // of which each is a tile of the plan and a range
    bool has_aligned_x;  // rows of x begin at multiples of 16 bytes
};

// ---- items --------------------------------------------------------------------------------------

// Part of a tile, up to kGroupItemRowsOfX of its rows, with a range of rows of weights.
struct GroupItem {
    int64_t index;  // of the tile and the range
    int64_t expert;
    int64_t first_weight;  // row in the order of the panels; -1: there is no item
    int64_t first_row;     // of the plan
    int num_rows;
};

// The item of a block from row `row` of the tile of `index` on, or else the first that follows.
// Tiles that a plan cannot have are left out, and after one without an expert there are none.
DSPARK_DEVICE GroupItem find_group_item(const GroupLaunch& launch, int64_t index, int64_t row) {
    const GroupedGemmArgs& args = launch.args;
    for (; index < launch.items; index += grid_dim().x, row = 0) {
        const int64_t tile = index / launch.ranges;
        const int64_t expert = args.tiles.expert[tile];
        if (expert < 0) break;
        const int64_t size = args.tiles.size[tile];
        const int64_t first = args.tiles.row[tile];
        const bool fits = first >= 0 && first <= args.rows.capacity - size;
        if (expert >= args.weight.num_experts || !fits || row >= size) continue;
        return {index, expert, index % launch.ranges * kGroupItemRows, first + row,
                static_cast<int>(moe::smaller(kGroupItemRowsOfX, size - row))};
    }
    return {index, 0, -1, 0, 0};
}
DSPARK_DEVICE GroupItem group_item_after(const GroupLaunch& launch, const GroupItem& item) {
    const int64_t row = item.first_row - launch.args.tiles.row[item.index / launch.ranges];
    return find_group_item(launch, item.index, row + kGroupItemRowsOfX);
}

// ---- formats ------------------------------------------------------------------------------------
// A format has
//     Half             the type that x has, too
//     kStepColumns     columns in 128 bytes of a row
//     kHasCodes        whether threads read the weights and make halves of them; then
//     kHasPanelScales  whether a step has scales of its own, next to the codes
//     kRowScales       words of scales of a row in a step
//     scale(...)       that of a block of 32 columns, of a row whose scales begin at word `row`
//     halves(...)      what a lane has of the left matrices of two products, 32 columns
//     piece(u, t)      where columns lie in a step of x, for those words: word t of piece u of 32
//     word(u, t)       columns, is this word of this piece of x

template <class HalfType>
struct GroupHalves {
    using Half = HalfType;
    static constexpr int kStepColumns = 64;
    static constexpr bool kHasCodes = false;
    static constexpr bool kHasPanelScales = false;
    static constexpr int kRowScales = 0;

    DSPARK_DEVICE static constexpr int piece(int u, int) { return u; }
    DSPARK_DEVICE static constexpr int word(int, int t) { return t; }
};

// A lane has columns 4 t .. 4 t + 3 and 16 + 4 t .. of 32, with t = lane mod 4.
template <class Code, class HalfType>
struct GroupFp8 {
    using Half = HalfType;
    static constexpr int kStepColumns = 128;
    static constexpr bool kHasCodes = true;
    static constexpr bool kHasPanelScales = false;
    static constexpr int kRowScales = 4;

    // Of the row at word `row` of the panel, block of columns `block`.
    template <int N>
    DSPARK_DEVICE static Bytes16 halves(const SharedArray<uint32_t, N>& words, int row, int block) {
        const int at = row + 64 * block + lane_index<32>() % 4;
        const uint32_t codes[2] = {words[at], words[at + 32]};
        return widen_fp8<Code, Half>(codes);
    }
    template <int N>
    DSPARK_DEVICE static float scale(const SharedArray<uint32_t, N>& words, int row, int block) {
        return bit_cast<float>(uint32_t{words[row + block]});
    }
    DSPARK_DEVICE static constexpr int piece(int u, int t) { return u / 2 * 2 + t / 2; }
    DSPARK_DEVICE static constexpr int word(int u, int t) { return t % 2 * 2 + u % 2; }
};

// A lane has columns 8 t .. 8 t + 7.
template <class HalfType>
struct GroupFp4 {
    using Half = HalfType;
    static constexpr int kStepColumns = 256;
    static constexpr bool kHasCodes = true;
    static constexpr bool kHasPanelScales = true;
    static constexpr int kRowScales = 2;

    template <int N>
    DSPARK_DEVICE static Bytes16 halves(const SharedArray<uint32_t, N>& words, int row, int block) {
        return widen_fp4<Half>(words[row + 32 * block + lane_index<32>() % 4]);
    }
    template <int N>
    DSPARK_DEVICE static float scale(const SharedArray<uint32_t, N>& words, int row, int block) {
        const uint32_t codes = words[row + block / 4];
        return to_float(E8M0{static_cast<uint8_t>(codes >> 8 * (block % 4))});
    }
    DSPARK_DEVICE static constexpr int piece(int, int t) { return t; }
    DSPARK_DEVICE static constexpr int word(int u, int) { return u; }
};

// ---- stages -------------------------------------------------------------------------------------

template <class Format>
struct GroupShared {
    static constexpr int kStages = kGroupStages<Format::kStepColumns>;
    static constexpr int kPieces = Format::kStepColumns / 8;  // of 16 bytes, in a row of x
    static constexpr int kXWords = kGroupItemRowsOfX * kPieces * 4;
    static constexpr int kWeightWords = kPanelsOfItem * kPanelWords;
    static constexpr int kScaleWords = Format::kHasCodes ? kGroupItemRows * Format::kRowScales : 4;
    static constexpr int kSums = kGroupItemRows / kGroupSumRows * kGroupSumWords;

    SharedArray<uint32_t, kStages * kWeightWords> weights;  // [stage, panel, octet, 16 bytes, row]
    SharedArray<uint32_t, kStages * kXWords> x;             // [stage, octet, piece, row]
    SharedArray<uint32_t, kStages * kScaleWords> scales;    // [stage, row, kRowScales]
    SharedArray<float, kSums> sums;                         // [warp, column, row]
    TransferBarrier full[kStages];                          // awaited by those who multiply
    TransferBarrier empty[kStages];                         // awaited by those who bring
};

// Whose turn it is: a stage, and in which phase of its barriers.
template <class Format>
struct StageTurn {
    int stage = 0;
    int parity = 0;

    DSPARK_DEVICE void advance() {
        if (++stage < GroupShared<Format>::kStages) return;
        stage = 0;
        parity ^= 1;
    }
};

// By one thread, before a sync_block.
template <int W, class Format>
DSPARK_DEVICE void init_stages(GroupShared<Format>& shared) {
    constexpr int kGroupWarps = kWarpgroupThreads / W;
    for (int stage = 0; stage < shared.kStages; ++stage) {
        init_barrier(shared.full[stage], kGroupWarps + 1);
        init_barrier(shared.empty[stage], kPanelsOfItem * kGroupWarps);
    }
}

DSPARK_DEVICE int64_t steps_of(const ExpertWeights& weight) {
    return moe::ceil_div(weight.row_bytes, kPanelBytes);
}
DSPARK_DEVICE int panels_of(const ExpertWeights& weight, const GroupItem& item) {
    return weight.rows - item.first_weight > kPanelRows ? 2 : 1;
}
// Columns of a product with the rows of x of an item: a multiple of 16.
DSPARK_DEVICE int product_columns(const GroupItem& item) {
    return (item.num_rows + 15) / 16 * 16;
}

// ---- rows of x ----------------------------------------------------------------------------------

// What a thread brings of a step: units of 32 columns of a row.
template <class Format>
struct UnitsOfX {
    static constexpr int kRowUnits = Format::kStepColumns / 32;
    static constexpr int kUnits = kGroupItemRowsOfX * kRowUnits / kWarpgroupThreads;
    Bytes16 piece[kUnits][4];
    int64_t source[kUnits];  // row of x, or -1
    int rows;                // of the products of the item

    // Eight lanes have the same columns of eight rows: their stores fill all banks.
    DSPARK_DEVICE static int unit(int k) {
        return thread_idx() % kWarpgroupThreads + k * kWarpgroupThreads;
    }
    DSPARK_DEVICE static int row(int k) { return unit(k) / (8 * kRowUnits) * 8 + unit(k) % 8; }
    DSPARK_DEVICE static int unit_of_row(int k) { return unit(k) / 8 % kRowUnits; }

    DSPARK_DEVICE void move_to(const GroupedGemmArgs& args, const GroupItem& item) {
        rows = product_columns(item);
        for (int k = 0; k < kUnits; ++k) {
            const bool is_row = row(k) < item.num_rows;
            source[k] = is_row ? source_row(args, item.first_row + row(k)) : int64_t{-1};
        }
    }
    DSPARK_DEVICE void load(const GroupLaunch& launch, int64_t step) {
        for (int k = 0; k < kUnits; ++k) {
            const int64_t column = step * Format::kStepColumns + unit_of_row(k) * 32;
            for (int i = 0; i < 4; ++i) {
                piece[k][i] = load_columns(launch, source[k], column + 8 * i);
            }
        }
    }
    DSPARK_DEVICE void store(int stage, GroupShared<Format>& shared) const {
        constexpr int kPieces = GroupShared<Format>::kPieces;
        for (int k = 0; k < kUnits; ++k) {
            if (row(k) >= rows) continue;
            for (int u = 0; u < 4; ++u) {
                const int place = row(k) / 8 * kPieces + unit_of_row(k) * 4 + u;
                uint32_t word[4];
                for (int t = 0; t < 4; ++t) {
                    word[t] = piece[k][Format::piece(u, t)].word[Format::word(u, t)];
                }
                shared.x.store4(stage * shared.kXWords + (place * 8 + row(k) % 8) * 4, word[0],
                                word[1], word[2], word[3]);
            }
        }
    }

  private:
    // Eight columns of a row of x; 0 where there is no row, and behind the last column. Both halves
    // of 32 bytes of memory are wanted, one after the other, so this passes through the cache.
    DSPARK_DEVICE static Bytes16 load_columns(const GroupLaunch& launch, int64_t source,
                                              int64_t column) {
        const GroupedGemmArgs& args = launch.args;
        const int64_t left = args.weight.columns - column;
        if (source < 0 || left <= 0) return Bytes16{};
        const int64_t at = source * args.x.stride + column;
        if (launch.has_aligned_x && left >= 8) {
            return global_cast<const Bytes16>(args.x.data)[at / 8];
        }
        const Global<const uint16_t> x = global_cast<const uint16_t>(args.x.data);
        Bytes16 out = {};
        for (int i = 0; i < 8; ++i) {
            const uint32_t bits = i < left ? x[at + i] : uint16_t{0};
            out.word[i / 2] |= bits << 16 * (i % 2);
        }
        return out;
    }
};

// ---- scales -------------------------------------------------------------------------------------

// The scales of a row of the item for the blocks of 32 columns of a step: a thread brings those of
// its row.
template <class Format>
struct RowScales {
    static constexpr int kBlocks = Format::kStepColumns / 32;
    int64_t begin;  // -1: no such row
    float block[kBlocks];

    DSPARK_DEVICE static int row() { return thread_idx() % kWarpgroupThreads; }

    DSPARK_DEVICE void move_to(const GroupedGemmArgs& args, const GroupItem& item) {
        const int64_t v = item.first_weight + row();
        begin = v < args.weight.rows ? scale_begin(args, item.expert, v) : -1;
    }
    DSPARK_DEVICE void load(const ExpertWeights& weight, int64_t step) {
        for (int b = 0; b < kBlocks; ++b) {
            const int64_t column = (step * kBlocks + b) * 32;
            const int64_t at = column / weight.block_columns;
            const bool is_there = begin >= 0 && column < weight.columns;
            block[b] = is_there ? scale_at(weight, begin, at) : 0.0f;
        }
    }
    DSPARK_DEVICE void store(int stage, GroupShared<Format>& shared) const {
        static_assert(kGroupItemRows == kWarpgroupThreads && kBlocks == 4);
        const int at = stage * shared.kScaleWords + row() * Format::kRowScales;
        shared.scales.store4(at, bit_cast<uint32_t>(block[0]), bit_cast<uint32_t>(block[1]),
                             bit_cast<uint32_t>(block[2]), bit_cast<uint32_t>(block[3]));
    }
};

// ---- bringing -----------------------------------------------------------------------------------

// Starts the copies of a step.
template <class Format>
DSPARK_DEVICE void copy_step(const GroupedGemmArgs& args, const GroupItem& item, int64_t step,
                             int stage, GroupShared<Format>& shared) {
    constexpr int kBytes = 4 * kPanelWords;
    constexpr int kScales = Format::kHasPanelScales ? kPanelScaleBytes : 0;
    const ExpertWeights& weight = args.weight;
    const int panels = panels_of(weight, item);
    const int64_t first =
        item.expert * moe::ceil_div(weight.rows, kPanelRows) + item.first_weight / kPanelRows;
    arrive_and_expect(shared.full[stage], panels * (kBytes + kScales));
    for (int panel = 0; panel < panels; ++panel) {
        const int64_t place = (first + panel) * steps_of(weight) + step;
        copy_bulk(shared.weights, stage * shared.kWeightWords + panel * kPanelWords, weight.data,
                  place * kBytes, kBytes, shared.full[stage]);
        if constexpr (Format::kHasPanelScales) {
            copy_bulk(shared.scales, stage * shared.kScaleWords + panel * (kScales / 4),
                      weight.scale, place * kScales, kScales, shared.full[stage]);
        }
    }
}

// All that threads bring of a step.
template <class Format>
struct Brought {
    static constexpr bool kScales = Format::kHasCodes && !Format::kHasPanelScales;
    UnitsOfX<Format> x;
    RowScales<Format> scales;

    DSPARK_DEVICE void move_to(const GroupedGemmArgs& args, const GroupItem& item) {
        x.move_to(args, item);
        if constexpr (kScales) scales.move_to(args, item);
    }
    DSPARK_DEVICE void load(const GroupLaunch& launch, int64_t step) {
        x.load(launch, step);
        if constexpr (kScales) scales.load(launch.args.weight, step);
    }
    DSPARK_DEVICE void store(int stage, GroupShared<Format>& shared) const {
        x.store(stage, shared);
        if constexpr (kScales) scales.store(stage, shared);
    }
};

// All steps of all items of the block.
template <int W, class Format>
DSPARK_DEVICE void bring_items(const GroupLaunch& launch, GroupShared<Format>& shared) {
    const GroupedGemmArgs& args = launch.args;
    const int64_t steps = steps_of(args.weight);
    StageTurn<Format> turn;
    Brought<Format> brought;
    GroupItem item = find_group_item(launch, block_idx().x, 0);
    while (item.first_weight >= 0) {
        const GroupItem next = group_item_after(launch, item);
        brought.move_to(args, item);
        brought.load(launch, 0);
        for (int64_t step = 0; step < steps; ++step) {
            await_phase(shared.empty[turn.stage], turn.parity ^ 1);
            if (thread_idx() % kWarpgroupThreads == 0) {
                copy_step(args, item, step, turn.stage, shared);
            }
            brought.store(turn.stage, shared);
            publish_operands();
            arrive<W>(shared.full[turn.stage]);
            if (step + 1 < steps) brought.load(launch, step + 1);
            turn.advance();
        }
        item = next;
    }
}

}  // namespace dspark::DSPARK_ISA::experts
