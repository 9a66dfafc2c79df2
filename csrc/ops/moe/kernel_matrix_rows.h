// Rows of x on their way from device memory into the shared memory that all warps multiply from.
#pragma once

#include "ops/moe/kernel_matrix_weights.h"

namespace dspark::DSPARK_ISA::experts {

using dspark::experts::chunk_steps;
using dspark::experts::most_item_tiles;

template <class Format>
constexpr bool kIsWide = std::is_base_of_v<WideTiles<typename Format::Half>, Format>;
// Rows of x of an item, at most. They are counted in tiles of 16; a wide product takes two.
template <class Format>
constexpr int kMostTiles = most_item_tiles(16 / Format::kSteps, kIsWide<Format>);
template <class Format>
constexpr int kMostRows = 16 * kMostTiles<Format>;

// ---- rows of x ----------------------------------------------------------------------------------

// A chunk of kTiles tiles of x.
template <int W, class Format, int kTiles>
struct Chunk {
    using Staging = MatrixProduct<W, typename Format::Half>;
    static constexpr int kSteps = chunk_steps(kTiles);
    static constexpr int kColumns = 32 * kSteps;
    static constexpr int kTileWords = Staging::column_words(kColumns);
    static constexpr int kRowWords = Staging::stride(kColumns);  // in warps of 64
    static constexpr int kWords = kTiles * kTileWords;
};

// kWords: of a chunk.
template <int kWords, int kRows>
struct SharedRows {
    SharedArray<uint32_t, 2 * kWords> x;  // two chunks in turns
    SharedArray<int64_t, kRows> source;
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

template <int W, class Format>
constexpr int kMostWords =
    Chunk<W, Format, 2>::kWords > Chunk<W, Format, kMostTiles<Format>>::kWords
        ? Chunk<W, Format, 2>::kWords
        : Chunk<W, Format, kMostTiles<Format>>::kWords;
template <int W, class Format>
using MatrixShared = SharedRows<kMostWords<W, Format>, kMostRows<Format>>;

// Eight columns of a row of x; 0 where there is no row, and behind the last column.
DSPARK_DEVICE Bytes16 load_piece(const MatrixLaunch& launch, int64_t source, int column) {
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
            Shape::Staging::store_columns(low[i], high[i], begin + tile * Shape::kTileWords,
                                          pair / kRowPieces % 8, 8 * place, Shape::kColumns,
                                          shared.x);
        }
    }
};

}  // namespace dspark::DSPARK_ISA::experts
