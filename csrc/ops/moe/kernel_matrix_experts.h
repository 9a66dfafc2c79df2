// grouped_gemm by matrix units (docs/numerics.md section 13): products of 16 rows of weights, in
// turns, with 16 rows of x, summed in float32 in the order of the columns. Weights go from device
// memory straight into the registers they are multiplied from, each once for up to 64 rows of x,
// which lie in shared memory.
#pragma once

#include "ops/moe/kernel_matrix_scaled.h"

namespace dspark::DSPARK_ISA::experts {

using dspark::experts::blocks_of_multiprocessor;

// ---- products -----------------------------------------------------------------------------------

template <class Format>
constexpr bool kIsScaled =
    std::is_same_v<Format, ScaledWeights<true>> || std::is_same_v<Format, ScaledWeights<false>>;
template <int W, class Format, int kTiles>
using PiecesOf = std::conditional_t<kIsScaled<Format>, SplitPieces<W, Format, kTiles>,
                                    ChunkPieces<W, Format, kTiles>>;

// The steps of a load. What has to be in registers is only ever counted by constants.
template <int kTurn, int kStep = 0, int W, class Format, int kTiles>
DSPARK_DEVICE void take_steps(const MatrixLaunch& launch, int first,
                              const WeightRing<W, Format>& ring, WeightScales<W, Format>& scales,
                              PiecesOf<W, Format, kTiles>& pieces,
                              ItemSums<W, Format, kTiles>& sums, MatrixShared<W, Format>& shared) {
    if constexpr (kStep < Format::kSteps) {
        using Shape = Chunk<W, Format, kTiles>;
        const int step = first + kStep;
        const int chunk = step / Shape::kSteps;
        if (step % Shape::kSteps == 0) {
            pieces.store(chunk, shared);
            sync_block();
            pieces.load(launch, chunk + 1, shared);
        }
        scales.template advance<kStep>(launch, step);
        const int begin = chunk % 2 * Shape::kWords;
        if constexpr (!kIsScaled<Format>) {
            typename ProductOf<W, Format>::Rows rows[kRowTiles<W, Format>];
            ring.template rows<kTurn, kStep>(rows);
            sums.add(rows, launch.lanes.args.weight, scales, step, begin, shared);
        } else if constexpr (kStep % 2 == 0) {
            add_scaled<kStep>(Format::operand(ring.piece[kTurn][0], kStep), scales.now[0][0], step,
                              begin, sums, shared);
        }
        take_steps<kTurn, kStep + 1>(launch, first, ring, scales, pieces, sums, shared);
    }
}

// Loads of an item.
template <class Format>
DSPARK_DEVICE int count_loads(const ExpertWeights& weight) {
    constexpr int kColumns = 32 * Format::kSteps;
    return (static_cast<int>(weight.columns) + kColumns - 1) / kColumns;
}

// The loads from `first` on, of which each is followed on its way by one of `places`, from load
// `follower` on.
template <int kTurn = 0, int W, class Format, int kTiles>
DSPARK_DEVICE void take_turns(const MatrixLaunch& launch, int first, WeightRing<W, Format>& ring,
                              const WeightPlaces<W, Format>& places, int follower,
                              WeightScales<W, Format>& scales, PiecesOf<W, Format, kTiles>& pieces,
                              ItemSums<W, Format, kTiles>& sums, MatrixShared<W, Format>& shared) {
    if constexpr (kTurn < WeightRing<W, Format>::kLoads) {
        const GroupedGemmArgs& args = launch.lanes.args;
        if (first + kTurn < count_loads<Format>(args.weight)) {
            ring.template spread<kTurn>();
            take_steps<kTurn>(launch, (first + kTurn) * Format::kSteps, ring, scales, pieces, sums,
                              shared);
        }
        ring.template load<kTurn>(args, places, follower + kTurn);
        take_turns<kTurn + 1>(launch, first, ring, places, follower, scales, pieces, sums, shared);
    }
}

// ---- the kernel ---------------------------------------------------------------------------------

// The item that is kept in turn `turn`; keeps the one after it, whose first loads are on their way
// then. Items are not held in registers meanwhile.
template <int W, class Format, int kTiles>
DSPARK_DEVICE void run_item(const MatrixLaunch& launch, int turn, WeightPlaces<W, Format>& places,
                            WeightRing<W, Format>& ring, MatrixShared<W, Format>& shared) {
    const GroupedGemmArgs& args = launch.lanes.args;
    WeightScales<W, Format> scales;
    PiecesOf<W, Format, kTiles> pieces = {};
    ItemSums<W, Format, kTiles> sums = {};
    const MatrixItem item = shared.kept(turn);
    scales.move_to(launch, item.expert, item.first_weight());
    pieces.load(launch, 0, shared);
    const int loads = count_loads<Format>(args.weight);
    for (int first = 0; first < loads; first += ring.kLoads) {
        const bool is_last = first + ring.kLoads >= loads;
        if (is_last) {
            const MatrixItem next = item_after(launch, shared.kept(turn));
            places.move_to(args, next.expert, next.first_weight());
            if (thread_idx() == 0) shared.keep(1 - turn, next);
        }
        take_turns(launch, first, ring, places, is_last ? 0 : first + ring.kLoads, scales, pieces,
                   sums, shared);
    }
    store_item(args, shared.kept(turn), sums);
}

template <int W, class Format>
DSPARK_DEVICE void run_items(const MatrixLaunch& launch, MatrixShared<W, Format>& shared) {
    const GroupedGemmArgs& args = launch.lanes.args;
    const MatrixItem first = first_item(launch);
    if (thread_idx() == 0) shared.keep(0, first);
    WeightPlaces<W, Format> places;
    WeightRing<W, Format> ring;
    places.move_to(args, first.expert, first.first_weight());
    ring.start(args, places);
    for (int turn = 0;; turn = 1 - turn) {
        sync_block();  // the item is kept, the rows of x before have been read
        const MatrixItem item = shared.kept(turn);
        if (item.range < 0) return;
        if (thread_idx() < kMostRows<Format>) {
            const bool is_row = thread_idx() < item.num_rows;
            shared.source[thread_idx()] =
                is_row ? source_row(args, item.first_row + thread_idx()) : int64_t{-1};
        }
        sync_block();
        constexpr int kMost = kMostTiles<Format>;
        constexpr int kLeast = kIsWide<Format> ? 2 : 1;
        if (item.num_rows <= 16 * kLeast) {
            run_item<W, Format, kLeast>(launch, turn, places, ring, shared);
        } else if (kMost == 2 * kLeast || item.num_rows > 32) {
            run_item<W, Format, kMost>(launch, turn, places, ring, shared);
        } else if constexpr (kMost > 2 * kLeast) {
            run_item<W, Format, 2 * kLeast>(launch, turn, places, ring, shared);
        }
    }
}

// Decoder: of the same format, for chips without a matrix unit.
template <int W, class Format, class Decoder>
DSPARK_KERNEL(kThreads, blocks_of_multiprocessor(16 / Format::kSteps))
void matrix_gemm_kernel(MatrixLaunch launch) {
    check_warp_size<W>();
    const GroupedGemmArgs& args = launch.lanes.args;
    if constexpr (kHasMatrixUnit<W>) {
        using Shared = MatrixShared<W, Format>;
        DSPARK_SHARED(Shared, shared);
        using Scaled = ScaledFormOf<Format>;
        if constexpr (!std::is_void_v<Scaled> && kMayHaveScaledMatrixUnit<W>) {
            if (has_scaled_matrix_unit<W>()) {
                run_items<W, Scaled>(launch, shared);
            } else {
                run_items<W, Format>(launch, shared);
            }
        } else {
            run_items<W, Format>(launch, shared);
        }
        for (int64_t rows = block_idx().x; rows * kGroups < args.rows.capacity;
             rows += grid_dim().x) {
            clear_unused_rows(args, rows);
        }
    } else {
        DSPARK_SHARED(GemmShared<Decoder>, shared);
        run_gemm_items(launch.lanes, shared);
    }
}

}  // namespace dspark::DSPARK_ISA::experts
