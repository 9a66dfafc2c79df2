// Kernels of `permute` and `combine`. A block takes a piece of the row of a token, which it reads,
// or writes, once; the rows of the token's slots are the same for all threads and come from a list.
#pragma once

#include "device/narrow.h"
#include "device/warp_match.h"
#include "ops/moe/algorithm.h"

namespace dspark::DSPARK_ISA::moe {

// A kernel's work as numbered items, of which every block takes each grid-th.
template <class Args>
struct Items {
    Args args;
    int64_t count;
    int64_t pieces;       // of a row
    int64_t piece_units;  // in each but the last
    int64_t row_units;
};

// Rows of some choices of a token that are here, in the order of the choices.
template <int W>
struct LiveRows {
    SharedArray<int64_t, W> row;
    SharedArray<float, W> weight;
    SharedArray<int32_t, 1> count;
};

DSPARK_DEVICE float weight_of(const CombineArgs& args, int64_t token, int64_t j) {
    return weight_of_slot(args, token, j);
}
DSPARK_DEVICE float weight_of(const PermuteArgs&, int64_t, int64_t) {
    return 0.0f;  // no use of it
}

// Lists choices first .. first + W - 1 of a token; between sync_blocks. Returns how many are here.
template <int W, class Args>
DSPARK_DEVICE int list_rows(const Args& args, int64_t num_rows, int64_t token, int64_t first,
                            LiveRows<W>& live) {
    sync_block();
    if (warp_index<W>() == 0) {
        const int lane = lane_index<W>();
        const int64_t j = first + lane;
        int64_t row = -1;
        if (j < args.rows.slots_per_token) row = row_of_slot(args.rows, token, j, num_rows);
        const auto here = static_cast<Lanes<W>>(ballot<W>(row >= 0));
        const int at = count_lanes(here & lanes_below<W>(lane));
        if (row >= 0) {
            live.row[at] = row;
            live.weight[at] = weight_of(args, token, j);
        }
        if (lane == 0) live.count[0] = count_lanes(here);
    }
    sync_block();
    return live.count[0];
}

// ---- permute ------------------------------------------------------------------------------------

template <class Unit>
struct UnitAccess {
    DSPARK_DEVICE static Unit load(Global<const void> p, int64_t i) {
        return global_cast<const Unit>(p)[i];
    }
    DSPARK_DEVICE static void store(Global<void> p, int64_t i, Unit value) {
        global_cast<Unit>(p)[i] = value;
    }
};
template <>
struct UnitAccess<Bytes16> {
    DSPARK_DEVICE static Bytes16 load(Global<const void> p, int64_t i) { return load16(p, 16 * i); }
    DSPARK_DEVICE static void store(Global<void> p, int64_t i, Bytes16 value) {
        store16(p, 16 * i, value);
    }
};

// Units of a row that a thread reads before it writes any.
constexpr int kPermuteUnits = 2;

// Copies a piece of the row of a token to the rows of its slots.
template <int W, class Unit>
DSPARK_DEVICE void scatter_row(const Items<PermuteArgs>& items, int64_t token, int64_t piece,
                               LiveRows<W>& live) {
    const PermuteArgs& args = items.args;
    const int64_t begin = piece * items.piece_units + thread_idx();
    const int64_t end = smaller(items.row_units, (piece + 1) * items.piece_units);
    const Global<const void> from = global_cast<const char>(args.x) + token * args.x_stride;
    Unit unit[kPermuteUnits] = {};
    for (int u = 0; u < kPermuteUnits; ++u) {
        const int64_t i = begin + u * kThreads;
        if (i < end) unit[u] = UnitAccess<Unit>::load(from, i);
    }
    for (int64_t first = 0; first < args.rows.slots_per_token; first += W) {
        const int count = list_rows<W>(args, args.rows.capacity, token, first, live);
        for (int s = 0; s < count; ++s) {
            const int64_t row = live.row[s];
            const Global<void> to = global_cast<char>(args.permuted) + row * args.row_bytes;
            for (int u = 0; u < kPermuteUnits; ++u) {
                const int64_t i = begin + u * kThreads;
                if (i < end) UnitAccess<Unit>::store(to, i, unit[u]);
            }
        }
    }
}

// Clears those of a few rows that are padding, a warp per row.
template <int W, class Unit>
DSPARK_DEVICE void clear_padding(const Items<PermuteArgs>& items, int64_t chunk) {
    const PermuteArgs& args = items.args;
    const int lane = lane_index<W>();
    const int64_t row = chunk * kWarps<W> + warp_index<W>();
    if (row >= args.rows.capacity) return;
    int64_t token = 0;
    if (lane == 0) token = token_of_row(args.rows, row);
    if (shuffle<W>(token, 0) >= 0) return;
    const Global<void> to = global_cast<char>(args.permuted) + row * args.row_bytes;
    for (int64_t i = lane; i < items.row_units; i += W) UnitAccess<Unit>::store(to, i, Unit{});
}

template <int W, class Unit>
DSPARK_DEVICE void permute_item(const Items<PermuteArgs>& items, int64_t item, LiveRows<W>& live) {
    const int64_t token_items = items.args.rows.num_tokens * items.pieces;
    if (item < token_items) {
        scatter_row<W, Unit>(items, item / items.pieces, item % items.pieces, live);
    } else {
        clear_padding<W, Unit>(items, item - token_items);
    }
}

// Items: a piece of the row of a token; then a few rows that may be padding.
template <int W>
DSPARK_KERNEL(kThreads)
void permute_kernel(Items<PermuteArgs> items) {
    check_warp_size<W>();
    DSPARK_SHARED(LiveRows<W>, live);
    for (int64_t item = block_idx().x; item < items.count; item += grid_dim().x) {
        switch (items.args.unit) {
            case 16:
                permute_item<W, Bytes16>(items, item, live);
                break;
            case 8:
                permute_item<W, uint64_t>(items, item, live);
                break;
            case 4:
                permute_item<W, uint32_t>(items, item, live);
                break;
            case 2:
                permute_item<W, uint16_t>(items, item, live);
                break;
            default:
                permute_item<W, uint8_t>(items, item, live);
        }
    }
}

// ---- combine ------------------------------------------------------------------------------------

// N consecutive elements of a row as they lie in memory: one, or 16 bytes of them.
template <class T, int N>
struct Packed {
    std::conditional_t<N == 1, T, Bytes16> data;

    DSPARK_DEVICE static Packed load(Global<const void> row, int64_t i) {
        if constexpr (N == 1) {
            return {T(global_cast<const T>(row)[i])};
        } else {
            return {load16(row, 16 * i)};
        }
    }
    DSPARK_DEVICE void store(Global<void> row, int64_t i) const {
        if constexpr (N == 1) {
            global_cast<T>(row)[i] = data;
        } else {
            store16(row, 16 * i, data);
        }
    }
    DSPARK_DEVICE float widened(int n) const {
        if constexpr (N == 1) {
            return to_float(data);
        } else if constexpr (sizeof(T) == 4) {
            return bit_cast<float>(data.word[n]);
        } else {
            return to_float(T{static_cast<uint16_t>(data.word[n / 2] >> 16 * (n % 2))});
        }
    }
    // The sums, rounded to T.
    DSPARK_DEVICE static Packed round(const float (&sum)[N]) {
        Packed out;
        if constexpr (N == 1) {
            narrow(sum[0], &out.data);
        } else if constexpr (sizeof(T) == 4) {
            for (int n = 0; n < N; ++n) out.data.word[n] = bit_cast<uint32_t>(sum[n]);
        } else {
            for (int n = 0; n < N; n += 2) {
                T low, high;
                narrow(sum[n], &low);
                narrow(sum[n + 1], &high);
                out.data.word[n / 2] = low.bits | uint32_t{high.bits} << 16;
            }
        }
        return out;
    }
};

template <class T>
DSPARK_DEVICE Global<const void> row_at(const RowsIn& rows, int64_t row) {
    return global_cast<const T>(rows.data) + row * rows.stride;
}

// Rows that a thread reads before it adds any.
constexpr int kRowsAhead = 4;

// Adds the listed rows to the elements at i, in order.
template <int W, class T, int N>
DSPARK_DEVICE void add_rows(const CombineArgs& args, const LiveRows<W>& live, int count, int64_t i,
                            float (&sum)[N]) {
    for (int s = 0; s < count; s += kRowsAhead) {
        Packed<T, N> row[kRowsAhead];
        for (int r = 0; r < kRowsAhead; ++r) {
            if (s + r < count) row[r] = Packed<T, N>::load(row_at<T>(args.y, live.row[s + r]), i);
        }
        for (int r = 0; r < kRowsAhead; ++r) {
            if (s + r >= count) break;
            const float weight = live.weight[s + r];
            for (int n = 0; n < N; ++n) sum[n] = fma(weight, row[r].widened(n), sum[n]);
        }
    }
}

template <class T, int N>
DSPARK_DEVICE void add_row(const RowsIn& rows, int64_t token, int64_t i, float (&sum)[N]) {
    if (rows.data == nullptr) return;
    const auto row = Packed<T, N>::load(row_at<T>(rows, token), i);
    for (int n = 0; n < N; ++n) sum[n] += row.widened(n);
}

template <int W, class T, int N>
DSPARK_DEVICE void combine_item(const Items<CombineArgs>& items, int64_t item, LiveRows<W>& live) {
    const CombineArgs& args = items.args;
    const int64_t token = item / items.pieces;
    const int64_t begin = item % items.pieces * items.piece_units;
    const int64_t i = begin + thread_idx();
    const bool is_mine = i < smaller(items.row_units, begin + items.piece_units);
    float sum[N] = {};
    for (int64_t first = 0; first < args.rows.slots_per_token; first += W) {
        const int count = list_rows<W>(args, args.num_rows, token, first, live);
        if (is_mine) add_rows<W, T>(args, live, count, i, sum);
    }
    if (!is_mine) return;
    add_row<T>(args.shared, token, i, sum);
    add_row<T>(args.residual, token, i, sum);
    const auto out = Packed<T, N>::round(sum);
    out.store(global_cast<T>(args.out) + token * args.row_size, i);
}

template <int W, class T>
DSPARK_DEVICE void combine_item(const Items<CombineArgs>& items, int64_t item, LiveRows<W>& live) {
    if (items.args.is_aligned) {
        combine_item<W, T, 16 / sizeof(T)>(items, item, live);
    } else {
        combine_item<W, T, 1>(items, item, live);
    }
}

// Items: a piece of the row of a token.
template <int W>
DSPARK_KERNEL(kThreads)
void combine_kernel(Items<CombineArgs> items) {
    check_warp_size<W>();
    DSPARK_SHARED(LiveRows<W>, live);
    for (int64_t item = block_idx().x; item < items.count; item += grid_dim().x) {
        switch (items.args.dtype) {
            case FloatType::kFloat32:
                combine_item<W, float>(items, item, live);
                break;
            case FloatType::kBFloat16:
                combine_item<W, BFloat16>(items, item, live);
                break;
            case FloatType::kFloat16:
                combine_item<W, Float16>(items, item, live);
                break;
        }
    }
}

}  // namespace dspark::DSPARK_ISA::moe
