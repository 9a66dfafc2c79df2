// Argument checks shared by every op.cpp. A failed check names the op, the argument, what was
// expected and what came:
//     dspark_ext.rejection_sample: draft_token_ids: expected shape [B=3, K], got [4, 5]
#pragma once

#include <torch/csrc/stable/device.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>

namespace dspark::host {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

[[noreturn]] inline void fail(const char* op, const char* argument, const std::string& message) {
    throw std::runtime_error(std::string("dspark_ext.") + op + ": " + argument + ": " + message);
}

inline const char* dtype_name(ScalarType dtype) {
    switch (dtype) {
        case ScalarType::Float:
            return "float32";
        case ScalarType::Double:
            return "float64";
        case ScalarType::Half:
            return "float16";
        case ScalarType::BFloat16:
            return "bfloat16";
        case ScalarType::Int:
            return "int32";
        case ScalarType::Long:
            return "int64";
        case ScalarType::Short:
            return "int16";
        case ScalarType::Char:
            return "int8";
        case ScalarType::Byte:
            return "uint8";
        case ScalarType::Bool:
            return "bool";
        default:
            return torch::headeronly::toString(dtype);
    }
}

inline std::string shape_text(const Tensor& tensor) {
    std::string text = "[";
    for (int64_t i = 0; i < tensor.dim(); ++i) {
        text += (i == 0 ? "" : ", ") + std::to_string(tensor.size(i));
    }
    return text + "]";
}

inline std::string strides_text(const Tensor& tensor) {
    std::string text = "[";
    for (int64_t i = 0; i < tensor.dim(); ++i) {
        text += (i == 0 ? "" : ", ") + std::to_string(tensor.stride(i));
    }
    return text + "]";
}

// "cpu", "cuda:1"; other device types by number.
inline std::string device_text(const Tensor& tensor) {
    if (tensor.is_cpu()) return "cpu";
    const auto type = static_cast<int>(tensor.device().type());
    const std::string name = tensor.is_cuda() ? "cuda" : "type " + std::to_string(type);
    return name + ":" + std::to_string(tensor.get_device_index());
}

// One dimension of an expected shape: its letter and its size, or kAnySize.
constexpr int64_t kAnySize = -1;
struct Dim {
    const char* name;
    int64_t size = kAnySize;
};
using Dims = std::initializer_list<Dim>;

inline std::string shape_text(Dims dims) {
    std::string text = "[";
    for (const Dim& dim : dims) {
        text += (text.size() == 1 ? "" : ", ") + std::string(dim.name);
        if (dim.size != kAnySize) text += "=" + std::to_string(dim.size);
    }
    return text + "]";
}

// Checks of one argument, to be chained; texts are made only once a check has failed:
//     Arg("sample", "seeds", seeds).on_cpu().dtype({ScalarType::Long}).shape({{"N",
//     rows}}).dense();
class Arg {
  public:
    // torch passes None for a tensor as an undefined one.
    Arg(const char* op, const char* name, const Tensor& tensor)
        : op_(op), name_(name), tensor_(tensor) {
        if (!tensor.defined()) fail(op, name, "expected a tensor, got None");
    }

    const Arg& on_cpu() const {
        if (!tensor_.is_cpu()) fail(op_, name_, "expected a tensor on the CPU");
        return *this;
    }

    // On the device of another argument.
    const Arg& on_device_of(const Tensor& other) const {
        if (tensor_.device() != other.device()) {
            fail(op_, name_,
                 "expected device " + device_text(other) + ", got " + device_text(tensor_));
        }
        return *this;
    }

    const Arg& dtype(std::initializer_list<ScalarType> allowed) const {
        const ScalarType got = tensor_.scalar_type();
        for (ScalarType candidate : allowed) {
            if (candidate == got) return *this;
        }
        std::string expected;
        for (ScalarType candidate : allowed) {
            expected += std::string(expected.empty() ? "" : " or ") + dtype_name(candidate);
        }
        fail(op_, name_, "expected dtype " + expected + ", got " + dtype_name(got));
    }

    const Arg& shape(Dims expected) const {
        if (!has_shape(expected)) {
            fail(op_, name_,
                 "expected shape " + shape_text(expected) + ", got " + shape_text(tensor_));
        }
        return *this;
    }

    // Row-major without gaps.
    const Arg& dense() const {
        if (!tensor_.is_contiguous()) {
            fail(op_, name_,
                 "expected a contiguous tensor, got strides " + strides_text(tensor_) +
                     "; call .contiguous() first");
        }
        return *this;
    }

    // Elements of the last dimension next to each other; the other strides are free.
    const Arg& dense_rows() const {
        if (tensor_.numel() == 0) return *this;
        const int64_t last = tensor_.dim() - 1;
        if (tensor_.size(last) > 1 && tensor_.stride(last) != 1) {
            fail(op_, name_,
                 "expected the last dimension to be contiguous, got stride " +
                     std::to_string(tensor_.stride(last)) + "; call .contiguous() first");
        }
        return *this;
    }

  private:
    bool has_shape(Dims expected) const {
        const auto sizes = tensor_.sizes();
        if (sizes.size() != expected.size()) return false;
        const int64_t* size = sizes.data();
        for (const Dim& dim : expected) {
            if (dim.size != kAnySize && dim.size != *size) return false;
            ++size;
        }
        return true;
    }

    const char* op_;
    const char* name_;
    const Tensor& tensor_;
};

}  // namespace dspark::host
