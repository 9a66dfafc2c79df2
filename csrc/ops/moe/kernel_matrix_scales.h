// The scales of the rows whose sums a lane has: those of one step, and those that come next, on
// their way while the others are used.
#pragma once

#include "ops/moe/kernel_matrix_weights.h"

namespace dspark::DSPARK_ISA::experts {

// Where the scales of the rows of a lane begin.
template <int W, class Format>
struct ScalePlaces {
    using Product = ProductOf<W, Format>;
    static constexpr int kTiles = kRowTiles<W, Format>;
    static constexpr int kRows = Product::kSumRows;
    int64_t expert;
    int row[kTiles][kRows];  // from there on; those of the first row where there is none

    DSPARK_DEVICE void move_to(const GroupedGemmArgs& args, int64_t of_expert, int64_t first) {
        expert = scale_begin(args, of_expert, 0);
        DSPARK_UNROLL
        for (int t = 0; t < kTiles; ++t) {
            DSPARK_UNROLL
            for (int r = 0; r < kRows; ++r) {
                const int64_t v = first + tile_row<W, Format>(t) + Product::sum_row(0) + r;
                row[t][r] = static_cast<int>(scale_begin(args, 0, v < args.weight.rows ? v : 0));
            }
        }
    }
    DSPARK_DEVICE int64_t begin(int t, int r) const { return expert + row[t][r]; }
};

template <int W, class Format, bool kHasScales = Format::kHasScales,
          bool kHasE8M0 = Format::kHasE8M0>
struct WeightScales;

// Without scales.
template <int W, class Format>
struct WeightScales<W, Format, false, false> {
    DSPARK_DEVICE void move_to(const MatrixLaunch&, int64_t, int64_t) {}
    template <int kStep>
    DSPARK_DEVICE void advance(const MatrixLaunch&, int) {}
};

// Of blocks of any number of columns, E8M0 or float32.
template <int W, class Format>
struct WeightScales<W, Format, true, false> {
    using Places = ScalePlaces<W, Format>;
    Places places;
    int next_block;  // to be fetched
    uint32_t now[Places::kTiles][Places::kRows];
    uint32_t next[Places::kTiles][Places::kRows];

    DSPARK_DEVICE void move_to(const MatrixLaunch& launch, int64_t expert, int64_t first) {
        places.move_to(launch.lanes.args, expert, first);
        next_block = 0;
        DSPARK_UNROLL
        for (int t = 0; t < Places::kTiles; ++t) {
            DSPARK_UNROLL
            for (int r = 0; r < Places::kRows; ++r) next[t][r] = 0;
        }
        fetch(launch.lanes.args.weight, 0);
    }
    // Before step `step`, number kStep of its load, is multiplied.
    template <int kStep>
    DSPARK_DEVICE void advance(const MatrixLaunch& launch, int step) {
        DSPARK_UNROLL
        for (int t = 0; t < Places::kTiles; ++t) {
            DSPARK_UNROLL
            for (int r = 0; r < Places::kRows; ++r) now[t][r] = next[t][r];
        }
        fetch(launch.lanes.args.weight, step + 1);
    }
    DSPARK_DEVICE float scale(const ExpertWeights& weight, int tile, int row) const {
        const uint32_t stored = now[tile][row];
        if (weight.scale_is_e8m0) return to_float(E8M0{static_cast<uint8_t>(stored)});
        return bit_cast<float>(stored);
    }

  private:
    // The scales of `step`, unless they are there already.
    DSPARK_DEVICE void fetch(const ExpertWeights& weight, int step) {
        if (32 * step < next_block * static_cast<int>(weight.block_columns)) return;
        if (next_block >= weight.scale_columns) return;
        DSPARK_UNROLL
        for (int t = 0; t < Places::kTiles; ++t) {
            DSPARK_UNROLL
            for (int r = 0; r < Places::kRows; ++r) {
                const int64_t at = places.begin(t, r) + next_block;
                next[t][r] = weight.scale_is_e8m0 ? global_cast<const uint8_t>(weight.scale)[at]
                                                  : global_cast<const uint32_t>(weight.scale)[at];
            }
        }
        ++next_block;
    }
};

// E8M0, a load at a time: a word has those of its steps, the first in its low byte.
template <int W, class Format>
struct WeightScales<W, Format, true, true> {
    using Places = ScalePlaces<W, Format>;
    using Stored = std::conditional_t<Format::kSteps == 4, uint32_t, uint16_t>;
    static_assert(sizeof(Stored) == Format::kSteps);
    Places places;
    uint32_t now[Places::kTiles][Places::kRows];
    uint32_t next[Places::kTiles][Places::kRows];
    int byte;          // of the step
    int block;         // of columns, of the step that comes next
    int columns_left;  // of it

    DSPARK_DEVICE void move_to(const MatrixLaunch& launch, int64_t expert, int64_t first) {
        places.move_to(launch.lanes.args, expert, first);
        block = 0;
        columns_left = static_cast<int>(launch.lanes.args.weight.block_columns);
        fetch(launch, 0);
    }
    template <int kStep>
    DSPARK_DEVICE void advance(const MatrixLaunch& launch, [[maybe_unused]] int step) {
        byte = kStep;
        if constexpr (kStep == 0) {
            DSPARK_UNROLL
            for (int t = 0; t < Places::kTiles; ++t) {
                DSPARK_UNROLL
                for (int r = 0; r < Places::kRows; ++r) now[t][r] = next[t][r];
            }
            fetch(launch, step + Format::kSteps);
        }
    }
    DSPARK_DEVICE float scale(const ExpertWeights&, int tile, int row) const {
        return to_float(E8M0{static_cast<uint8_t>(now[tile][row] >> 8 * byte)});
    }

  private:
    // The scales of the load that begins with `step`, where there are any.
    DSPARK_DEVICE void fetch(const MatrixLaunch& launch, int step) {
        if (32 * step >= static_cast<int>(launch.lanes.args.weight.columns)) return;
        if (launch.has_scale_words) return fetch_words(launch.lanes.args.weight, step);
        DSPARK_UNROLL
        for (int i = 0; i < Format::kSteps; ++i) fetch_bytes(launch.lanes.args.weight, i);
    }
    DSPARK_DEVICE void fetch_words(const ExpertWeights& weight, int step) {
        const int64_t distance = scale_distance(weight, step);
        DSPARK_UNROLL
        for (int t = 0; t < Places::kTiles; ++t) {
            DSPARK_UNROLL
            for (int r = 0; r < Places::kRows; ++r) {
                const int64_t at = (places.begin(t, r) + distance) / Format::kSteps;
                next[t][r] = global_cast<const Stored>(weight.scale)[at];
            }
        }
    }
    // Those of step i of the load, unless K has ended.
    DSPARK_DEVICE void fetch_bytes(const ExpertWeights& weight, int i) {
        if (block >= static_cast<int>(weight.scale_columns)) return;
        const int64_t distance = scale_distance(weight, block);
        DSPARK_UNROLL
        for (int t = 0; t < Places::kTiles; ++t) {
            DSPARK_UNROLL
            for (int r = 0; r < Places::kRows; ++r) {
                const uint32_t scale =
                    global_cast<const uint8_t>(weight.scale)[places.begin(t, r) + distance];
                next[t][r] = i == 0 ? scale : next[t][r] | scale << 8 * i;
            }
        }
        columns_left -= 32;
        if (columns_left > 0) return;
        ++block;
        columns_left = static_cast<int>(weight.block_columns);
    }
};

}  // namespace dspark::DSPARK_ISA::experts
