// CPU kernels of the expert layer; compiled once per instruction set, in namespace
// dspark::DSPARK_ISA.
#include "ops/moe/cpu_experts.h"

#include <cstring>
#include <type_traits>

#include "backends/cpu/codes.h"
#include "backends/cpu/lane_dot.h"
#include "ops/moe/algorithm_experts.h"
#include "ops/moe/cpu_results.h"

namespace dspark::DSPARK_ISA {

using namespace experts;
using dspark::experts::kDecodedWeights;
using dspark::experts::kItemColumns;
using dspark::experts::kWidenedRows;

static_assert(kDotLanes == kProductLanes, "the sum of docs/numerics.md has 16 lanes");

namespace {

// ---- rows of x ----------------------------------------------------------------------------------

// Rows of a tile that an item takes at a time.
struct RowGroup {
    int64_t first;  // of the plan
    int64_t count;
};

template <class X>
void widen_row(const X* row, int64_t size, float* out, int64_t padded) {
    int64_t i = 0;
    for (; i + FloatVector::kWidth <= size; i += FloatVector::kWidth) store(out + i, load(row + i));
    for (; i < size; ++i) out[i] = to_float(row[i]);
    for (; i < padded; ++i) out[i] = 0.0f;
}

// The rows that meet the weights, as floats, with zeros up to a multiple of kDotLanes. A row
// without a source, which no valid plan has in a tile, is zeros.
void widen_rows(const GroupedGemmArgs& args, RowGroup group, float* out, int64_t padded) {
    const int64_t size = args.weight.columns;
    for (int64_t r = 0; r < group.count; ++r, out += padded) {
        const int64_t source = source_row(args, group.first + r);
        if (source < 0) {
            memset(out, 0, static_cast<size_t>(padded) * sizeof(float));
            continue;
        }
        const int64_t at = source * args.x.stride;
        switch (args.x_dtype) {
            case FloatType::kFloat32:
                widen_row(static_cast<const float*>(args.x.data) + at, size, out, padded);
                break;
            case FloatType::kBFloat16:
                widen_row(static_cast<const BFloat16*>(args.x.data) + at, size, out, padded);
                break;
            case FloatType::kFloat16:
                widen_row(static_cast<const Float16*>(args.x.data) + at, size, out, padded);
                break;
        }
    }
}

// ---- products -----------------------------------------------------------------------------------

// Rows of an expert's weights.
struct WeightRows {
    int64_t expert;
    int64_t first;
    int64_t step;
    int count;  // up to FloatVector::kWidth
};

// Rows of weights as floats.
template <class Codes>
void decode_rows(const ExpertWeights& weight, const WeightRows& rows, float* out, int64_t padded) {
    const int64_t expert = rows.expert;
    for (int i = 0; i < rows.count; ++i, out += padded) {
        const int64_t r = rows.first + i * rows.step;
        const uint8_t* codes = static_cast<const uint8_t*>(weight.data) +
                               (expert * weight.rows + r) * weight.row_bytes;
        const int64_t scales = first_scale(weight, expert, r);
        for (int64_t block = 0; block < weight.scale_columns; ++block) {
            const int64_t first = block * weight.block_columns;
            const int64_t size = moe::smaller(weight.block_columns, weight.columns - first);
            codes::scale_run<Codes>(codes + first / Codes::kPerByte,
                                    scale_at(weight, scales, block), out + first, size);
        }
        for (int64_t k = weight.columns; k < padded; ++k) out[k] = 0.0f;
    }
}

// ---- items --------------------------------------------------------------------------------------

struct Item {
    int64_t expert;
    int64_t begin;  // columns of the result
    int64_t end;
    RowGroup group;
    const float* x;  // the rows of the group, widened
    float* decoded;
    int64_t padded;
};

// The rows of weights that columns n .. n + count - 1 of the result come from: part 0 all of them
// or the gates, part 1 the ups.
WeightRows rows_of(const GroupedGemmArgs& args, const Item& item, int64_t n, int part) {
    const int count = static_cast<int>(moe::smaller(FloatVector::kWidth, item.end - n));
    const bool in_turns = args.activation == Activation::kSwigluInterleaved;
    const int64_t first = weight_row(args.activation, args.weight.rows, n, part);
    return {item.expert, first, in_turns ? 2 : 1, count};
}

// use(c, products) for every row c of the group: `products` with a few rows of weights.
template <class Weight, class Use>
void multiply(const GroupedGemmArgs& args, const Item& item, const WeightRows& rows, Use&& use) {
    const auto each = [&](int64_t first, const FloatVector* products, int columns) {
        for (int c = 0; c < columns; ++c) use(first + c, products[c]);
    };
    const RowGroup& group = item.group;
    if constexpr (std::is_same_v<Weight, float> || std::is_same_v<Weight, BFloat16> ||
                  std::is_same_v<Weight, Float16>) {
        const int64_t size = args.weight.columns;
        const Weight* weights = static_cast<const Weight*>(args.weight.data) +
                                (item.expert * args.weight.rows + rows.first) * size;
        dot_columns(DotRows<Weight>{weights, rows.step * size, size, rows.count},
                    {item.x, item.padded}, group.count, each);
    } else {
        static_assert(FloatVector::kWidth <= kDecodedWeights, "room for the rows of one pass");
        decode_rows<Weight>(args.weight, rows, item.decoded, item.padded);
        dot_columns(DotRows<float>{item.decoded, item.padded, item.padded, rows.count},
                    {item.x, item.padded}, group.count, each);
    }
}

template <class Weight>
void multiply_columns(const GroupedGemmArgs& args, const Item& item) {
    const bool has_gates = args.activation != Activation::kNone;
    const int64_t columns = out_columns(args.activation, args.weight.rows);
    float gates[kWidenedRows][FloatVector::kWidth];
    for (int64_t n = item.begin; n < item.end; n += FloatVector::kWidth) {
        if (has_gates) {
            multiply<Weight>(args, item, rows_of(args, item, n, 0),
                             [&](int64_t c, FloatVector products) { store(gates[c], products); });
        }
        const WeightRows rows = rows_of(args, item, n, has_gates ? 1 : 0);
        multiply<Weight>(args, item, rows, [&](int64_t c, FloatVector products) {
            float values[FloatVector::kWidth];
            store(values, has_gates
                              ? clamped_swiglu(load(gates[c]), products, FloatVector(args.limit))
                              : products);
            store_results(args, values, rows.count, (item.group.first + c) * columns + n);
        });
    }
}

void multiply_item(const GroupedGemmArgs& args, const Item& item) {
    switch (args.weight.format) {
        case WeightFormat::kFloat32:
            return multiply_columns<float>(args, item);
        case WeightFormat::kBFloat16:
            return multiply_columns<BFloat16>(args, item);
        case WeightFormat::kFloat16:
            return multiply_columns<Float16>(args, item);
        case WeightFormat::kFp8E4M3:
            return multiply_columns<codes::CodeBytes<Fp8E4M3>>(args, item);
        case WeightFormat::kFp8E4M3Fnuz:
            return multiply_columns<codes::CodeBytes<Fp8E4M3Fnuz>>(args, item);
        case WeightFormat::kMxFp4:
            return multiply_columns<codes::CodePairs>(args, item);
    }
}

}  // namespace

void grouped_gemm(const GroupedGemmArgs& args, int64_t begin, int64_t end, float* scratch) {
    const int64_t padded = dspark::experts::padded_columns(args.weight);
    const int64_t columns = out_columns(args.activation, args.weight.rows);
    const int64_t ranges = moe::ceil_div(columns, kItemColumns);
    float* const x = scratch;
    float* const decoded = scratch + kWidenedRows * padded;
    int64_t widened = -1;  // the group in x
    for (int64_t i = begin; i < end; ++i) {
        const int64_t tile = i / ranges;
        const int64_t expert = args.tiles.expert[tile];
        if (expert < 0) return;  // and so are all that follow
        const int64_t first = i % ranges * kItemColumns;
        const int64_t last = moe::smaller(columns, first + kItemColumns);
        const int64_t row = args.tiles.row[tile];
        for (int64_t r = 0; r < args.tiles.size[tile]; r += kWidenedRows) {
            const RowGroup group = {row + r, moe::smaller(kWidenedRows, args.tiles.size[tile] - r)};
            if (group.first != widened) widen_rows(args, group, x, padded);
            widened = group.first;
            multiply_item(args, {expert, first, last, group, x, decoded, padded});
        }
    }
}

void clear_unused_rows(const GroupedGemmArgs& args, int64_t begin, int64_t end) {
    const int64_t size = args.out_dtype == FloatType::kFloat32 ? 4 : 2;
    const int64_t bytes = out_columns(args.activation, args.weight.rows) * size;
    for (int64_t row = begin; row < end; ++row) {
        if (moe::token_of_row(args.rows, row) >= 0) continue;
        memset(static_cast<char*>(args.out) + row * bytes, 0, static_cast<size_t>(bytes));
    }
}

int64_t first_bad_tile(const GroupedGemmArgs& args) {
    bool has_ended = false;
    for (int64_t t = 0; t < args.tiles.count; ++t) {
        const int64_t expert = args.tiles.expert[t];
        const int64_t row = args.tiles.row[t];
        const int64_t size = args.tiles.size[t];
        if (expert < 0) {
            has_ended = true;
            continue;
        }
        const bool fits = row >= 0 && size >= 0 && row <= args.rows.capacity - size;
        if (has_ended || expert >= args.weight.num_experts || !fits) return t;
    }
    return -1;
}

// ---- activation ---------------------------------------------------------------------------------

namespace {

template <class T>
void swiglu_rows(const SwigluArgs& args, int64_t begin, int64_t end) {
    constexpr int kWidth = FloatVector::kWidth;
    const int64_t up = args.interleaved ? 1 : args.width;
    const int64_t step = args.interleaved ? 2 : 1;
    for (int64_t row = begin; row < end; ++row) {
        const T* in = static_cast<const T*>(args.gate_up.data) + row * args.gate_up.stride;
        T* out = static_cast<T*>(args.out) + row * args.width;
        for (int64_t i = 0; i < args.width; i += kWidth) {
            const int64_t count = moe::smaller(kWidth, args.width - i);
            float gates[kWidth] = {}, ups[kWidth] = {}, values[kWidth];
            for (int64_t j = 0; j < count; ++j) {
                gates[j] = to_float(in[(i + j) * step]);
                ups[j] = to_float(in[(i + j) * step + up]);
            }
            store(values, clamped_swiglu(load(gates), load(ups), FloatVector(args.limit)));
            for (int64_t j = 0; j < count; ++j) narrow(values[j], &out[i + j]);
        }
    }
}

}  // namespace

void swiglu(const SwigluArgs& args, int64_t begin, int64_t end) {
    switch (args.dtype) {
        case FloatType::kFloat32:
            return swiglu_rows<float>(args, begin, end);
        case FloatType::kBFloat16:
            return swiglu_rows<BFloat16>(args, begin, end);
        case FloatType::kFloat16:
            return swiglu_rows<Float16>(args, begin, end);
    }
}

}  // namespace dspark::DSPARK_ISA
