// What every op.cpp does with tensors beside checking them.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <vector>

#include "device/float_type.h"
#include "host/check.h"

namespace dspark::host {

using OptionalTensor = std::optional<Tensor>;

// The tensor itself if it has no gaps, else a copy without.
inline Tensor dense(const Tensor& tensor) {
    return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
}

inline OptionalTensor dense(const OptionalTensor& tensor) {
    return tensor ? OptionalTensor(dense(*tensor)) : std::nullopt;
}

// The matrix itself if the elements of each row are next to each other, else a dense copy.
inline Tensor with_dense_rows(const Tensor& tensor) {
    const bool is_dense = tensor.dim() == 2 && (tensor.size(1) <= 1 || tensor.stride(1) == 1);
    return is_dense ? tensor : dense(tensor);
}

// Uninitialised, on the device of `like`.
inline Tensor new_tensor(const Tensor& like, const std::vector<int64_t>& shape, ScalarType dtype) {
    return torch::stable::new_empty(like, shape, dtype);
}

// Of a tensor whose dtype was checked to be one of the three.
inline FloatType float_type(const Tensor& tensor) {
    switch (tensor.scalar_type()) {
        case ScalarType::Float:
            return FloatType::kFloat32;
        case ScalarType::BFloat16:
            return FloatType::kBFloat16;
        case ScalarType::Half:
            return FloatType::kFloat16;
        default:
            throw std::runtime_error(std::string("dspark_ext: no floating-point type for ") +
                                     dtype_name(tensor.scalar_type()));
    }
}

}  // namespace dspark::host
