// The operators of the expert layer: checks and allocation, then the kernels of a backend.
//
// A Backend is a struct of static members:
//     check_device(op, name, tensor)   fails unless the backend serves the tensor's device
//     check_layout(layout)             fails unless it reads weights so laid out
//     run(args, like)                  for each argument struct; `like` is on the device
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <string>
#include <vector>

#include "ops/moe/checks_experts.h"

namespace dspark::experts {

// Of what runs the device kernels.
inline void check_gpu_layout(WeightLayout layout) {
    if (layout != WeightLayout::kPairs) return;
    fail(kGemm, "layout", "expected rows or panels on a GPU; pairs are for CPUs");
}

template <class Backend>
struct Operators {
    static Tensor grouped_gemm(const Tensor& x, const Tensor& weight, const OptionalTensor& scales,
                               host::Text format, std::vector<int64_t> block, host::Text layout,
                               std::vector<int64_t> size, const Tensor& sorted,
                               const Tensor& inverse, const Tensor& tile_expert,
                               const Tensor& tile_row, const Tensor& tile_size, bool gather,
                               ScalarType dtype, bool exact, host::Text activation,
                               std::optional<double> limit) {
        Backend::check_device(kGemm, "x", x);
        Arg(kGemm, "weight", weight).on_device_of(x);
        const ExpertWeights weights = check_weight(weight, scales, {format, block, layout, size});
        Backend::check_layout(weights.layout);
        const Tensor rows = moe::with_dense_rows(x);
        GroupedGemmArgs args =
            check_grouped_gemm(rows, weights, {sorted, inverse, tile_expert, tile_row, tile_size},
                               gather, dtype, {exact, activation, limit});
        Tensor out = host::new_tensor(
            x, {args.rows.capacity, out_columns(args.activation, weights.rows)}, dtype);
        args.out = out.mutable_data_ptr();
        if (out.numel() > 0) Backend::run(args, x);
        return out;
    }

    static Tensor swiglu(const Tensor& gate_up, std::optional<double> limit, bool interleaved) {
        Backend::check_device(kSwiglu, "gate_up", gate_up);
        const Tensor rows = moe::with_dense_rows(gate_up);
        SwigluArgs args = check_swiglu(rows, limit, interleaved);
        Tensor out = host::new_tensor(gate_up, {args.num_rows, args.width}, gate_up.scalar_type());
        args.out = out.mutable_data_ptr();
        if (out.numel() > 0) Backend::run(args, gate_up);
        return out;
    }

    // For a dispatch key whose tensors the backend serves.
    template <class Library>
    static void implement(Library& m) {
        m.impl("grouped_gemm", TORCH_BOX(&grouped_gemm));
        m.impl("swiglu", TORCH_BOX(&swiglu));
    }
};

}  // namespace dspark::experts
