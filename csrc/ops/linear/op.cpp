// Checks, allocation and dispatch of the linear family.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/tensor.h"
#include "ops/linear/cpu.h"

namespace dspark {
namespace {

using host::Arg;
using host::ScalarType;
using host::Tensor;

// Multiply-adds below which a task is not worth a thread of its own.
constexpr int64_t kMinMultiplyAddsPerThread = 1 << 17;

Tensor pack_linear(const Tensor& weight) {
    Arg("pack_linear", "weight", weight)
        .on_cpu()
        .dtype({ScalarType::Float, ScalarType::BFloat16})
        .shape({{"out_features"}, {"in_features"}});
    const Tensor source = host::dense(weight);
    PackLinearArgs args{};
    args.out_features = source.size(0);
    args.in_features = source.size(1);
    args.is_bf16 = source.scalar_type() == ScalarType::BFloat16;
    const int64_t panels = (args.out_features + kLinearPanelOutputs - 1) / kLinearPanelOutputs;
    const int64_t shape[] = {panels, args.in_features, kLinearPanelOutputs};
    Tensor packed = host::new_tensor(source, shape, source.scalar_type());
    args.weight = source.const_data_ptr();
    args.packed = packed.mutable_data_ptr();
    torch::stable::parallel_for(0, panels, 16, [&](int64_t begin, int64_t end) {
        DSPARK_CPU_DISPATCH(pack_linear, args, begin, end);
    });
    return packed;
}

void check_linear(const Tensor& x, const Tensor& packed, const std::optional<Tensor>& bias,
                  int64_t out_features) {
    constexpr const char* kOp = "linear";
    Arg(kOp, "packed_weight", packed)
        .on_cpu()
        .dtype({ScalarType::Float, ScalarType::BFloat16})
        .shape({{"panels"}, {"in_features"}, {"panel_outputs", kLinearPanelOutputs}});
    Arg(kOp, "x", x).on_cpu().dtype({ScalarType::Float, ScalarType::BFloat16});
    if (x.dim() < 1 || x.size(x.dim() - 1) != packed.size(1)) {
        host::fail(kOp, "x",
                   "expected shape [..., in_features=" + std::to_string(packed.size(1)) +
                       "], got " + host::shape_text(x));
    }
    const int64_t most = packed.size(0) * kLinearPanelOutputs;
    const int64_t least = most == 0 ? 0 : most - kLinearPanelOutputs + 1;
    if (out_features < least || out_features > most) {
        host::fail(kOp, "out_features",
                   "expected " + std::to_string(least) + " to " + std::to_string(most) +
                       ", as packed_weight " + host::shape_text(packed) + " holds, got " +
                       std::to_string(out_features));
    }
    if (bias) {
        Arg(kOp, "bias", *bias)
            .on_cpu()
            .dtype({ScalarType::Float})
            .shape({{"out_features", out_features}});
    }
}

// Rows of bf16 as LinearArgs::x_pairs.
std::unique_ptr<uint32_t[]> pair_rows(const uint16_t* x, int64_t num_rows, int64_t width) {
    const int64_t num_pairs = (width + 1) / 2;
    std::unique_ptr<uint32_t[]> pairs(new uint32_t[num_rows * num_pairs]);
    uint32_t* pair = pairs.get();
    for (int64_t row = 0; row < num_rows; ++row, x += width) {
        for (int64_t k = 0; k + 1 < width; k += 2) {
            *pair++ = static_cast<uint32_t>(x[k]) << 16 | x[k + 1];
        }
        if (width % 2 != 0) *pair++ = x[width - 1];
    }
    return pairs;
}

Tensor linear(const Tensor& x, const Tensor& packed_weight, const std::optional<Tensor>& bias,
              int64_t out_features) {
    check_linear(x, packed_weight, bias, out_features);
    const Tensor packed = host::dense(packed_weight);
    std::optional<Tensor> flat_bias;
    if (bias) flat_bias = host::dense(*bias);
    std::vector<int64_t> shape(x.sizes().begin(), x.sizes().end());
    shape.back() = out_features;
    Tensor out = host::new_tensor(x, shape, ScalarType::Float);

    LinearArgs args{};
    args.num_rows = 1;
    for (int64_t i = 0; i + 1 < x.dim(); ++i) args.num_rows *= x.size(i);
    const bool all_bf16 =
        x.scalar_type() == ScalarType::BFloat16 && packed.scalar_type() == ScalarType::BFloat16;
    const bool use_dots = all_bf16 && cpu::has_bf16_dots();
    const Tensor rows = host::dense(use_dots || x.scalar_type() == ScalarType::Float
                                        ? x
                                        : torch::stable::to(x, ScalarType::Float));
    std::unique_ptr<uint32_t[]> pairs;
    if (use_dots) {
        pairs = pair_rows(static_cast<const uint16_t*>(rows.const_data_ptr()), args.num_rows,
                          packed.size(1));
        args.x_pairs = pairs.get();
    } else {
        args.x = rows.const_data_ptr<float>();
    }
    args.flush_subnormals = all_bf16;
    args.packed_weight = packed.const_data_ptr();
    args.bias = flat_bias ? flat_bias->const_data_ptr<float>() : nullptr;
    args.out = out.mutable_data_ptr<float>();
    args.in_features = packed.size(1);
    args.out_features = out_features;
    args.is_bf16 = packed.scalar_type() == ScalarType::BFloat16;
    const int64_t tasks = packed.size(0) * linear_row_chunks(args.num_rows);
    const int64_t chunk_rows = args.num_rows < kLinearRowChunk ? args.num_rows : kLinearRowChunk;
    const int64_t task_cost = chunk_rows * args.in_features * kLinearPanelOutputs + 1;
    torch::stable::parallel_for(
        0, tasks, kMinMultiplyAddsPerThread / task_cost + 1,
        [&](int64_t begin, int64_t end) { DSPARK_CPU_DISPATCH(linear, args, begin, end); });
    return out;
}

}  // namespace
}  // namespace dspark

STABLE_TORCH_LIBRARY_IMPL(dspark_ext, CPU, m) {
    m.impl("pack_linear", TORCH_BOX(&dspark::pack_linear));
    m.impl("linear", TORCH_BOX(&dspark::linear));
}
