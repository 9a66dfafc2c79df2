// Host-side queries only; tensors go through torch.ops.
#include <pybind11/pybind11.h>

#include "backends/cpu/isa.h"

namespace py = pybind11;

PYBIND11_MODULE(_C, m) {
    m.def("cpu_isa", [] { return dspark::cpu::isa_name(dspark::cpu::active_isa()); },
          "Instruction set the CPU backend runs on: 'avx512', 'avx2' or 'baseline'.");
}
