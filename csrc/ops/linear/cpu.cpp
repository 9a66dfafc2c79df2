// CPU kernels of the linear family; compiled once per instruction set, in namespace
// dspark::DSPARK_ISA.
#include "ops/linear/cpu.h"

#include "backends/cpu/panel.h"

namespace dspark::DSPARK_ISA {
namespace {

static_assert(kLinearPanelOutputs == kPanelWidth);

// Element of weight[column, k] in a packed panel.
inline int64_t packed_index(int64_t k, int column, const PackLinearArgs& args) {
    const bool is_pair = args.is_bf16 && (k | 1) < args.in_features;
    return is_pair ? (k & ~int64_t{1}) * kPanelWidth + 2 * column + (k % 2 == 0)
                   : k * kPanelWidth + column;
}

template <class Element>
void pack_panel(const PackLinearArgs& args, int64_t panel) {
    const int64_t depth = args.in_features;
    const Element* weight = static_cast<const Element*>(args.weight);
    Element* packed = static_cast<Element*>(args.packed) + panel * depth * kPanelWidth;
    for (int column = 0; column < kPanelWidth; ++column) {
        const int64_t output = panel * kPanelWidth + column;
        const bool exists = output < args.out_features;
        for (int64_t k = 0; k < depth; ++k) {
            packed[packed_index(k, column, args)] =
                exists ? weight[output * depth + k] : Element{0};
        }
    }
}

// Writes one panel of finished sums: out = sum + bias, only the columns that exist.
template <int kRows>
void store_outputs(const LinearArgs& args, const PanelSums<kRows>& sums, int64_t row,
                   int64_t column) {
    float full[kRows * kPanelWidth];
    sums.store_to(full, kPanelWidth);
    const int64_t left = args.out_features - column;
    const int columns = left < kPanelWidth ? static_cast<int>(left) : kPanelWidth;
    for (int r = 0; r < kRows; ++r) {
        float* out = args.out + (row + r) * args.out_features + column;
        const float* sum = full + r * kPanelWidth;
        for (int c = 0; c < columns; ++c)
            out[c] = args.bias ? sum[c] + args.bias[column + c] : sum[c];
    }
}

template <class Panel>
void linear_panel(const LinearArgs& args, Panel panel, int64_t column, int64_t row_begin,
                  int64_t row_end) {
    const int64_t depth = args.in_features;
    for_row_groups(row_begin, row_end, [&](auto count, int64_t row) {
        PanelSums<decltype(count)::kValue> sums;
        sums.set(0.0f);
        sums.accumulate(args.x + row * depth, depth, panel, depth);
        store_outputs(args, sums, row, column);
    });
}

#if defined(__AVX512F__)
void linear_panel_dots(const LinearArgs& args, PairPanel panel, int64_t column, int64_t row_begin,
                       int64_t row_end) {
    const int64_t num_pairs = (args.in_features + 1) / 2;
    for_row_groups(row_begin, row_end, [&](auto count, int64_t row) {
        PanelSums<decltype(count)::kValue> sums;
        sums.set(0.0f);
        sums.accumulate_dots(args.x_pairs + row * num_pairs, num_pairs, panel, args.in_features);
        store_outputs(args, sums, row, column);
    });
}
#endif

}  // namespace

void pack_linear(const PackLinearArgs& args, int64_t panel_begin, int64_t panel_end) {
    for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
        if (args.is_bf16) {
            pack_panel<uint16_t>(args, panel);
        } else {
            pack_panel<uint32_t>(args, panel);
        }
    }
}

void linear(const LinearArgs& args, int64_t task_begin, int64_t task_end) {
    const int64_t chunks = linear_row_chunks(args.num_rows);
    const int64_t panel_size = args.in_features * kPanelWidth;
    const FlushSubnormals flush(args.flush_subnormals);
    for (int64_t task = task_begin; task < task_end; ++task) {
        const int64_t panel = task / chunks;
        const int64_t row_begin = task % chunks * kLinearRowChunk;
        const int64_t row_limit = row_begin + kLinearRowChunk;
        const int64_t row_end = row_limit < args.num_rows ? row_limit : args.num_rows;
        const int64_t column = panel * kPanelWidth;
        if (args.is_bf16) {
            const auto* data =
                static_cast<const BFloat16*>(args.packed_weight) + panel * panel_size;
#if defined(__AVX512F__)
            if (args.x_pairs != nullptr) {
                linear_panel_dots(args, PairPanel{data}, column, row_begin, row_end);
                continue;
            }
#endif
            linear_panel(args, PairPanel{data}, column, row_begin, row_end);
        } else {
            const auto* data = static_cast<const float*>(args.packed_weight) + panel * panel_size;
            linear_panel(args, FloatPanel{data, kPanelWidth}, column, row_begin, row_end);
        }
    }
}

}  // namespace dspark::DSPARK_ISA
