// What the GPU half of a build offers to the operators: for every family, its launch functions.
//
// The CUDA half is linked into the extension; the HIP half is a library of its own, from which the
// table is fetched by name. Both are made from the same sources.
#pragma once

#include <string>

namespace dspark {

struct DraftLaunch;     // ops/draft/launch.h
struct ExpertsLaunch;   // ops/moe/launch_experts.h
struct MoeLaunch;       // ops/moe/launch.h
struct RouterLaunch;    // ops/router/launch.h
struct SamplingLaunch;  // ops/sampling/launch.h
struct VerifyLaunch;    // ops/verify/launch.h

struct GpuBackend {
    const char* name;                       // "cuda" or "hip"
    const char* (*error_string)(int code);  // of a code that a launch function returned
    const DraftLaunch* draft;
    const ExpertsLaunch* experts;
    const MoeLaunch* moe;
    const RouterLaunch* router;
    const SamplingLaunch* sampling;
    const VerifyLaunch* verify;
};

namespace cuda {
const GpuBackend* gpu_backend();
}

// The symbol that the HIP library exports, a function without arguments that returns its table.
constexpr const char* kHipTableSymbol = "dspark_hip_backend";

namespace gpu {

// The table in use; null if this build cannot serve the GPUs of this torch.
const GpuBackend* active_backend();
// Why there is none, and what to do: "cuda backend not built: ...; move the tensors ...".
std::string missing_backend();
// Serve GPU tensors by the HIP library at `path` from now on, because torch is a ROCm build. If the
// library is not built or does not load, no backend is active and missing_backend() has the reason.
void use_hip(const std::string& path);

}  // namespace gpu
}  // namespace dspark
