#include "host/gpu.h"

#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <cstdint>
#include <stdexcept>

#include "device/launch_code.h"

// Declared by torch's headers only for builds against a GPU torch. A CPU torch lacks the functions,
// so they are weak: null there.
extern "C" {
__attribute__((weak, visibility("default"))) AOTITorchError
aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);
__attribute__((weak, visibility("default"))) AOTITorchError
torch_stream_native_handle(StreamHandle stream, void** native);
}

namespace dspark::gpu {
namespace {

#ifdef DSPARK_BUILD_CUDA
const GpuBackend* backend_in_use = cuda::gpu_backend();
#else
const GpuBackend* backend_in_use = nullptr;
#endif
std::string state = "cuda backend " DSPARK_CUDA_STATE;
const char* facts_in_use = DSPARK_CUDA_FACTS;

// What both vendors' runtimes return where the binary holds no code for the device: invalid device
// function, no kernel image.
constexpr int kNoCodeForDevice[] = {98, 209};

[[noreturn]] void fail(const char* op, const std::string& message) {
    throw std::runtime_error(std::string("dspark_ext.") + op + ": " + message);
}

const GpuBackend& backend_for(const char* op) {
    if (backend_in_use == nullptr) fail(op, missing_backend());
    return *backend_in_use;
}

// "90a-real 80-virtual": the second field of the facts.
std::string built_architectures() {
    const std::string facts = facts_in_use;
    const size_t begin = facts.find('|') + 1;
    return facts.substr(begin, facts.find('|', begin) - begin);
}

void* current_stream(const char* op, int32_t device_index) {
    void* stream = nullptr;
    if (aoti_torch_get_current_cuda_stream != nullptr) {
        if (aoti_torch_get_current_cuda_stream(device_index, &stream) == 0) return stream;
    } else if (torch_stream_native_handle != nullptr) {
        StreamHandle handle = nullptr;
        if (aoti_torch_get_current_stream(device_index, &handle) == 0) {
            const AOTITorchError code = torch_stream_native_handle(handle, &stream);
            aoti_torch_delete_stream(handle);
            if (code == 0) return stream;
        }
    }
    fail(op, "torch does not tell its current stream on device " + std::to_string(device_index));
}

}  // namespace

const GpuBackend* active_backend() {
    return backend_in_use;
}

std::string missing_backend() {
    return state + "; move the tensors to the CPU (docs/install.md)";
}

void use_hip(const std::string& path) {
    backend_in_use = nullptr;
#ifdef DSPARK_BUILD_HIP
    dlerror();
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    void* table = library == nullptr ? nullptr : dlsym(library, kHipTableSymbol);
    if (table == nullptr) {
        state = std::string("hip backend built, but it does not load: ") + dlerror();
        return;
    }
    backend_in_use = reinterpret_cast<const GpuBackend* (*)()>(table)();
    facts_in_use = DSPARK_HIP_FACTS;
#else
    (void)path;
    state = "hip backend " DSPARK_HIP_STATE;
#endif
}

Device::Device(const char* op, const torch::stable::Tensor& tensor)
    : op_(op),
      backend_(backend_for(op)),
      index_(tensor.get_device_index()),
      guard_(index_),
      stream_(current_stream(op, index_)) {}

void Device::check(int code, const char* kernel) const {
    if (code == 0) return;
    const std::string where = kernel != nullptr ? std::string(" at the launch of ") + kernel : "";
    if (code == kTooManyBlocks) {
        fail(op_, "expected work for some 16 million blocks" + where + ", got more");
    }
    std::string message = std::string(backend_.name) + " error " + std::to_string(code) + where +
                          ": " + backend_.error_string(code);
    for (const int missing : kNoCodeForDevice) {
        if (code != missing) continue;
        message += "; GPU " + std::to_string(index_) +
                   " needs code of its architecture, built: " + built_architectures() +
                   " (docs/install.md)";
    }
    fail(op_, message);
}

}  // namespace dspark::gpu
