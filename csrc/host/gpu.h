// How an op.cpp reaches the GPU: which launch functions, on which device, on which stream.
//
//     const gpu::Device device("sample", logits);
//     LaunchTarget target = {device.stream()};
//     const int code = device.backend().sampling->sample(args, target);
//     device.check(code, target.failed);
#pragma once

#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>

#include "host/gpu_backend.h"

namespace dspark::gpu {

// While it lives, the device of `tensor` is the current one.
class Device {
  public:
    // Fails, naming the operator, if no backend serves the device.
    Device(const char* op, const torch::stable::Tensor& tensor);

    const GpuBackend& backend() const { return backend_; }
    // The stream that torch currently uses on this device: a cudaStream_t or hipStream_t.
    void* stream() const { return stream_; }
    // Fails, naming the operator, the kernel and the driver's words, unless the code is 0.
    void check(int code, const char* kernel) const;

  private:
    const char* op_;
    const GpuBackend& backend_;
    int32_t index_;
    torch::stable::accelerator::DeviceGuard guard_;
    void* stream_;
};

}  // namespace dspark::gpu
