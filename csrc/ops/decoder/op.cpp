// Checks, allocation and dispatch of the decoder family.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "backends/cpu/isa.h"
#include "host/check.h"
#include "host/tensor.h"
#include "ops/decoder/args.h"

DSPARK_CPU_DECLARE(void rms_norm_rows(const RmsNormArgs&, int64_t, int64_t))
DSPARK_CPU_DECLARE(void silu_mul_rows(const SiluMulArgs&, int64_t, int64_t))
DSPARK_CPU_DECLARE(void routed_silu_mul_rows(const RoutedSiluMulArgs&, int64_t, int64_t))
DSPARK_CPU_DECLARE(void rope_store_rows(const RopeStoreArgs&, int64_t, int64_t))

namespace dspark {

namespace {

using host::Arg;
using host::fail;
using host::ScalarType;
using host::Tensor;

constexpr int64_t kElementsPerTask = 32768;  // below this a second thread does not pay

Arg dense_arg(const char* op, const char* name, const Tensor& tensor,
              ScalarType dtype = ScalarType::Float) {
    return Arg(op, name, tensor).on_cpu().dtype({dtype}).dense();
}

std::string text(int64_t number) {
    return std::to_string(number);
}

template <typename Kernel>
void for_rows(int64_t rows, int64_t width, const Kernel& kernel) {
    if (rows * width == 0) return;
    const int64_t grain = (kElementsPerTask + width - 1) / width;
    if (rows <= grain) {
        kernel(0, rows);
    } else {
        torch::stable::parallel_for(0, rows, grain, kernel);
    }
}

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
    const char* op = "rms_norm";
    dense_arg(op, "x", x);
    dense_arg(op, "weight", weight).shape({{"width"}});
    const int64_t width = weight.size(0);
    if (x.dim() < 1 || x.size(x.dim() - 1) != width) {
        fail(op, "x",
             "expected shape [..., width=" + text(width) + "], got " + host::shape_text(x));
    }
    Tensor out = host::new_tensor(x, x.sizes(), ScalarType::Float);
    const RmsNormArgs args{x.const_data_ptr<float>(), weight.const_data_ptr<float>(),
                           out.mutable_data_ptr<float>(), width, static_cast<float>(eps)};
    for_rows(width == 0 ? 0 : x.numel() / width, width, [&](int64_t begin, int64_t end) {
        DSPARK_CPU_DISPATCH(rms_norm_rows, args, begin, end);
    });
    return out;
}

Tensor silu_mul(const Tensor& gate_up) {
    dense_arg("silu_mul", "gate_up", gate_up).shape({{"N"}, {"2F"}});
    if (gate_up.size(1) % 2 != 0) {
        fail("silu_mul", "gate_up",
             "expected an even number of columns, got " + text(gate_up.size(1)));
    }
    const int64_t rows = gate_up.size(0);
    const int64_t width = gate_up.size(1) / 2;
    Tensor out = host::new_tensor(gate_up, {rows, width}, ScalarType::Float);
    const SiluMulArgs args{gate_up.const_data_ptr<float>(), out.mutable_data_ptr<float>(), width};
    for_rows(rows, width, [&](int64_t begin, int64_t end) {
        DSPARK_CPU_DISPATCH(silu_mul_rows, args, begin, end);
    });
    return out;
}

Tensor routed_silu_mul(const Tensor& gate_up, const Tensor& router_logits,
                       const Tensor& router_bias, int64_t expert_size, int64_t top_k,
                       double scaling, double limit) {
    const char* op = "routed_silu_mul";
    dense_arg(op, "gate_up", gate_up).shape({{"N"}, {"columns"}});
    const int64_t rows = gate_up.size(0), width = gate_up.size(1) / 2;
    dense_arg(op, "router_bias", router_bias).shape({{"E"}});
    const int64_t num_experts = router_bias.size(0);
    dense_arg(op, "router_logits", router_logits).shape({{"N", rows}, {"E", num_experts}});
    if (num_experts > kMaxExperts || top_k < 1 || top_k > num_experts) {
        fail(op, "top_k",
             "expected 1 <= top_k <= experts <= " + text(kMaxExperts) + ", got top_k " +
                 text(top_k) + " of " + text(num_experts) + " experts");
    }
    if (expert_size < 0 || gate_up.size(1) % 2 != 0 || expert_size > width / num_experts) {
        fail(op, "gate_up",
             "expected 2 * (" + text(num_experts) + " * " + text(expert_size) +
                 " + shared) columns, got " + text(gate_up.size(1)));
    }
    Tensor out = host::new_tensor(gate_up, {rows, width}, ScalarType::Float);
    const RoutedSiluMulArgs args{gate_up.const_data_ptr<float>(),
                                 router_logits.const_data_ptr<float>(),
                                 router_bias.const_data_ptr<float>(),
                                 out.mutable_data_ptr<float>(),
                                 width,
                                 num_experts,
                                 expert_size,
                                 top_k,
                                 static_cast<float>(scaling),
                                 static_cast<float>(limit)};
    for_rows(rows, width, [&](int64_t begin, int64_t end) {
        DSPARK_CPU_DISPATCH(routed_silu_mul_rows, args, begin, end);
    });
    return out;
}

namespace {

constexpr const char* kRopeStore = "rope_store";

// Of rope_store; the sizes are those of key_cache and qkv.
void check_rope_store_shapes(const RopeStoreArgs& args, const Tensor& qkv, const Tensor& cos,
                             const Tensor& sin, const Tensor& key_cache,
                             const Tensor& value_cache) {
    if (args.num_heads < 0 || qkv.size(1) != args.num_heads + 2 * args.num_kv_heads) {
        fail(kRopeStore, "qkv",
             "expected " + text(args.num_heads) + " + 2 * " + text(args.num_kv_heads) +
                 " heads, got " + text(qkv.size(1)));
    }
    if (args.head_dim % 2 != 0 || key_cache.size(3) != args.head_dim) {
        fail(kRopeStore, "key_cache",
             "expected an even head size equal to qkv's " + text(args.head_dim) + ", got " +
                 text(key_cache.size(3)));
    }
    const host::Dim head = {"D", args.head_dim};
    dense_arg(kRopeStore, "value_cache", value_cache)
        .shape(
            {{"S", key_cache.size(0)}, {"L", args.cache_length}, {"Hkv", args.num_kv_heads}, head});
    dense_arg(kRopeStore, "cos", cos).shape({{"T"}, head});
    dense_arg(kRopeStore, "sin", sin).shape({{"T", cos.size(0)}, head});
}

template <class T>
void check_cells(const char* name, const Tensor& cells, ScalarType dtype, int64_t rows,
                 int64_t end) {
    dense_arg(kRopeStore, name, cells, dtype).shape({{"N", rows}});
    const T* cell = cells.const_data_ptr<T>();
    for (int64_t row = 0; row < rows; ++row) {
        if (cell[row] < 0 || cell[row] >= end) {
            fail(kRopeStore, name,
                 "expected values in [0, " + text(end) + "), got " + text(cell[row]) + " in row " +
                     text(row));
        }
    }
}

const float* norm_weight(const std::optional<Tensor>& norm, int64_t head_dim, const char* name) {
    if (!norm.has_value()) return nullptr;
    dense_arg(kRopeStore, name, *norm).shape({{"D", head_dim}});
    return norm->const_data_ptr<float>();
}

}  // namespace

Tensor rope_store(const Tensor& qkv, const Tensor& cos, const Tensor& sin, const Tensor& positions,
                  const Tensor& slots, Tensor key_cache, Tensor value_cache, int64_t num_heads,
                  std::optional<Tensor> query_norm, std::optional<Tensor> key_norm, double eps) {
    dense_arg(kRopeStore, "qkv", qkv).shape({{"N"}, {"Hq + 2 Hkv"}, {"D"}});
    dense_arg(kRopeStore, "key_cache", key_cache).shape({{"S"}, {"L"}, {"Hkv"}, {"D"}});
    RopeStoreArgs args{};
    args.num_heads = num_heads;
    args.num_kv_heads = key_cache.size(2);
    args.head_dim = qkv.size(2);
    args.cache_length = key_cache.size(1);
    args.eps = static_cast<float>(eps);
    const int64_t rows = qkv.size(0);
    check_rope_store_shapes(args, qkv, cos, sin, key_cache, value_cache);
    check_cells<int64_t>("positions", positions, ScalarType::Long, rows,
                         std::min(args.cache_length, cos.size(0)));
    check_cells<int32_t>("slots", slots, ScalarType::Int, rows, key_cache.size(0));
    args.query_norm = norm_weight(query_norm, args.head_dim, "query_norm");
    args.key_norm = norm_weight(key_norm, args.head_dim, "key_norm");
    Tensor query = host::new_tensor(qkv, {rows, num_heads, args.head_dim}, ScalarType::Float);
    args.qkv = qkv.const_data_ptr<float>();
    args.cos = cos.const_data_ptr<float>();
    args.sin = sin.const_data_ptr<float>();
    args.positions = positions.const_data_ptr<int64_t>();
    args.slots = slots.const_data_ptr<int32_t>();
    args.query = query.mutable_data_ptr<float>();
    args.key_cache = key_cache.mutable_data_ptr<float>();
    args.value_cache = value_cache.mutable_data_ptr<float>();
    for_rows(rows, qkv.size(1) * args.head_dim, [&](int64_t begin, int64_t end) {
        DSPARK_CPU_DISPATCH(rope_store_rows, args, begin, end);
    });
    return query;
}

}  // namespace dspark

STABLE_TORCH_LIBRARY_IMPL(dspark_ext, CPU, m) {
    m.impl("rms_norm", TORCH_BOX(&dspark::rms_norm));
    m.impl("silu_mul", TORCH_BOX(&dspark::silu_mul));
    m.impl("routed_silu_mul", TORCH_BOX(&dspark::routed_silu_mul));
    m.impl("rope_store", TORCH_BOX(&dspark::rope_store));
}
