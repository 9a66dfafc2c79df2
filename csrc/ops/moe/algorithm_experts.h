// The rules of the expert layer, for every backend. Section 13 of docs/numerics.md.
#pragma once

#include "device/dtype.h"
#include "device/formats.h"
#include "ops/moe/algorithm.h"
#include "ops/moe/args_experts.h"

namespace dspark::DSPARK_ISA::experts {

// A product is summed in this many lanes, lane = column mod 16, then by the halving tree.
constexpr int kProductLanes = 16;

// ---- weights ------------------------------------------------------------------------------------

// How weights are read out of 32-bit words of memory. A decoder has
//     kPerWord             weights in a word
//     decode(word, i)      the float32 of weight i of a word, without its scale
struct Float32Decoder {
    static constexpr int kPerWord = 1;
    DSPARK_DEVICE static float decode(uint32_t word, int) { return bit_cast<float>(word); }
};
template <class Half>
struct HalfDecoder {
    static constexpr int kPerWord = 2;
    DSPARK_DEVICE static float decode(uint32_t word, int i) {
        return to_float(Half{static_cast<uint16_t>(word >> 16 * i)});
    }
};
template <class Code>
struct ByteDecoder {
    static constexpr int kPerWord = 4;
    DSPARK_DEVICE static float decode(uint32_t word, int i) {
        return to_float(Code{static_cast<uint8_t>(word >> 8 * i)});
    }
};
struct Fp4Decoder {
    static constexpr int kPerWord = 8;
    DSPARK_DEVICE static float decode(uint32_t word, int i) {
        return to_float(Fp4E2M1{static_cast<uint8_t>((word >> 4 * i) & 0xFu)});
    }
};

// ---- where weights lie --------------------------------------------------------------------------
// Rows are counted in turns: of gates and ups, row 2 i is gate i and row 2 i + 1 up i, however they
// are stored. Rows of the result are then made of rows side by side.

constexpr int kPanelRows = 64;
constexpr int kPanelBytes = 128;  // of a row in a step of a panel

// The row that row v in turns was before prepare_weights.
DSPARK_DEVICE int64_t source_weight_row(const GroupedGemmArgs& args, int64_t v) {
    if (args.activation != Activation::kSwiglu) return v;
    return v % 2 * (args.weight.rows / 2) + v / 2;
}

// The first byte of row v in turns of an expert.
DSPARK_DEVICE int64_t row_begin(const GroupedGemmArgs& args, int64_t expert, int64_t v) {
    const ExpertWeights& weight = args.weight;
    if (weight.layout != WeightLayout::kPanels) {
        return (expert * weight.rows + source_weight_row(args, v)) * weight.row_bytes;
    }
    const int64_t panels = moe::ceil_div(weight.rows, kPanelRows);
    const int64_t steps = moe::ceil_div(weight.row_bytes, kPanelBytes);
    const int64_t step = (expert * panels + v / kPanelRows) * steps;
    return step * kPanelRows * kPanelBytes + v % kPanelRows / 8 * (8 * kPanelBytes) + v % 8 * 16;
}
// How far row v + rows lies behind row v; `rows` is even, and both are in one panel.
DSPARK_DEVICE int64_t row_distance(const GroupedGemmArgs& args, int rows) {
    if (args.weight.layout == WeightLayout::kPanels) {
        return rows / 8 * (8 * kPanelBytes) + rows % 8 * 16;
    }
    return (args.activation == Activation::kSwiglu ? rows / 2 : rows) * args.weight.row_bytes;
}
// How far byte `byte` of a row, a multiple of 16, lies behind its first one.
DSPARK_DEVICE int64_t byte_distance(const ExpertWeights& weight, int64_t byte) {
    if (weight.layout != WeightLayout::kPanels) return byte;
    return byte / kPanelBytes * (kPanelRows * kPanelBytes) + byte % kPanelBytes / 16 * 128;
}

// The same of scales: the first of a row, and the distance of that of block column `block`.
DSPARK_DEVICE bool has_scale_panels(const ExpertWeights& weight) {
    return weight.layout == WeightLayout::kPanels && weight.format == WeightFormat::kMxFp4;
}
DSPARK_DEVICE int64_t scale_begin(const GroupedGemmArgs& args, int64_t expert, int64_t v) {
    const ExpertWeights& weight = args.weight;
    if (has_scale_panels(weight)) {
        const int64_t panels = moe::ceil_div(weight.rows, kPanelRows);
        const int64_t steps = moe::ceil_div(weight.columns, 256);
        return (expert * panels + v / kPanelRows) * steps * (kPanelRows * 8) + v % kPanelRows * 8;
    }
    const int row =
        static_cast<int>(source_weight_row(args, v)) / static_cast<int>(weight.block_rows);
    return (expert * weight.scale_rows + row) * weight.scale_columns;
}
DSPARK_DEVICE int64_t scale_distance(const ExpertWeights& weight, int64_t block) {
    return has_scale_panels(weight) ? block / 8 * (kPanelRows * 8) + block % 8 : block;
}

// The scale of block column `block` in a row of scales that begins at `first`.
DSPARK_DEVICE float scale_at(const ExpertWeights& weight, int64_t first, int64_t block) {
    if (weight.scale_is_e8m0) {
        return to_float(E8M0{uint8_t{global_cast<const uint8_t>(weight.scale)[first + block]}});
    }
    return global_cast<const float>(weight.scale)[first + block];
}

// Where the scales of row n of an expert begin, of weights in rows.
DSPARK_DEVICE int64_t first_scale(const ExpertWeights& weight, int64_t expert, int64_t n) {
    return (expert * weight.scale_rows + n / weight.block_rows) * weight.scale_columns;
}

// The row of weights (in rows) that column n of the result comes from: part 0 its only one or that
// of its gate, part 1 that of its up.
DSPARK_DEVICE int64_t weight_row(Activation activation, int64_t weight_rows, int64_t n, int part) {
    if (activation == Activation::kSwigluInterleaved) return 2 * n + part;
    return part == 0 ? n : weight_rows / 2 + n;
}

// ---- rows ---------------------------------------------------------------------------------------

// The row of x that row r of the plan is computed from, or -1: none.
DSPARK_DEVICE int64_t source_row(const GroupedGemmArgs& args, int64_t row) {
    const int64_t token = moe::token_of_row(args.rows, row);
    return token < 0 || args.gather ? token : row;
}

// ---- activation ---------------------------------------------------------------------------------

// x / (1 + e^-x). V: float or a vector of them.
template <class V>
DSPARK_DEVICE V silu(V x) {
    const auto is_negative = less(x, V(0.0f));
    const V magnitude = select(is_negative, V(0.0f) - x, x);
    const V t = exp_nonpositive(V(0.0f) - magnitude);
    return x * (select(is_negative, t, V(1.0f)) / (V(1.0f) + t));
}

template <class V>
DSPARK_DEVICE V clamped_swiglu(V gate, V up, V limit) {
    const V minus = V(0.0f) - limit;
    const V g = select(less(limit, gate), limit, gate);
    const V from_above = select(less(limit, up), limit, up);
    return silu(g) * select(less(from_above, minus), minus, from_above);
}

}  // namespace dspark::DSPARK_ISA::experts
