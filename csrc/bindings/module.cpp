// Host-side queries only; tensors go through torch.ops.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backends/cpu/isa.h"
#include "host/gpu_backend.h"
#include "ops/sampling/cpu.h"

namespace py = pybind11;

namespace {

// Single evaluations of docs/numerics.md, so that tests can compare them with known answers.
void define_numerics(py::module_& m) {
    m.def("exp2_nonpositive", [](float z) {
        float out;
        DSPARK_CPU_DISPATCH(evaluate_exp2_nonpositive, &z, &out, 1);
        return out;
    });
    m.def(
        "exp2_nonpositive",
        [](const std::vector<float>& z) {
            std::vector<float> out(z.size());
            DSPARK_CPU_DISPATCH(evaluate_exp2_nonpositive, z.data(), out.data(),
                                static_cast<int64_t>(z.size()));
            return out;
        },
        "2^z in float32 for z <= 0: a number, or a list (evaluated in vectors).");
    m.def(
        "exp2_double", [](double z) { return DSPARK_CPU_DISPATCH(evaluate_exp2_double, z); },
        "2^z in double for z <= 0.");
    m.def(
        "log2_double", [](double y) { return DSPARK_CPU_DISPATCH(evaluate_log2_double, y); },
        "log2(y) in double for normal y > 0.");
    m.def(
        "uniform",
        [](int64_t seed, int64_t position, uint32_t stream, int32_t slot) {
            return DSPARK_CPU_DISPATCH(evaluate_uniform, seed, position, stream, slot);
        },
        py::arg("seed"), py::arg("position"), py::arg("stream"), py::arg("slot"),
        "The uniform of (seed, position, stream, slot); streams: 0 draft, 1 accept, 2 resample, "
        "3 synthetic.");
    m.def(
        "philox4x32",
        [](const std::array<uint32_t, 4>& counter, const std::array<uint32_t, 2>& key) {
            std::array<uint32_t, 4> out;
            DSPARK_CPU_DISPATCH(evaluate_philox4x32, counter.data(), key.data(), out.data());
            return out;
        },
        py::arg("counter"), py::arg("key"), "One Philox4x32-10 block.");
}

// What was compiled in, as strings fixed by CMakeLists.txt. Those of a GPU backend have four
// fields, separated by |: state, architectures, compiler, numerics flags.
py::dict build_facts() {
    py::dict facts;
    facts["version"] = DSPARK_VERSION;
    facts["compiler"] = DSPARK_COMPILER;
    facts["numerics_flags"] = DSPARK_BUILT_FLAGS;
    facts["cpu_isas"] = DSPARK_BUILT_ISAS;
    facts["cuda"] = DSPARK_CUDA_FACTS;
    facts["hip"] = DSPARK_HIP_FACTS;
    return facts;
}

}  // namespace

PYBIND11_MODULE(_C, m) {
    m.def("build_facts", &build_facts);
    m.def(
        "cpu_isa", [] { return dspark::cpu::isa_name(dspark::cpu::active_isa()); },
        "Instruction set the CPU backend runs on: 'avx512', 'avx2' or 'baseline'.");
    m.def(
        "cpu_pair_unit", [] { return dspark::cpu::pair_unit_name(dspark::cpu::pair_unit()); },
        "What multiplies pairs of bf16 numbers: 'amx', 'avx512_bf16', 'fma' or 'amx_emulated'.");
    m.def("use_hip", &dspark::gpu::use_hip, py::arg("path"),
          "Serve GPU tensors by the HIP library at `path`; once, where torch is a ROCm build.");
    m.def(
        "gpu_backend",
        []() -> std::optional<std::string> {
            const dspark::GpuBackend* backend = dspark::gpu::active_backend();
            if (backend == nullptr) return std::nullopt;
            return backend->name;
        },
        "Which backend serves GPU tensors: 'cuda', 'hip' or None.");
    m.def("missing_gpu_backend", &dspark::gpu::missing_backend,
          "Why no backend serves GPU tensors, and what to do.");
    define_numerics(m);
}
