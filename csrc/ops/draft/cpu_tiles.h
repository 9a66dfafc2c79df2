// The bias product of the default path by the tile registers of AMX: rows of w2, as they lie in
// memory, by the inputs of 16 requests, 32 entries at a time and in float32 (amx.h). A product
// depends on its row and its request alone.
#pragma once

#include <cstring>

#include "backends/cpu/amx.h"
#include "backends/cpu/isa.h"
#include "device/narrow.h"
#include "ops/draft/cpu.h"

namespace dspark::DSPARK_ISA::draft {

using dspark::draft::kTileDepth;
using dspark::draft::kTileRequests;
using dspark::draft::tile_groups;
using dspark::draft::tile_steps;

constexpr int kTileWordsInAll = amx::kTileRows * amx::kTileWords;
constexpr int kPassWeights = 2 * amx::kTileRows;  // rows of w2 at a time
constexpr int kPassGroups = 2;                    // groups of requests at a time

inline bool takes_tiles(const MarkovArgs& args) {
    const cpu::PairUnit unit = cpu::pair_unit();
    return !args.exact && args.w2_type == FloatType::kBFloat16 && args.rank > 0 &&
           (unit == cpu::PairUnit::kTiles || unit == cpu::PairUnit::kEmulatedTiles);
}

// Calls use(tiles) with the machine's tile registers.
template <class Use>
inline void with_tiles(const Use& use) {
#if defined(__AVX512F__)
    if (cpu::pair_unit() == cpu::PairUnit::kTiles) {
        amx::AmxTiles tiles;
        return use(tiles);
    }
#endif
    amx::EmulatedTiles tiles;
    use(tiles);
}

// The scratch of a thread behind what the path in lanes has (`cpu.h`).
struct TileScratch {
    uint32_t* inputs;  // [groups][steps][16 pairs of entries][16 requests]
    float* sums;       // [2 tiles of rows][kPassGroups][16 rows][16 requests]

    TileScratch(const MarkovArgs& args, float* memory)
        : inputs(reinterpret_cast<uint32_t*>(memory)),
          sums(memory + tile_groups(args.batch) * tile_steps(args.rank) * kTileWordsInAll) {}
};

// Rounds u of every request to the dtype of w2; requests and entries that do not exist are zeros.
inline void put_inputs(const MarkovArgs& args, uint32_t* inputs) {
    const int64_t steps = tile_steps(args.rank);
    const int64_t words = tile_groups(args.batch) * steps * kTileWordsInAll;
    memset(inputs, 0, static_cast<size_t>(words) * sizeof(uint32_t));
    for (int64_t b = 0; b < args.batch; ++b) {
        const float* u = args.bias_input + b * args.padded_rank;
        uint32_t* tiles = inputs + b / kTileRequests * steps * kTileWordsInAll + b % kTileRequests;
        for (int64_t j = 0; j < args.rank; ++j) {
            BFloat16 rounded;
            narrow(u[j], &rounded);
            tiles[j / 2 * kTileRequests] |= static_cast<uint32_t>(rounded.bits) << 16 * (j % 2);
        }
    }
}

// kPassWeights rows of whole steps.
struct TileRows {
    const BFloat16* data;
    int64_t stride;  // entries
};

// Rows first .. first + count - 1 of w2; copied, with zeros around, where tiles would not fit.
inline TileRows tile_rows(const MarkovArgs& args, int64_t first, int count, BFloat16* copy) {
    const BFloat16* rows = static_cast<const BFloat16*>(args.w2) + first * args.rank;
    if (count == kPassWeights && args.rank % kTileDepth == 0) return {rows, args.rank};
    const int64_t stride = tile_steps(args.rank) * kTileDepth;
    memset(copy, 0, static_cast<size_t>(kPassWeights * stride) * sizeof(*copy));
    for (int r = 0; r < count; ++r) {
        memcpy(copy + r * stride, rows + r * args.rank,
               static_cast<size_t>(args.rank) * sizeof(*copy));
    }
    return {copy, stride};
}

// The products of a pass with one group of requests, or with two; `inputs` are of the first.
template <int kGroups, class Tiles>
DSPARK_AMX_TARGET void multiply_pass(Tiles& tiles, const TileRows& rows, int64_t steps,
                                     const uint32_t* inputs, float* sums) {
    const int64_t stride = rows.stride * int64_t{sizeof(BFloat16)};
    const uint32_t* other = inputs + steps * kTileWordsInAll;
    tiles.template zero<0>();
    tiles.template zero<2>();
    if constexpr (kGroups == 2) {
        tiles.template zero<1>();
        tiles.template zero<3>();
    }
    for (int64_t s = 0; s < steps; ++s) {
        tiles.template load<4>(rows.data + s * kTileDepth, stride);
        tiles.template load<5>(rows.data + amx::kTileRows * rows.stride + s * kTileDepth, stride);
        tiles.template load<6>(inputs + s * kTileWordsInAll, amx::kTileBytes);
        tiles.template dot<0, 4, 6>();
        tiles.template dot<2, 5, 6>();
        if constexpr (kGroups == 2) {
            tiles.template load<7>(other + s * kTileWordsInAll, amx::kTileBytes);
            tiles.template dot<1, 4, 7>();
            tiles.template dot<3, 5, 7>();
        }
    }
    tiles.template save<0>(sums, amx::kTileBytes);
    tiles.template save<2>(sums + kPassGroups * kTileWordsInAll, amx::kTileBytes);
    if constexpr (kGroups == 2) {
        tiles.template save<1>(sums + kTileWordsInAll, amx::kTileBytes);
        tiles.template save<3>(sums + (kPassGroups + 1) * kTileWordsInAll, amx::kTileBytes);
    }
}

// bias[request][row] of `count` rows of w2 from `first` on, rows kBiasRows apart.
template <class Tiles>
inline void tile_bias(const MarkovArgs& args, Tiles& tiles, int64_t first, int count,
                      float* widened, const TileScratch& scratch, float* bias) {
    const int64_t steps = tile_steps(args.rank);
    const int64_t groups = tile_groups(args.batch);
    for (int row = 0; row < count; row += kPassWeights) {
        const int left = count - row < kPassWeights ? count - row : kPassWeights;
        const TileRows rows =
            tile_rows(args, first + row, left, reinterpret_cast<BFloat16*>(widened));
        for (int64_t g = 0; g < groups; g += kPassGroups) {
            const uint32_t* inputs = scratch.inputs + g * steps * kTileWordsInAll;
            if (groups - g >= kPassGroups) {
                multiply_pass<kPassGroups>(tiles, rows, steps, inputs, scratch.sums);
            } else {
                multiply_pass<1>(tiles, rows, steps, inputs, scratch.sums);
            }
            const int64_t begin = g * kTileRequests;
            const int64_t end = begin + kPassGroups * kTileRequests;
            for (int64_t b = begin; b < end && b < args.batch; ++b) {
                const int64_t group = (b - begin) / kTileRequests;
                for (int r = 0; r < left; ++r) {
                    const int64_t tile = r / amx::kTileRows * kPassGroups + group;
                    bias[b * kBiasRows + row + r] =
                        scratch.sums[tile * kTileWordsInAll + r % amx::kTileRows * kTileRequests +
                                     b % kTileRequests];
                }
            }
        }
    }
}

}  // namespace dspark::DSPARK_ISA::draft
