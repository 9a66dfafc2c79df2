// The launch sequences of the expert kernels, declared once per device backend: each returns 0 or
// the vendor's error code, or kTooManyBlocks (launch_code.h).
#pragma once

#include "device/launch_code.h"
#include "ops/moe/args_experts.h"

namespace dspark {

struct ExpertsLaunch {
    int (*grouped_gemm)(const GroupedGemmArgs& args, LaunchTarget& target);
    int (*swiglu)(const SwigluArgs& args, LaunchTarget& target);
};

}  // namespace dspark

namespace dspark::DSPARK_ISA {
const ExpertsLaunch& experts_launch();
}
