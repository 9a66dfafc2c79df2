#pragma once
#include "ops/sampling/kernel.h"
namespace dspark::DSPARK_ISA::sampling {
template <int W, class Rows>
DSPARK_KERNEL(kThreads)
void filter_laws_kernel(Rows) {
    check_warp_size<W>();
    trap();
}
}  // namespace dspark::DSPARK_ISA::sampling
