// Checks, allocation and dispatch of the linear family.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY_IMPL(dspark_ext, CPU, m) { (void)m; }
