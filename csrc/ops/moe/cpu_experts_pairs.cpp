// CPU kernels of the expert layer on pairs of 16-bit numbers; compiled once per instruction set, in
// namespace dspark::DSPARK_ISA.
#include "ops/moe/cpu_experts_pairs.h"

#include <cstring>
#include <type_traits>

#include "ops/moe/cpu_experts_panels.h"
#include "ops/moe/cpu_results.h"

namespace dspark::DSPARK_ISA {

using namespace experts;
using cpu::PairUnit;

namespace {

// Cost of an item beside that of its rows: bringing the weights from memory, in rows that could be
// multiplied meanwhile.
constexpr int64_t kReadCost = 8;

// Rows of a tile that meet the weights together.
struct RowGroup {
    int64_t expert;
    int64_t first;  // of the plan
    int64_t count;
    int64_t next_expert;  // of the group behind this one, or -1
};

// ---- rows of x ----------------------------------------------------------------------------------

template <class X>
void put_row(const X* row, int64_t count, int64_t padded, float* out) {
    for (int64_t i = 0; i < count; ++i) out[i] = to_float(row[i]);
    for (int64_t i = count; i < padded; ++i) out[i] = 0.0f;
}
inline void put_row(const BFloat16* row, int64_t count, int64_t padded, BFloat16* out) {
    memcpy(out, row, static_cast<size_t>(count) * sizeof(*row));
    memset(out + count, 0, static_cast<size_t>(padded - count) * sizeof(*row));
}

// The rows of a group as Out, chunk by chunk; rows without a source, and those up to `padded_rows`,
// are zeros.
template <class X, class Out>
void stage_rows(const GroupedGemmArgs& args, const Columns& columns, const RowGroup& group,
                int64_t padded_rows, Out* out) {
    for (int64_t begin = 0; begin < columns.padded; begin = columns.end_of(begin)) {
        const int64_t width = columns.end_of(begin) - begin;
        const int64_t count = moe::smaller(width, args.weight.columns - begin);
        for (int64_t r = 0; r < padded_rows; ++r, out += width) {
            const int64_t source = r < group.count ? source_row(args, group.first + r) : -1;
            const X* x = static_cast<const X*>(args.x.data) + source * args.x.stride + begin;
            if (source < 0) {
                memset(out, 0, static_cast<size_t>(width) * sizeof(*out));
            } else {
                put_row(x, count, width, out);
            }
        }
    }
}

// ---- results ------------------------------------------------------------------------------------

void store_sums(const GroupedGemmArgs& args, const RowGroup& group, const PanelPair& panels,
                const float* sums) {
    constexpr int kWidth = FloatVector::kWidth;
    const bool has_gates = args.activation != Activation::kNone;
    const int64_t columns = out_columns(args.activation, args.weight.rows);
    const int64_t width = has_gates ? pairs::kPanelWeights : pairs::kSums;
    const int64_t first = panels.place.index * width;
    const int64_t count = moe::smaller(width, columns - first);
    for (int64_t r = 0; r < group.count; ++r, sums += pairs::kSums) {
        const int64_t at = (group.first + r) * columns + first;
        if (!has_gates) {
            store_results(args, sums, count, at);
            continue;
        }
        float values[pairs::kPanelWeights];
        for (int i = 0; i < pairs::kPanelWeights; i += kWidth) {
            const int behind = panels.in_turns ? kWidth : pairs::kPanelWeights;
            const float* first_of = sums + (panels.in_turns ? 2 * i : i);
            const FloatVector a = load(first_of), b = load(first_of + behind);
            const FloatVector gates = panels.in_turns ? unzip_even(a, b) : a;
            const FloatVector ups = panels.in_turns ? unzip_odd(a, b) : b;
            store(values + i, clamped_swiglu(gates, ups, FloatVector(args.limit)));
        }
        store_results(args, values, count, at);
    }
}

// ---- items --------------------------------------------------------------------------------------

// What multiplies: rows of X, padded to a multiple of kRowStep, kRowsAtOnce of which meet a weight
// that is in a register.
template <class Half>
struct FmaUnit {
    using X = float;
    static constexpr int64_t kRowStep = 1;
    static constexpr int64_t kRowsAtOnce = kMaxPanelRows;
    static constexpr int64_t kColumnsOfX = 1;  // in an X
    void multiply(const pairs::Rows<float>& rows, const pairs::PairChunk& chunk) {
        pairs::multiply_fma<Half>(rows, chunk);
    }
};
#if defined(__AVX512F__)
struct DotUnit {
    using X = uint32_t;
    static constexpr int64_t kRowStep = 1;
    static constexpr int64_t kRowsAtOnce = kMaxPanelRows;
    static constexpr int64_t kColumnsOfX = 2;
    void multiply(const pairs::Rows<uint32_t>& rows, const pairs::PairChunk& chunk) {
        pairs::multiply_dots(rows, chunk);
    }
};
#endif
template <class Tiles>
struct TileUnit {
    using X = uint32_t;
    static constexpr int64_t kRowStep = amx::kTileRows;
    static constexpr int64_t kRowsAtOnce = 2 * amx::kTileRows;
    static constexpr int64_t kColumnsOfX = 2;
    Tiles tiles;
    void multiply(const pairs::Rows<uint32_t>& rows, const pairs::PairChunk& chunk) {
        pairs::multiply_tiles(tiles, rows, chunk);
    }
};

inline int64_t padded_to(int64_t count, int64_t step) {
    return moe::ceil_div(count, step) * step;
}

template <class Unit>
void multiply_item(const GroupedGemmArgs& args, Unit& unit, const Columns& columns,
                   const RowGroup& group, const PanelPair& panels, const Scratch& scratch) {
    const PanelReader reader(args, panels, scratch);
    const int64_t rows = padded_to(group.count, Unit::kRowStep);
    const size_t sum_bytes = static_cast<size_t>(rows * pairs::kSums) * sizeof(float);
    memset(scratch.sums, 0, sum_bytes);
    memset(scratch.partial, 0, columns.has_long_blocks() ? sum_bytes : 0);
    const auto* x = reinterpret_cast<const typename Unit::X*>(scratch.x);
    for (int64_t begin = 0; begin < columns.padded; begin = columns.end_of(begin)) {
        const int64_t end = columns.end_of(begin);
        const int64_t stride = (end - begin) / Unit::kColumnsOfX;
        pairs::PairChunk chunk = {};
        reader.read(begin, end, columns.fetched_during(begin, end), chunk);
        chunk.block_pairs = chunk.pairs;
        float* sums = scratch.sums;
        if (columns.has_long_blocks()) {
            sums = scratch.partial;
        } else if (columns.block > 0) {
            chunk.block_pairs = static_cast<int>(columns.block / 2);
            chunk.scales = scratch.scales;
            const int64_t count = moe::ceil_div(end - begin, columns.block);
            reader.read_scales(begin / columns.block, count, scratch.scales);
        }
        unit.multiply({x, stride, sums, group.count}, chunk);
        x += rows * stride;
        if (!columns.has_long_blocks()) continue;
        if (end < columns.padded && end % columns.block != 0) continue;
        reader.read_scales(begin / columns.block, 1, scratch.scales);
        for (int64_t i = 0; i < rows * pairs::kSums; i += kLanes) {
            const FloatVector scale = load(scratch.scales + i % pairs::kSums);
            store(scratch.sums + i, fma(load(scratch.partial + i), scale, load(scratch.sums + i)));
        }
        memset(scratch.partial, 0, sum_bytes);
    }
    store_sums(args, group, panels, scratch.sums);
}

// The pairs of panels of an expert.
int64_t panel_pairs(const GroupedGemmArgs& args) {
    const bool has_gates = args.activation != Activation::kNone;
    return moe::ceil_div(out_columns(args.activation, args.weight.rows),
                         has_gates ? pairs::kPanelWeights : pairs::kSums);
}

// visit(group of rows, cost of all its items before) for the groups of all tiles, until it returns
// false. Returns the cost of those visited.
template <class Visit>
int64_t for_groups(const GroupedGemmArgs& args, const Visit& visit) {
    const int64_t items = panel_pairs(args);
    int64_t cost = 0;
    for (int64_t t = 0; t < args.tiles.count && args.tiles.expert[t] >= 0; ++t) {
        const int64_t size = args.tiles.size[t];
        for (int64_t r = 0; r < size; r += kPairRows) {
            const int64_t expert = args.tiles.expert[t];
            const bool is_last = t + 1 == args.tiles.count;
            const RowGroup group = {expert, args.tiles.row[t] + r,
                                    moe::smaller(kPairRows, size - r),
                                    r + kPairRows < size ? expert
                                    : is_last            ? -1
                                                         : args.tiles.expert[t + 1]};
            if (!visit(group, cost)) return cost;
            cost += items * (kReadCost + group.count);
        }
    }
    return cost;
}

template <class X, class Unit>
void multiply_range(const GroupedGemmArgs& args, Unit& unit, int64_t begin, int64_t end,
                    const Scratch& scratch) {
    using Staged = std::conditional_t<Unit::kColumnsOfX == 2, BFloat16, float>;
    const int64_t items = panel_pairs(args);
    for_groups(args, [&](const RowGroup& group, int64_t before) {
        if (before >= end) return false;
        const int64_t cost = kReadCost + group.count;
        // The items that begin in the range.
        const int64_t first = begin <= before ? 0 : moe::ceil_div(begin - before, cost);
        const int64_t last = moe::smaller(items, moe::ceil_div(end - before, cost));
        if (first >= last) return true;
        const Columns columns(args.weight, group.count <= Unit::kRowsAtOnce);
        stage_rows<X>(args, columns, group, padded_to(group.count, Unit::kRowStep),
                      reinterpret_cast<Staged*>(scratch.x));
        for (int64_t i = first; i < last; ++i) {
            const PanelPlace next =
                i + 1 < items ? PanelPlace{group.expert, i + 1} : PanelPlace{group.next_expert, 0};
            multiply_item(args, unit, columns, group, panel_pair(args, {group.expert, i}, next),
                          scratch);
        }
        return true;
    });
}

template <class X, class Half>
void multiply_by_fma(const GroupedGemmArgs& args, int64_t begin, int64_t end,
                     const Scratch& scratch) {
    FmaUnit<Half> unit;
    multiply_range<X>(args, unit, begin, end, scratch);
}

template <class Tiles>
void multiply_by_tiles(const GroupedGemmArgs& args, int64_t begin, int64_t end,
                       const Scratch& scratch) {
    TileUnit<Tiles> unit;
    multiply_range<BFloat16>(args, unit, begin, end, scratch);
}

// Of bf16 rows with weights that are, or become, bf16 numbers.
void multiply_bf16(const GroupedGemmArgs& args, int64_t begin, int64_t end,
                   const Scratch& scratch) {
    const FlushSubnormals flush(true);
    switch (cpu::pair_unit()) {
        case PairUnit::kEmulatedTiles:
            return multiply_by_tiles<amx::EmulatedTiles>(args, begin, end, scratch);
#if defined(__AVX512F__)
        case PairUnit::kTiles:
            return multiply_by_tiles<amx::AmxTiles>(args, begin, end, scratch);
        case PairUnit::kDots: {
            DotUnit unit;
            return multiply_range<BFloat16>(args, unit, begin, end, scratch);
        }
#endif
        default:
            return multiply_by_fma<BFloat16, BFloat16>(args, begin, end, scratch);
    }
}

}  // namespace

void grouped_gemm_pairs(const GroupedGemmArgs& args, int64_t begin, int64_t end, char* memory) {
    const Scratch scratch(args.weight, memory);
    const bool has_fp16 = args.weight.format == WeightFormat::kFloat16;
    const auto run = [&](auto x) {
        using X = decltype(x);
        return has_fp16 ? multiply_by_fma<X, Float16>(args, begin, end, scratch)
                        : multiply_by_fma<X, BFloat16>(args, begin, end, scratch);
    };
    switch (args.x_dtype) {
        case FloatType::kFloat32:
            return run(float{});
        case FloatType::kFloat16:
            return run(Float16{});
        case FloatType::kBFloat16:
            return has_fp16 ? run(BFloat16{}) : multiply_bf16(args, begin, end, scratch);
    }
}

int64_t pairs_cost(const GroupedGemmArgs& args) {
    return for_groups(args, [](const RowGroup&, int64_t) { return true; });
}

}  // namespace dspark::DSPARK_ISA
