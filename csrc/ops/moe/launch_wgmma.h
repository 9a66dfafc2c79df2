// The launch sequence of grouped_gemm on warpgroups: what launch_experts.cu asks first.
#pragma once

#include "device/launch_code.h"
#include "ops/moe/args_experts.h"

namespace dspark::DSPARK_ISA {

// Whether warpgroups take the products; depends on the device and on what x and the weights are,
// never on tokens and plan.
bool takes_warpgroups(const GroupedGemmArgs& args);
// 0, or an error code as the sequences of launch_experts.h return it.
int grouped_gemm_on_warpgroups(const GroupedGemmArgs& args, LaunchTarget& target);

}  // namespace dspark::DSPARK_ISA
