// Kernels of the expert layer, for any format of weights; without matrix units.
//
// A block of `grouped_gemm` takes a tile of the plan and kBlockWeights rows of weights: with an
// activation the gates of half as many columns of the result, then their ups. Thread
// (lane, group) sums the columns k with k mod 16 = lane of the products of a few of these rows with
// up to kBlockRows rows of x. Weights are brought to shared memory as they are, by 16-byte loads,
// and each is decoded once, by the only thread that needs it.
#pragma once

#include "device/lanes.h"
#include "device/narrow.h"
#include "ops/moe/algorithm_experts.h"

namespace dspark::DSPARK_ISA::experts {

constexpr int kGroups = kThreads / kProductLanes;
constexpr int kThreadWeights = 4;  // rows of weights of a thread: group, group + kGroups, ...
constexpr int kBlockWeights = kGroups * kThreadWeights;
constexpr int kBlockRows = 8;  // rows of x at a time

// Weights are staged kStepBytes of each row at a time, rows kStrideWords apart, so that the two
// groups of a warp of 32 read from different banks.
constexpr int kStepBytes = 128;
constexpr int kStepChunks = kStepBytes / 16;
constexpr int kStepWords = kStepBytes / 4;
constexpr int kStrideWords = kStepWords + 16;
template <class Decoder>
constexpr int kStepColumns = kStepWords * Decoder::kPerWord;

// One lane more than there are, against bank conflicts.
constexpr int kSumStride = kProductLanes + 1;
constexpr int kSumFloats = kBlockRows * kGroups * kSumStride;

template <class Decoder>
struct GemmShared {
    static constexpr int kRowFloats = kBlockRows * kStepColumns<Decoder>;
    SharedArray<uint32_t, kBlockWeights * kStrideWords> weights;
    SharedArray<float, (kRowFloats > kSumFloats ? kRowFloats : kSumFloats)> x;  // later the sums
    SharedArray<int64_t, kBlockRows> source;                                    // row of x, or -1
};

// What a block works on.
struct GemmItem {
    int64_t expert;
    int64_t first_column;  // of the result
    int num_columns;       // up to kBlockWeights, with an activation half as many
    int64_t first_row;     // of the plan
    int num_rows;          // up to kBlockRows
};

// The columns of the result that a block computes.
DSPARK_DEVICE int block_columns(const GroupedGemmArgs& args) {
    return args.activation == Activation::kNone ? kBlockWeights : kBlockWeights / 2;
}

// The row in turns of weights n of the block, or -1. Gates come first, then their ups.
DSPARK_DEVICE int64_t block_weight_row(const GroupedGemmArgs& args, const GemmItem& item, int n) {
    const int part = n / block_columns(args);
    const int column = n % block_columns(args);
    if (column >= item.num_columns) return -1;
    const int64_t at = item.first_column + column;
    return args.activation == Activation::kNone ? at : 2 * at + part;
}

// ---- staging ------------------------------------------------------------------------------------

// Sixteen bytes of a row of weights that begins at `first`; those past its end are 0.
DSPARK_DEVICE Bytes16 load_chunk(const ExpertWeights& weight, int64_t first, int64_t byte) {
    const int64_t at = first + byte_distance(weight, byte);
    if (weight.is_aligned) {
        return byte < weight.row_bytes ? load16_once(weight.data, at) : Bytes16{};
    }
    const Global<const uint8_t> bytes = global_cast<const uint8_t>(weight.data);
    Bytes16 out = {};
    for (int i = 0; i < 16; ++i) {
        const uint32_t value = byte + i < weight.row_bytes ? bytes[at + i] : 0u;
        out.word[i / 4] |= value << 8 * (i % 4);
    }
    return out;
}

// The bytes from `begin` on of the item's rows of weights.
template <class Shared>
DSPARK_DEVICE void stage_weights(const GroupedGemmArgs& args, const GemmItem& item, int64_t begin,
                                 Shared& shared) {
    for (int i = 0; i < kBlockWeights * kStepChunks / kThreads; ++i) {
        const int chunk = thread_idx() + i * kThreads;
        const int row = chunk / kStepChunks;
        const int at = chunk % kStepChunks;
        Bytes16 bytes = {};
        const int64_t weight_row = block_weight_row(args, item, row);
        if (weight_row >= 0) {
            bytes =
                load_chunk(args.weight, row_begin(args, item.expert, weight_row), begin + 16 * at);
        }
        shared.weights.store4(row * kStrideWords + 4 * at, bytes.word[0], bytes.word[1],
                              bytes.word[2], bytes.word[3]);
    }
}

// Columns first .. of the item's rows of x; columns past the end are 0.
template <class X, class Decoder>
DSPARK_DEVICE void stage_rows(const GroupedGemmArgs& args, const GemmItem& item, int64_t first,
                              GemmShared<Decoder>& shared) {
    constexpr int kColumns = kStepColumns<Decoder>;
    const Global<const X> x = global_cast<const X>(args.x.data);
    for (int i = thread_idx(); i < item.num_rows * kColumns; i += kThreads) {
        const int64_t source = shared.source[i / kColumns];
        const int64_t k = first + i % kColumns;
        float value = 0.0f;
        if (source >= 0 && k < args.weight.columns)
            value = to_float(X(x[source * args.x.stride + k]));
        shared.x[i] = value;
    }
}

template <class Decoder>
DSPARK_DEVICE void stage_rows(const GroupedGemmArgs& args, const GemmItem& item, int64_t first,
                              GemmShared<Decoder>& shared) {
    switch (args.x_dtype) {
        case FloatType::kFloat32:
            return stage_rows<float>(args, item, first, shared);
        case FloatType::kBFloat16:
            return stage_rows<BFloat16>(args, item, first, shared);
        case FloatType::kFloat16:
            return stage_rows<Float16>(args, item, first, shared);
    }
}

// ---- products -----------------------------------------------------------------------------------

// The scales of a thread's rows of weights, read anew where a block of columns begins.
struct Scales {
    int64_t first[kThreadWeights];
    float value[kThreadWeights];
    int block;

    DSPARK_DEVICE Scales(const GroupedGemmArgs& args, const GemmItem& item) : block(-1) {
        const int group = thread_idx() / kProductLanes;
        for (int c = 0; c < kThreadWeights; ++c) {
            value[c] = 1.0f;
            const int64_t row = block_weight_row(args, item, group + c * kGroups);
            const bool has_scale = args.weight.scale != nullptr && row >= 0;
            first[c] = has_scale ? scale_begin(args, item.expert, row) : -1;
        }
    }

    DSPARK_DEVICE void move_to(const ExpertWeights& weight, int column) {
        const int next = column / static_cast<int>(weight.block_columns);
        if (next == block) return;
        block = next;
        for (int c = 0; c < kThreadWeights; ++c) {
            if (first[c] >= 0) value[c] = scale_at(weight, first[c], scale_distance(weight, next));
        }
    }
};

struct Sums {
    float of[kBlockRows][kThreadWeights];
};

// Adds the products of the staged columns, of which `first` is the first.
template <class Decoder>
DSPARK_DEVICE void add_products(const ExpertWeights& weight, const GemmItem& item, int first,
                                GemmShared<Decoder>& shared, Scales& scales, Sums& sums) {
    constexpr int kColumns = kStepColumns<Decoder>;
    const int lane = thread_idx() % kProductLanes;
    const int group = thread_idx() / kProductLanes;
    const int columns = static_cast<int>(weight.columns);
    for (int i = lane; i < kColumns; i += kProductLanes) {
        if (first + i - lane >= columns) break;
        const bool is_weight = first + i < columns;
        if (weight.scale != nullptr && is_weight) scales.move_to(weight, first + i);
        float w[kThreadWeights];
        for (int c = 0; c < kThreadWeights; ++c) {
            const int word = (group + c * kGroups) * kStrideWords + i / Decoder::kPerWord;
            w[c] = Decoder::decode(shared.weights[word], i % Decoder::kPerWord);
            if (weight.scale != nullptr) w[c] *= scales.value[c];
            if (!is_weight) w[c] = 0.0f;
        }
        for (int r = 0; r < kBlockRows; ++r) {
            if (r >= item.num_rows) continue;
            const float x = shared.x[r * kColumns + i];
            for (int c = 0; c < kThreadWeights; ++c) sums.of[r][c] = fma(w[c], x, sums.of[r][c]);
        }
    }
}

// ---- results ------------------------------------------------------------------------------------

DSPARK_DEVICE void store_rounded(const GroupedGemmArgs& args, int64_t at, float value) {
    switch (args.out_dtype) {
        case FloatType::kFloat32:
            global_cast<float>(args.out)[at] = value;
            break;
        case FloatType::kBFloat16: {
            BFloat16 rounded;
            narrow(value, &rounded);
            global_cast<BFloat16>(args.out)[at] = rounded;
            break;
        }
        case FloatType::kFloat16: {
            Float16 rounded;
            narrow(value, &rounded);
            global_cast<Float16>(args.out)[at] = rounded;
            break;
        }
    }
}

// Stores what becomes of the products of a row of x with the rows of weights group, group +
// kGroups,
// ... of the block, where group is the thread mod kGroups.
DSPARK_DEVICE void store_columns(const GroupedGemmArgs& args, const GemmItem& item, int row,
                                 const float (&product)[kThreadWeights]) {
    const int64_t columns = out_columns(args.activation, args.weight.rows);
    const int64_t first = (item.first_row + row) * columns + item.first_column;
    const int group = thread_idx() % kGroups;
    const bool has_gates = args.activation != Activation::kNone;
    for (int c = 0; c < kThreadWeights; ++c) {
        const int column = group + c * kGroups;
        if (column >= item.num_columns) continue;
        const float up = product[(c + kThreadWeights / 2) % kThreadWeights];
        store_rounded(args, first + column,
                      has_gates ? clamped_swiglu(product[c], up, args.limit) : product[c]);
    }
}

// Adds up the lanes of every product, a product per thread, and stores what becomes of it.
template <class Decoder>
DSPARK_DEVICE void store_products(const GroupedGemmArgs& args, const GemmItem& item,
                                  const Sums& sums, GemmShared<Decoder>& shared) {
    const int lane = thread_idx() % kProductLanes;
    const int group = thread_idx() / kProductLanes;
    const int row = thread_idx() / kGroups;
    float product[kThreadWeights];
    for (int c = 0; c < kThreadWeights; ++c) {
        sync_block();
        for (int r = 0; r < kBlockRows; ++r) {
            if (r < item.num_rows) {
                shared.x[(r * kGroups + group) * kSumStride + lane] = sums.of[r][c];
            }
        }
        sync_block();
        product[c] = 0.0f;
        if (row >= item.num_rows) continue;
        float part[kProductLanes];
        for (int l = 0; l < kProductLanes; ++l) part[l] = shared.x[thread_idx() * kSumStride + l];
        for (int h = kProductLanes / 2; h > 0; h /= 2) {
            for (int l = 0; l < h; ++l) part[l] += part[l + h];
        }
        product[c] = part[0];
    }
    if (row < item.num_rows) store_columns(args, item, row, product);
}

template <class Decoder>
DSPARK_DEVICE void multiply(const GroupedGemmArgs& args, const GemmItem& item,
                            GemmShared<Decoder>& shared) {
    const int columns = static_cast<int>(args.weight.columns);
    sync_block();
    if (thread_idx() < item.num_rows) {
        shared.source[thread_idx()] = source_row(args, item.first_row + thread_idx());
    }
    Scales scales(args, item);
    Sums sums = {};
    for (int first = 0; first < columns; first += kStepColumns<Decoder>) {
        sync_block();
        const int64_t first_byte = int64_t{first / Decoder::kPerWord} * 4;
        stage_weights(args, item, first_byte, shared);
        stage_rows(args, item, first, shared);
        sync_block();
        add_products(args.weight, item, first, shared, scales, sums);
    }
    store_products(args, item, sums, shared);
}

// ---- grouped_gemm -------------------------------------------------------------------------------

// The tile's rows against a range of weights; a tile that the plan cannot have is left out.
template <class Decoder>
DSPARK_DEVICE void multiply_tile(const GroupedGemmArgs& args, int64_t tile, int64_t range,
                                 GemmShared<Decoder>& shared) {
    const int64_t expert = args.tiles.expert[tile];
    if (expert < 0 || expert >= args.weight.num_experts) return;
    const int64_t row = args.tiles.row[tile];
    const int64_t size = args.tiles.size[tile];
    if (row < 0 || row > args.rows.capacity - size) return;
    const int64_t columns = out_columns(args.activation, args.weight.rows);
    const int64_t first = range * block_columns(args);
    const int num_columns = static_cast<int>(moe::smaller(block_columns(args), columns - first));
    for (int64_t r = 0; r < size; r += kBlockRows) {
        const int num_rows = static_cast<int>(moe::smaller(kBlockRows, size - r));
        multiply(args, GemmItem{expert, first, num_columns, row + r, num_rows}, shared);
    }
}

// Stores 0 in rows that hold no slot, a row of the plan per group of threads.
DSPARK_DEVICE void clear_unused_rows(const GroupedGemmArgs& args, int64_t chunk) {
    const int64_t row = chunk * kGroups + thread_idx() / kProductLanes;
    if (row >= args.rows.capacity || moe::token_of_row(args.rows, row) >= 0) return;
    const int64_t columns = out_columns(args.activation, args.weight.rows);
    for (int64_t n = thread_idx() % kProductLanes; n < columns; n += kProductLanes) {
        store_rounded(args, row * columns + n, 0.0f);
    }
}

struct GemmLaunch {
    GroupedGemmArgs args;
    int64_t ranges;      // of the columns of the result
    int64_t tile_items;  // of which each is a tile and a range; then come kGroups rows each
    int64_t items;
};

// The items of a block.
template <class Decoder>
DSPARK_DEVICE void run_gemm_items(const GemmLaunch& launch, GemmShared<Decoder>& shared) {
    for (int64_t item = block_idx().x; item < launch.items; item += grid_dim().x) {
        if (item < launch.tile_items) {
            multiply_tile(launch.args, item / launch.ranges, item % launch.ranges, shared);
        } else {
            clear_unused_rows(launch.args, item - launch.tile_items);
        }
    }
}

template <int W, class Decoder>
DSPARK_KERNEL(kThreads)
void grouped_gemm_kernel(GemmLaunch launch) {
    check_warp_size<W>();
    DSPARK_SHARED(GemmShared<Decoder>, shared);
    run_gemm_items(launch, shared);
}

// ---- swiglu -------------------------------------------------------------------------------------

template <class T>
DSPARK_DEVICE void swiglu_element(const SwigluArgs& args, int64_t row, int64_t i) {
    const Global<const T> in = global_cast<const T>(args.gate_up.data) + row * args.gate_up.stride;
    const int64_t gate = args.interleaved ? 2 * i : i;
    const int64_t up = args.interleaved ? 2 * i + 1 : args.width + i;
    T rounded;
    narrow(clamped_swiglu(to_float(T(in[gate])), to_float(T(in[up])), args.limit), &rounded);
    global_cast<T>(args.out)[row * args.width + i] = rounded;
}

struct SwigluLaunch {
    SwigluArgs args;
    int64_t pieces;  // of kThreads elements of a row
    int64_t items;
};

template <int W>
DSPARK_KERNEL(kThreads)
void swiglu_kernel(SwigluLaunch launch) {
    check_warp_size<W>();
    const SwigluArgs& args = launch.args;
    for (int64_t item = block_idx().x; item < launch.items; item += grid_dim().x) {
        const int64_t row = item / launch.pieces;
        const int64_t i = item % launch.pieces * kThreads + thread_idx();
        if (i >= args.width) continue;
        switch (args.dtype) {
            case FloatType::kFloat32:
                swiglu_element<float>(args, row, i);
                break;
            case FloatType::kBFloat16:
                swiglu_element<BFloat16>(args, row, i);
                break;
            case FloatType::kFloat16:
                swiglu_element<Float16>(args, row, i);
                break;
        }
    }
}

}  // namespace dspark::DSPARK_ISA::experts
