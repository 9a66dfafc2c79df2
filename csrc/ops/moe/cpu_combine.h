// Combining rows on the CPU: the sum of docs/moe.md in vectors. Each element is one chain of fused
// multiply-adds, so the bits are those of every other backend.
#pragma once

#include "backends/cpu/simd.h"
#include "device/narrow.h"
#include "ops/moe/algorithm.h"

namespace dspark::DSPARK_ISA::moe {

constexpr int64_t kSumElements = 512;  // of a row that are added up at a time
constexpr int kSumSlots = 32;          // slots that are read side by side

// Choices of a token that are here, with where their rows begin.
template <class T>
struct LiveSlots {
    const T* row[kSumSlots];
    float weight[kSumSlots];
    int count;
};

// From choice j on, as many as there is room for; j becomes the first that was not looked at.
template <class T>
DSPARK_DEVICE LiveSlots<T> take_live_slots(const CombineArgs& args, int64_t token, int64_t& j) {
    LiveSlots<T> live;
    live.count = 0;
    for (; j < args.rows.slots_per_token && live.count < kSumSlots; ++j) {
        const int64_t row = row_of_slot(args.rows, token, j, args.num_rows);
        if (row < 0) continue;
        live.row[live.count] = static_cast<const T*>(args.y.data) + row * args.y.stride;
        live.weight[live.count++] = weight_of_slot(args, token, j);
    }
    return live;
}

// sum[i] = fma(weight, row[begin + i], sum[i]), slot after slot.
template <class T>
DSPARK_DEVICE void add_slots(const LiveSlots<T>& live, int64_t begin, int64_t size, float* sum) {
    constexpr int kVectors = 4;
    constexpr int kStep = kVectors * FloatVector::kWidth;
    int64_t i = 0;
    for (; i + kStep <= size; i += kStep) {
        FloatVector part[kVectors];
        for (int v = 0; v < kVectors; ++v) part[v] = load(sum + i + v * FloatVector::kWidth);
        for (int s = 0; s < live.count; ++s) {
            const T* from = live.row[s] + begin + i;
            const FloatVector weight(live.weight[s]);
            for (int v = 0; v < kVectors; ++v) {
                part[v] = fma(weight, load(from + v * FloatVector::kWidth), part[v]);
            }
        }
        for (int v = 0; v < kVectors; ++v) store(sum + i + v * FloatVector::kWidth, part[v]);
    }
    for (; i < size; ++i) {
        for (int s = 0; s < live.count; ++s) {
            sum[i] = fma(live.weight[s], to_float(live.row[s][begin + i]), sum[i]);
        }
    }
}

template <class T>
DSPARK_DEVICE void add_row(const RowsIn& rows, int64_t token, int64_t begin, int64_t size,
                           float* sum) {
    if (rows.data == nullptr) return;
    const T* row = static_cast<const T*>(rows.data) + token * rows.stride + begin;
    for (int64_t i = 0; i < size; ++i) sum[i] += to_float(row[i]);
}

template <class T>
void combine_tokens(const CombineArgs& args, int64_t token_begin, int64_t token_end) {
    float sum[kSumElements];
    for (int64_t token = token_begin; token < token_end; ++token) {
        int64_t j = 0;
        LiveSlots<T> live = take_live_slots<T>(args, token, j);
        const bool all_at_once = j == args.rows.slots_per_token;
        for (int64_t begin = 0; begin < args.row_size; begin += kSumElements) {
            const int64_t size = smaller(kSumElements, args.row_size - begin);
            for (int64_t i = 0; i < size; ++i) sum[i] = 0.0f;
            if (all_at_once) {
                add_slots(live, begin, size, sum);
            } else {
                for (j = 0; j < args.rows.slots_per_token;) {
                    live = take_live_slots<T>(args, token, j);
                    add_slots(live, begin, size, sum);
                }
            }
            add_row<T>(args.shared, token, begin, size, sum);
            add_row<T>(args.residual, token, begin, size, sum);
            T* out = static_cast<T*>(args.out) + token * args.row_size + begin;
            for (int64_t i = 0; i < size; ++i) narrow(sum[i], &out[i]);
        }
    }
}

}  // namespace dspark::DSPARK_ISA::moe
