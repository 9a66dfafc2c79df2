// Checks, allocation and dispatch of the sampling family.
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY_IMPL(dspark_ext, CPU, m) { (void)m; }
