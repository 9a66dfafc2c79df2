// Checks, allocation and dispatch of the attention family.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "host/tensor.h"
#include "ops/attention/cpu.h"

namespace dspark {
namespace {

using host::Arg;
using host::ScalarType;
using host::Tensor;

constexpr const char* kOp = "attention";
constexpr int64_t kMaxHeadDim = 256;
constexpr double kLog2E = 0x1.71547652b82fep+0;

// Queries that share the reads of a key/value head: two full passes of the widest panel kernel.
constexpr int64_t kMaxGroupQueries = 24;
// How far a group may stretch beyond the keys of its longest row.
constexpr int64_t kMaxGroupSlack = 64;
// Multiply-adds below which a task is not worth a thread of its own.
constexpr int64_t kMinMultiplyAddsPerThread = 1 << 16;

void check_shapes(const Tensor& query, const Tensor& key_cache, const Tensor& value_cache,
                  const Tensor& slots, const Tensor& key_start, const Tensor& key_end) {
    Arg(kOp, "query", query).on_cpu().dtype({ScalarType::Float}).shape({{"N"}, {"Hq"}, {"D"}});
    const int64_t rows = query.size(0);
    const int64_t dim = query.size(2);
    if (dim < 1 || dim > kMaxHeadDim) {
        host::fail(kOp, "query", "expected D from 1 to 256, got " + std::to_string(dim));
    }
    Arg(kOp, "key_cache", key_cache)
        .on_cpu()
        .dtype({ScalarType::Float, ScalarType::BFloat16})
        .shape({{"S"}, {"L"}, {"Hkv"}, {"D", dim}})
        .dense_rows();
    Arg(kOp, "value_cache", value_cache)
        .on_cpu()
        .dtype({key_cache.scalar_type()})
        .shape({{"S", key_cache.size(0)},
                {"L", key_cache.size(1)},
                {"Hkv", key_cache.size(2)},
                {"D", dim}})
        .dense_rows();
    const int64_t kv_heads = key_cache.size(2);
    if (kv_heads < 1 || query.size(1) % kv_heads != 0) {
        host::fail(kOp, "query",
                   "expected Hq to be a multiple of Hkv=" + std::to_string(kv_heads) + ", got " +
                       std::to_string(query.size(1)));
    }
    Arg(kOp, "slots", slots).on_cpu().dtype({ScalarType::Int}).shape({{"N", rows}});
    Arg(kOp, "key_start", key_start).on_cpu().dtype({ScalarType::Int}).shape({{"N", rows}});
    Arg(kOp, "key_end", key_end).on_cpu().dtype({ScalarType::Int}).shape({{"N", rows}});
}

void check_row(const AttentionArgs& args, int64_t row, int64_t num_slots, int64_t capacity) {
    const auto check = [&](const char* name, int64_t value, bool valid, const char* limits,
                           int64_t size) {
        if (valid) return;
        host::fail(kOp, name,
                   "row " + std::to_string(row) + ": expected " + limits + std::to_string(size) +
                       ", got " + std::to_string(value));
    };
    const int64_t start = args.key_starts[row];
    const int64_t end = args.key_ends[row];
    check("slots", args.slots[row], args.slots[row] < num_slots, "a slot below S=", num_slots);
    check("key_start", start, start >= 0 && start <= capacity, "0 to L=", capacity);
    check("key_end", end, end >= 0 && end <= capacity, "0 to L=", capacity);
}

// Checks every row and gathers runs of rows of one slot. Rows that attend to nothing (slot < 0, or
// an empty range) are in no group.
std::vector<AttentionGroup> group_rows(const AttentionArgs& args, int64_t num_rows,
                                       int64_t num_slots, int64_t capacity) {
    const int64_t heads_per_row = args.num_heads / args.num_kv_heads;
    std::vector<AttentionGroup> groups;
    int64_t longest = 0;
    for (int64_t row = 0; row < num_rows; ++row) {
        if (args.slots[row] < 0) continue;
        check_row(args, row, num_slots, capacity);
        const int64_t start = args.key_starts[row];
        const int64_t end = args.key_ends[row];
        if (start >= end) continue;
        if (!groups.empty()) {
            AttentionGroup& last = groups.back();
            const int64_t begin = start < last.key_begin ? start : last.key_begin;
            const int64_t limit = end > last.key_end ? end : last.key_end;
            const int64_t longer = end - start > longest ? end - start : longest;
            if (last.row_end == row && args.slots[row - 1] == args.slots[row] &&
                (row + 1 - last.row_begin) * heads_per_row <= kMaxGroupQueries &&
                limit - begin <= longer + kMaxGroupSlack) {
                last = {last.row_begin, row + 1, begin, limit};
                longest = longer;
                continue;
            }
        }
        groups.push_back({row, row + 1, start, end});
        longest = end - start;
    }
    return groups;
}

CacheStrides strides_of(const Tensor& cache) {
    return {cache.stride(0), cache.stride(1), cache.stride(2)};
}

Tensor attention(const Tensor& query, const Tensor& key_cache, const Tensor& value_cache,
                 const Tensor& slots, const Tensor& key_start, const Tensor& key_end,
                 double scale) {
    check_shapes(query, key_cache, value_cache, slots, key_start, key_end);
    const Tensor dense_query = host::dense(query);
    const Tensor dense_slots = host::dense(slots);
    const Tensor dense_start = host::dense(key_start);
    const Tensor dense_end = host::dense(key_end);
    Tensor out = host::new_tensor(dense_query, dense_query.sizes(), ScalarType::Float);
    std::memset(out.mutable_data_ptr(), 0, static_cast<size_t>(out.numel()) * sizeof(float));

    AttentionArgs args{};
    args.query = dense_query.const_data_ptr<float>();
    args.key_cache = key_cache.const_data_ptr();
    args.value_cache = value_cache.const_data_ptr();
    args.slots = dense_slots.const_data_ptr<int32_t>();
    args.key_starts = dense_start.const_data_ptr<int32_t>();
    args.key_ends = dense_end.const_data_ptr<int32_t>();
    args.out = out.mutable_data_ptr<float>();
    args.key_strides = strides_of(key_cache);
    args.value_strides = strides_of(value_cache);
    args.num_heads = query.size(1);
    args.num_kv_heads = key_cache.size(2);
    args.head_dim = query.size(2);
    args.exponent_scale = static_cast<float>(scale * kLog2E);
    args.is_bf16 = key_cache.scalar_type() == ScalarType::BFloat16;
    if (args.num_heads == 0) return out;

    const std::vector<AttentionGroup> groups =
        group_rows(args, query.size(0), key_cache.size(0), key_cache.size(1));
    args.groups = groups.data();
    int64_t scratch_floats = 0;
    int64_t multiply_adds = 0;
    for (const AttentionGroup& group : groups) {
        const int64_t floats = attention_scratch_floats(args, group);
        scratch_floats = floats > scratch_floats ? floats : scratch_floats;
        multiply_adds += floats * args.head_dim * 2;
    }
    const int64_t num_tasks = static_cast<int64_t>(groups.size()) * args.num_kv_heads;
    if (num_tasks == 0) return out;
    const int64_t task_cost = multiply_adds / static_cast<int64_t>(groups.size());
    torch::stable::parallel_for(
        0, num_tasks, kMinMultiplyAddsPerThread / task_cost + 1, [&](int64_t begin, int64_t end) {
            const std::unique_ptr<float[]> scratch(new float[scratch_floats]);
            DSPARK_CPU_DISPATCH(attention, args, begin, end, scratch.get());
        });
    return out;
}

}  // namespace
}  // namespace dspark

STABLE_TORCH_LIBRARY_IMPL(dspark_ext, CPU, m) {
    m.impl("attention", TORCH_BOX(&dspark::attention));
}
