// grouped_gemm by matrix units (docs/numerics.md section 13): products of 16 rows of weights, in
// turns, with 16 rows of x, summed in float32 in the order of the columns. Weights go from device
// memory straight into the registers they are multiplied from, each once for up to 64 rows of x,
// which lie in shared memory.
#pragma once

#include "ops/moe/kernel_matrix_items.h"
#include "ops/moe/kernel_matrix_weights.h"

namespace dspark::DSPARK_ISA::experts {

using dspark::experts::blocks_of_multiprocessor;
using dspark::experts::chunk_steps;
using dspark::experts::most_item_tiles;

// Rows of x of an item, at most.
template <class Format>
constexpr int kMostTiles = most_item_tiles(16 / Format::kSteps);
template <class Format>
constexpr int kMostRows = 16 * kMostTiles<Format>;

// ---- rows of x ----------------------------------------------------------------------------------

// A chunk of kTiles tiles of x.
template <int W, class Format, int kTiles>
struct Chunk {
    using Product = MatrixProduct<W, typename Format::Half>;
    static constexpr int kSteps = chunk_steps(kTiles);
    static constexpr int kColumns = 32 * kSteps;
    static constexpr int kTileWords = Product::column_words(kColumns);
    static constexpr int kWords = kTiles * kTileWords;
};

template <int W, class Format>
struct MatrixShared {
    static constexpr int kTwo = Chunk<W, Format, 2>::kWords;
    static constexpr int kMost = Chunk<W, Format, kMostTiles<Format>>::kWords;
    SharedArray<uint32_t, 2 * (kTwo > kMost ? kTwo : kMost)> x;  // two chunks in turns
    SharedArray<int64_t, kMostRows<Format>> source;
    SharedArray<int64_t, 2 * 5> items;  // the one at work and the next, in turns

    DSPARK_DEVICE void keep(int turn, const MatrixItem& item) {
        const int64_t fields[5] = {item.tile, item.range, item.expert, item.first_row,
                                   item.num_rows};
        for (int i = 0; i < 5; ++i) items[5 * turn + i] = fields[i];
    }
    DSPARK_DEVICE MatrixItem kept(int turn) {
        const int64_t tile = items[5 * turn], range = items[5 * turn + 1];
        const int64_t expert = items[5 * turn + 2], first_row = items[5 * turn + 3];
        const int64_t num_rows = items[5 * turn + 4];
        return {tile, static_cast<int>(range), static_cast<int>(expert), first_row,
                static_cast<int>(num_rows)};
    }
};

// What a thread brings of each chunk: pieces of 8 columns of two rows of x, eight apart.
template <int W, class Format, int kTiles>
struct ChunkPieces {
    using Shape = Chunk<W, Format, kTiles>;
    using Shared = MatrixShared<W, Format>;
    static constexpr int kRowPieces = Shape::kColumns / 8;
    static constexpr int kPairs = kTiles * 8 * kRowPieces;
    static constexpr int kOwn = (kPairs + kThreads - 1) / kThreads;
    Bytes16 low[kOwn], high[kOwn];

    DSPARK_DEVICE void load(const MatrixLaunch& launch, int chunk, Shared& shared) {
        DSPARK_UNROLL
        for (int i = 0; i < kOwn; ++i) {
            const int pair = thread_idx() + i * kThreads;
            low[i] = Bytes16{};
            high[i] = Bytes16{};
            if (pair >= kPairs) continue;
            const int row = pair / kRowPieces / 8 * 16 + pair / kRowPieces % 8;
            const int column = chunk * Shape::kColumns + pair % kRowPieces * 8;
            low[i] = load_piece(launch, shared.source[row], column);
            high[i] = load_piece(launch, shared.source[row + 8], column);
        }
    }
    DSPARK_DEVICE void store(int chunk, Shared& shared) const {
        const int begin = chunk % 2 * Shape::kWords;
        DSPARK_UNROLL
        for (int i = 0; i < kOwn; ++i) {
            const int pair = thread_idx() + i * kThreads;
            if (pair >= kPairs) continue;
            const int tile = pair / kRowPieces / 8;
            const int piece = pair % kRowPieces;
            const int place = piece / 4 * 4 + Format::place(piece % 4);
            Shape::Product::store_columns(low[i], high[i], begin + tile * Shape::kTileWords,
                                          pair / kRowPieces % 8, 8 * place, Shape::kColumns,
                                          shared.x);
        }
    }

  private:
    // Eight columns of a row of x; 0 where there is no row, and behind the last column.
    DSPARK_DEVICE static Bytes16 load_piece(const MatrixLaunch& launch, int64_t source,
                                            int column) {
        const GroupedGemmArgs& args = launch.lanes.args;
        const int64_t at = source * args.x.stride + column;
        if (source < 0 || column >= args.weight.columns) return Bytes16{};
        if (launch.has_aligned_x && column + 8 <= args.weight.columns) {
            return load16(args.x.data, 2 * at);
        }
        const Global<const uint16_t> x = global_cast<const uint16_t>(args.x.data);
        Bytes16 out = {};
        for (int i = 0; i < 8; ++i) {
            const uint32_t bits = column + i < args.weight.columns ? x[at + i] : uint16_t{0};
            out.word[i / 2] |= bits << 16 * (i % 2);
        }
        return out;
    }
};

// ---- products -----------------------------------------------------------------------------------

template <int W, class Format, int kTiles>
struct ItemSums {
    using Shape = Chunk<W, Format, kTiles>;
    using Product = typename Shape::Product;
    typename Product::Sums of[kRowTiles<W>][kTiles];

    // Adds the products of a step: of rows in registers with x, which lies in the chunk at `begin`.
    DSPARK_DEVICE void add(const typename Product::Rows (&rows)[kRowTiles<W>],
                           const ExpertWeights& weight, const WeightScales<W, Format>& scales,
                           int step, int begin, const MatrixShared<W, Format>& shared) {
        DSPARK_UNROLL
        for (int c = 0; c < kTiles; ++c) {
            const typename Product::Columns columns =
                Product::load_columns(shared.x, begin + c * Shape::kTileWords,
                                      32 * (step % Shape::kSteps), Shape::kColumns);
            DSPARK_UNROLL
            for (int t = 0; t < kRowTiles<W>; ++t) {
                if constexpr (Format::kHasScales) {
                    typename Product::Sums part = {};
                    Product::multiply(rows[t], columns, part);
                    DSPARK_UNROLL
                    for (int i = 0; i < Product::kSums; ++i) {
                        const int row = W == 64 ? i : i % 2 + i / 4 * 2;  // after sum_row(0)
                        float& sum = of[t][c].of[i / 4][i % 4];
                        sum = fma(part.of[i / 4][i % 4], scales.scale(weight, t, row), sum);
                    }
                } else {
                    Product::multiply(rows[t], columns, of[t][c]);
                }
            }
        }
    }
};

// The steps of a load. What has to be in registers is only ever counted by constants.
template <int kTurn, int kStep = 0, int W, class Format, int kTiles>
DSPARK_DEVICE void take_steps(const MatrixLaunch& launch, int first,
                              const WeightRing<W, Format>& ring, WeightScales<W, Format>& scales,
                              ChunkPieces<W, Format, kTiles>& pieces,
                              ItemSums<W, Format, kTiles>& sums, MatrixShared<W, Format>& shared) {
    if constexpr (kStep < Format::kSteps) {
        using Shape = Chunk<W, Format, kTiles>;
        const ExpertWeights& weight = launch.lanes.args.weight;
        const int step = first + kStep;
        const int chunk = step / Shape::kSteps;
        if (step % Shape::kSteps == 0) {
            pieces.store(chunk, shared);
            sync_block();
            pieces.load(launch, chunk + 1, shared);
        }
        scales.advance(weight, step);
        typename Shape::Product::Rows rows[kRowTiles<W>];
        ring.template rows<kTurn, kStep>(rows);
        sums.add(rows, weight, scales, step, chunk % 2 * Shape::kWords, shared);
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
                              WeightScales<W, Format>& scales,
                              ChunkPieces<W, Format, kTiles>& pieces,
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

// ---- results ------------------------------------------------------------------------------------

// Two results side by side, of which the first has an even place.
DSPARK_DEVICE void store_pair(const GroupedGemmArgs& args, int64_t at, float first, float second) {
    if (args.out_dtype == FloatType::kFloat32) {
        store_rounded(args, at, first);
        return store_rounded(args, at + 1, second);
    }
    uint32_t word;
    if (args.out_dtype == FloatType::kBFloat16) {
        BFloat16 low, high;
        narrow(first, &low);
        narrow(second, &high);
        word = low.bits | static_cast<uint32_t>(high.bits) << 16;
    } else {
        Float16 low, high;
        narrow(first, &low);
        narrow(second, &high);
        word = low.bits | static_cast<uint32_t>(high.bits) << 16;
    }
    global_cast<uint32_t>(args.out)[at / 2] = word;
}

template <int kCount>
DSPARK_DEVICE void store_run(const GroupedGemmArgs& args, int64_t at, const float (&value)[kCount],
                             int count) {
    DSPARK_UNROLL
    for (int i = 0; i < kCount; i += 2) {
        if (i + 1 < count && (at + i) % 2 == 0) {
            store_pair(args, at + i, value[i], value[i + 1]);
        } else {
            if (i < count) store_rounded(args, at + i, value[i]);
            if (i + 1 < count) store_rounded(args, at + i + 1, value[i + 1]);
        }
    }
}

// What becomes of the products of one row of x with four rows of weights, the first of them v.
DSPARK_DEVICE void store_four(const GroupedGemmArgs& args, int64_t row, int64_t v,
                              const float (&product)[4]) {
    const int64_t columns = out_columns(args.activation, args.weight.rows);
    const int64_t left = args.weight.rows - v;
    if (args.activation == Activation::kNone) {
        return store_run(args, row * columns + v, product, left < 4 ? static_cast<int>(left) : 4);
    }
    const float value[2] = {clamped_swiglu(product[0], product[1], args.limit),
                            clamped_swiglu(product[2], product[3], args.limit)};
    store_run(args, row * columns + v / 2, value, left < 4 ? static_cast<int>(left / 2) : 2);
}

template <int W, class Format, int kTiles>
DSPARK_DEVICE void store_item(const GroupedGemmArgs& args, const MatrixItem& item,
                              const ItemSums<W, Format, kTiles>& sums) {
    using Product = MatrixProduct<W, typename Format::Half>;
    DSPARK_UNROLL
    for (int t = 0; t < kRowTiles<W>; ++t) {
        const int64_t v = item.first_weight() + tile_row<W>(t) + Product::sum_row(0);
        if (v >= args.weight.rows) continue;
        DSPARK_UNROLL
        for (int c = 0; c < kTiles; ++c) {
            DSPARK_UNROLL
            for (int half = 0; half < Product::kSums / 4; ++half) {
                const int row = 16 * c + Product::sum_column(2 * half);
                if (row >= item.num_rows) continue;
                float product[4];
                DSPARK_UNROLL
                for (int r = 0; r < 4; ++r) {
                    product[r] = W == 64 ? sums.of[t][c].of[0][r]
                                         : sums.of[t][c].of[r / 2][r % 2 + 2 * half];
                }
                store_four(args, item.first_row + row, v, product);
            }
        }
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
    ChunkPieces<W, Format, kTiles> pieces = {};
    ItemSums<W, Format, kTiles> sums = {};
    const MatrixItem item = shared.kept(turn);
    scales.move_to(args, item.expert, item.first_weight());
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
        if (item.num_rows <= 16) {
            run_item<W, Format, 1>(launch, turn, places, ring, shared);
        } else if (kMost == 2 || item.num_rows > 32) {
            run_item<W, Format, kMost>(launch, turn, places, ring, shared);
        } else if constexpr (kMost > 2) {
            run_item<W, Format, 2>(launch, turn, places, ring, shared);
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
        run_items<W, Format>(launch, shared);
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
