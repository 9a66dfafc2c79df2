// What every op.cpp does with tensors beside checking them.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <vector>

#include "device/float_type.h"
#include "host/check.h"
#include "host/text.h"

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

using Shape = torch::headeronly::IntHeaderOnlyArrayRef;

// Uninitialised and dense, on the device of `like`. By the C interface, which makes a tensor in a
// third of the time that torch::stable::new_empty takes: that one goes through the dispatcher by
// the operator's name.
inline Tensor new_tensor(const Tensor& like, Shape shape, ScalarType dtype) {
    constexpr size_t kMostDims = 8;
    if (shape.size() > kMostDims) return torch::stable::new_empty(like, shape, dtype);
    int64_t strides[kMostDims];
    int64_t stride = 1;
    for (size_t i = shape.size(); i-- > 0;) {
        strides[i] = stride;
        stride *= shape[i] > 1 ? shape[i] : 1;
    }
    namespace detail = torch::stable::detail;
    int32_t type, index;
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &type));
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(like.get(), &index));
    AtenTensorHandle tensor;
    STABLE_TORCH_ERROR_CODE_CHECK(
        aoti_torch_empty_strided(static_cast<int64_t>(shape.size()), shape.data(), strides,
                                 detail::to<int32_t>(detail::from(dtype)), type, index, &tensor));
    return Tensor(tensor);
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
