// Checks, allocation and dispatch of the linear family.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "ops/linear/cpu.h"

namespace dspark {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Multiply-adds below which a task is not worth a thread of its own.
constexpr int64_t kMinMultiplyAddsPerThread = 1 << 17;

std::string shape_string(const Tensor& tensor) {
    std::string text = "[";
    for (int64_t i = 0; i < tensor.dim(); ++i) {
        text += (i ? ", " : "") + std::to_string(tensor.size(i));
    }
    return text + "]";
}

bool is_float(const Tensor& tensor) {
    return tensor.scalar_type() == ScalarType::Float || tensor.scalar_type() == ScalarType::BFloat16;
}

Tensor pack_linear(const Tensor& weight) {
    STD_TORCH_CHECK(weight.dim() == 2,
                    "dspark_ext.pack_linear: weight: expected shape [out_features, in_features], got ",
                    shape_string(weight));
    STD_TORCH_CHECK(is_float(weight), "dspark_ext.pack_linear: weight: expected float32 or bfloat16, got ",
                    torch::headeronly::toString(weight.scalar_type()));
    const Tensor source = torch::stable::contiguous(weight);
    PackLinearArgs args{};
    args.out_features = source.size(0);
    args.in_features = source.size(1);
    args.is_bf16 = source.scalar_type() == ScalarType::BFloat16;
    const int64_t panels = (args.out_features + kLinearPanelOutputs - 1) / kLinearPanelOutputs;
    const int64_t shape[] = {panels, args.in_features, kLinearPanelOutputs};
    Tensor packed = torch::stable::new_empty(source, shape);
    args.weight = source.const_data_ptr();
    args.packed = packed.mutable_data_ptr();
    torch::stable::parallel_for(0, panels, 16, [&](int64_t begin, int64_t end) {
        DSPARK_CPU_DISPATCH(pack_linear, args, begin, end);
    });
    return packed;
}

void check_linear(const Tensor& x, const Tensor& packed, const std::optional<Tensor>& bias,
                  int64_t out_features) {
    STD_TORCH_CHECK(packed.dim() == 3 && packed.size(2) == kLinearPanelOutputs,
                    "dspark_ext.linear: packed_weight: expected the result of pack_linear, "
                    "[panels, in_features, 32], got ",
                    shape_string(packed));
    STD_TORCH_CHECK(is_float(packed),
                    "dspark_ext.linear: packed_weight: expected float32 or bfloat16, got ",
                    torch::headeronly::toString(packed.scalar_type()));
    STD_TORCH_CHECK(x.dim() >= 1 && x.size(x.dim() - 1) == packed.size(1),
                    "dspark_ext.linear: x: expected shape [..., in_features=", packed.size(1), "], got ",
                    shape_string(x));
    STD_TORCH_CHECK(is_float(x), "dspark_ext.linear: x: expected float32 or bfloat16, got ",
                    torch::headeronly::toString(x.scalar_type()));
    const int64_t capacity = packed.size(0) * kLinearPanelOutputs;
    STD_TORCH_CHECK(out_features <= capacity && out_features > capacity - kLinearPanelOutputs,
                    "dspark_ext.linear: out_features: packed_weight ", shape_string(packed), " holds ",
                    capacity - kLinearPanelOutputs + 1, " to ", capacity, " outputs, got ", out_features);
    if (!bias) return;
    STD_TORCH_CHECK(bias->dim() == 1 && bias->size(0) == out_features,
                    "dspark_ext.linear: bias: expected shape [out_features=", out_features, "], got ",
                    shape_string(*bias));
    STD_TORCH_CHECK(bias->scalar_type() == ScalarType::Float,
                    "dspark_ext.linear: bias: expected float32, got ",
                    torch::headeronly::toString(bias->scalar_type()));
}

Tensor linear(const Tensor& x, const Tensor& packed_weight, const std::optional<Tensor>& bias,
              int64_t out_features) {
    check_linear(x, packed_weight, bias, out_features);
    const Tensor rows = torch::stable::contiguous(
        x.scalar_type() == ScalarType::Float ? x : torch::stable::to(x, ScalarType::Float));
    const Tensor packed = torch::stable::contiguous(packed_weight);
    std::optional<Tensor> flat_bias;
    if (bias) flat_bias = torch::stable::contiguous(*bias);
    std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
    shape.back() = out_features;
    Tensor out = torch::stable::new_empty(rows, shape);

    LinearArgs args{};
    args.x = rows.const_data_ptr<float>();
    args.packed_weight = packed.const_data_ptr();
    args.bias = flat_bias ? flat_bias->const_data_ptr<float>() : nullptr;
    args.out = out.mutable_data_ptr<float>();
    args.in_features = packed.size(1);
    args.out_features = out_features;
    args.num_rows = 1;
    for (int64_t i = 0; i + 1 < x.dim(); ++i) args.num_rows *= x.size(i);
    args.is_bf16 = packed.scalar_type() == ScalarType::BFloat16;
    const int64_t tasks = packed.size(0) * linear_row_chunks(args.num_rows);
    const int64_t chunk_rows = args.num_rows < kLinearRowChunk ? args.num_rows : kLinearRowChunk;
    const int64_t task_cost = chunk_rows * args.in_features * kLinearPanelOutputs + 1;
    torch::stable::parallel_for(0, tasks, kMinMultiplyAddsPerThread / task_cost + 1,
                                [&](int64_t begin, int64_t end) {
                                    DSPARK_CPU_DISPATCH(linear, args, begin, end);
                                });
    return out;
}

}  // namespace
}  // namespace dspark

STABLE_TORCH_LIBRARY_IMPL(dspark_ext, CPU, m) {
    m.impl("pack_linear", TORCH_BOX(&dspark::pack_linear));
    m.impl("linear", TORCH_BOX(&dspark::linear));
}
