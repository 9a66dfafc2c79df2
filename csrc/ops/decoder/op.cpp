// Checks, allocation and dispatch of the decoder family.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "backends/cpu/isa.h"
#include "host/tensor.h"
#include "ops/decoder/args.h"

DSPARK_CPU_DECLARE(void rms_norm_rows(const RmsNormArgs&, int64_t, int64_t))
DSPARK_CPU_DECLARE(void silu_mul_rows(const SiluMulArgs&, int64_t, int64_t))
DSPARK_CPU_DECLARE(void routed_silu_mul_rows(const RoutedSiluMulArgs&, int64_t, int64_t))
DSPARK_CPU_DECLARE(void rope_store_rows(const RopeStoreArgs&, int64_t, int64_t))

namespace dspark {

namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t kElementsPerTask = 32768;  // below this a second thread does not pay

void check_dense(const Tensor& tensor, ScalarType dtype, int64_t dim, const char* op,
                 const char* name) {
    STD_TORCH_CHECK(tensor.scalar_type() == dtype && tensor.is_contiguous(), "dspark_ext.", op,
                    ": ", name, ": expected a contiguous tensor of dtype ",
                    torch::headeronly::toString(dtype), ", got ",
                    torch::headeronly::toString(tensor.scalar_type()),
                    tensor.is_contiguous() ? "" : " (not contiguous)");
    STD_TORCH_CHECK(tensor.dim() == dim, "dspark_ext.", op, ": ", name, ": expected ", dim,
                    " dimensions, got ", tensor.dim());
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
    check_dense(x, ScalarType::Float, x.dim(), "rms_norm", "x");
    check_dense(weight, ScalarType::Float, 1, "rms_norm", "weight");
    const int64_t width = weight.size(0);
    STD_TORCH_CHECK(x.dim() >= 1 && x.size(x.dim() - 1) == width,
                    "dspark_ext.rms_norm: x: expected last dimension ", width, ", got ",
                    x.dim() >= 1 ? x.size(x.dim() - 1) : 0);
    Tensor out = host::new_tensor(x, x.sizes(), ScalarType::Float);
    const RmsNormArgs args{x.const_data_ptr<float>(), weight.const_data_ptr<float>(),
                           out.mutable_data_ptr<float>(), width, static_cast<float>(eps)};
    for_rows(width == 0 ? 0 : x.numel() / width, width, [&](int64_t begin, int64_t end) {
        DSPARK_CPU_DISPATCH(rms_norm_rows, args, begin, end);
    });
    return out;
}

Tensor silu_mul(const Tensor& gate_up) {
    check_dense(gate_up, ScalarType::Float, 2, "silu_mul", "gate_up");
    STD_TORCH_CHECK(gate_up.size(1) % 2 == 0,
                    "dspark_ext.silu_mul: gate_up: expected an even number of columns, got ",
                    gate_up.size(1));
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
    check_dense(gate_up, ScalarType::Float, 2, op, "gate_up");
    check_dense(router_logits, ScalarType::Float, 2, op, "router_logits");
    check_dense(router_bias, ScalarType::Float, 1, op, "router_bias");
    const int64_t rows = gate_up.size(0), width = gate_up.size(1) / 2;
    const int64_t num_experts = router_bias.size(0);
    STD_TORCH_CHECK(router_logits.size(0) == rows && router_logits.size(1) == num_experts,
                    "dspark_ext.routed_silu_mul: router_logits: expected shape [", rows, ", ",
                    num_experts, "], got [", router_logits.size(0), ", ", router_logits.size(1),
                    "]");
    STD_TORCH_CHECK(num_experts <= kMaxExperts && top_k >= 1 && top_k <= num_experts,
                    "dspark_ext.routed_silu_mul: top_k: expected 1 <= top_k <= experts <= ",
                    kMaxExperts, ", got top_k ", top_k, " of ", num_experts, " experts");
    STD_TORCH_CHECK(
        expert_size >= 0 && gate_up.size(1) % 2 == 0 && expert_size <= width / num_experts,
        "dspark_ext.routed_silu_mul: gate_up: expected 2 * (", num_experts, " * ", expert_size,
        " + shared) columns, got ", gate_up.size(1));
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

void check_rope_store_shapes(const RopeStoreArgs& args, const Tensor& qkv, const Tensor& cos,
                             const Tensor& sin, const Tensor& key_cache,
                             const Tensor& value_cache) {
    STD_TORCH_CHECK(args.num_heads >= 0 && qkv.size(1) == args.num_heads + 2 * args.num_kv_heads,
                    "dspark_ext.rope_store: qkv: expected ", args.num_heads, " + 2 * ",
                    args.num_kv_heads, " heads, got ", qkv.size(1));
    STD_TORCH_CHECK(args.head_dim % 2 == 0 && key_cache.size(3) == args.head_dim,
                    "dspark_ext.rope_store: key_cache: expected an even head size equal to qkv's ",
                    args.head_dim, ", got ", key_cache.size(3));
    for (int64_t dim = 0; dim < 4; ++dim) {
        STD_TORCH_CHECK(value_cache.size(dim) == key_cache.size(dim),
                        "dspark_ext.rope_store: value_cache: expected the shape of key_cache, got ",
                        value_cache.size(dim), " for ", key_cache.size(dim), " in dimension ", dim);
    }
    STD_TORCH_CHECK(
        cos.size(1) == args.head_dim && sin.size(1) == args.head_dim && sin.size(0) == cos.size(0),
        "dspark_ext.rope_store: cos, sin: expected two tables [T, ", args.head_dim, "]");
}

void check_cells(const Tensor& positions, const Tensor& slots, int64_t rows, int64_t num_positions,
                 int64_t num_slots) {
    STD_TORCH_CHECK(positions.size(0) == rows && slots.size(0) == rows,
                    "dspark_ext.rope_store: positions, slots: expected length ", rows, ", got ",
                    positions.size(0), " and ", slots.size(0));
    const int64_t* position = positions.const_data_ptr<int64_t>();
    const int32_t* slot = slots.const_data_ptr<int32_t>();
    for (int64_t row = 0; row < rows; ++row) {
        STD_TORCH_CHECK(position[row] >= 0 && position[row] < num_positions,
                        "dspark_ext.rope_store: positions: expected values in [0, ", num_positions,
                        "), got ", position[row], " in row ", row);
        STD_TORCH_CHECK(slot[row] >= 0 && slot[row] < num_slots,
                        "dspark_ext.rope_store: slots: expected values in [0, ", num_slots,
                        "), got ", slot[row], " in row ", row);
    }
}

const float* norm_weight(const std::optional<Tensor>& norm, int64_t head_dim, const char* name) {
    if (!norm.has_value()) return nullptr;
    check_dense(*norm, ScalarType::Float, 1, "rope_store", name);
    STD_TORCH_CHECK(norm->size(0) == head_dim, "dspark_ext.rope_store: ", name,
                    ": expected length ", head_dim, ", got ", norm->size(0));
    return norm->const_data_ptr<float>();
}

}  // namespace

Tensor rope_store(const Tensor& qkv, const Tensor& cos, const Tensor& sin, const Tensor& positions,
                  const Tensor& slots, Tensor key_cache, Tensor value_cache, int64_t num_heads,
                  std::optional<Tensor> query_norm, std::optional<Tensor> key_norm, double eps) {
    const char* op = "rope_store";
    check_dense(qkv, ScalarType::Float, 3, op, "qkv");
    check_dense(cos, ScalarType::Float, 2, op, "cos");
    check_dense(sin, ScalarType::Float, 2, op, "sin");
    check_dense(positions, ScalarType::Long, 1, op, "positions");
    check_dense(slots, ScalarType::Int, 1, op, "slots");
    check_dense(key_cache, ScalarType::Float, 4, op, "key_cache");
    check_dense(value_cache, ScalarType::Float, 4, op, "value_cache");
    RopeStoreArgs args{};
    args.num_heads = num_heads;
    args.num_kv_heads = key_cache.size(2);
    args.head_dim = qkv.size(2);
    args.cache_length = key_cache.size(1);
    args.eps = static_cast<float>(eps);
    const int64_t rows = qkv.size(0);
    check_rope_store_shapes(args, qkv, cos, sin, key_cache, value_cache);
    check_cells(positions, slots, rows, std::min(args.cache_length, cos.size(0)),
                key_cache.size(0));
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
