// The operators of the mixture-of-experts dispatch: checks and allocation, then the kernels of a
// backend.
//
// A Backend is a struct of static members:
//     check_device(op, name, tensor)   fails unless the backend serves the tensor's device
//     run(args, like)                  for each argument struct; `like` is on the device
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <tuple>

#include "ops/moe/checks.h"

namespace dspark::moe {

template <class Backend>
struct Operators {
    using Plan = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

    template <class T>
    static Tensor output(const Tensor& like, host::Shape shape, ScalarType dtype, Global<T>& data) {
        Tensor tensor = new_tensor(like, shape, dtype);
        data = static_cast<T*>(tensor.mutable_data_ptr());
        return tensor;
    }

    static Plan plan(const Tensor& ids, int64_t num_experts, int64_t alignment,
                     const OptionalTensor& expert_map, int64_t tile_rows) {
        Backend::check_device("plan", "ids", ids);
        const Tensor dense_ids = dense(ids);
        const OptionalTensor dense_map =
            expert_map ? OptionalTensor(dense(*expert_map)) : std::nullopt;
        PlanArgs args = check_plan(dense_ids, num_experts, alignment, dense_map, tile_rows);
        constexpr ScalarType kLong = ScalarType::Long;
        Tensor counts = output(ids, {num_experts}, kLong, args.counts);
        Tensor offsets = output(ids, {num_experts + 1}, kLong, args.offsets);
        Tensor sorted = output(ids, {args.capacity}, kLong, args.sorted);
        Tensor inverse = output(ids, {ids.size(0), ids.size(1)}, kLong, args.inverse);
        Tensor total = output(ids, {}, kLong, args.total);
        Tensor expert = output(ids, {args.tile_capacity}, ScalarType::Int, args.tile_expert);
        Tensor row = output(ids, {args.tile_capacity}, kLong, args.tile_row);
        Tensor size = output(ids, {args.tile_capacity}, ScalarType::Int, args.tile_size);
        Tensor num_tiles = output(ids, {}, kLong, args.num_tiles);
        Backend::run(args, ids);
        return {counts, offsets, sorted, inverse, total, expert, row, size, num_tiles};
    }

    static Tensor permute(const Tensor& x, const Tensor& sorted, const Tensor& inverse) {
        Backend::check_device("permute", "x", x);
        const Tensor source = with_dense_rows(x);
        PermuteArgs args = check_permute(source, sorted, inverse);
        Tensor permuted =
            output(x, {args.rows.capacity, x.size(1)}, x.scalar_type(), args.permuted);
        CommonUnit unit;
        unit.add(source.const_data_ptr());
        unit.add(args.x_stride);
        unit.add(permuted.const_data_ptr());
        unit.add(args.row_bytes);
        args.unit = unit.bytes();
        if (args.row_bytes > 0) Backend::run(args, x);
        return permuted;
    }

    static Tensor combine(const Tensor& y, const Tensor& inverse, const Tensor& weights,
                          const OptionalTensor& shared, const OptionalTensor& residual) {
        Backend::check_device("combine", "y", y);
        const Tensor rows = with_dense_rows(y);
        const OptionalTensor addends[] = {
            shared ? OptionalTensor(with_dense_rows(*shared)) : std::nullopt,
            residual ? OptionalTensor(with_dense_rows(*residual)) : std::nullopt};
        CombineArgs args = check_combine(rows, inverse, weights, addends[0], addends[1]);
        Tensor out = output(y, {args.rows.num_tokens, y.size(1)}, y.scalar_type(), args.out);
        CommonUnit unit;
        unit.add(out.const_data_ptr());
        args.is_aligned = args.is_aligned && unit.bytes() == 16;
        if (args.row_size > 0) Backend::run(args, y);
        return out;
    }

    // For a dispatch key whose tensors the backend serves.
    template <class Library>
    static void implement(Library& m) {
        m.impl("plan", TORCH_BOX(&plan));
        m.impl("permute", TORCH_BOX(&permute));
        m.impl("combine", TORCH_BOX(&combine));
    }
};

// Puts the scratch of a device call into one allocation on the device of `like`. It may be freed as
// soon as the kernels are launched: torch reuses it in the order of the stream.
inline Tensor allocate_workspace(PlanArgs& args, const Tensor& like) {
    const int64_t bytes = place_workspace(args, nullptr);
    Tensor workspace = new_tensor(like, {bytes}, ScalarType::Byte);
    place_workspace(args, static_cast<char*>(workspace.mutable_data_ptr()));
    return workspace;
}

}  // namespace dspark::moe
