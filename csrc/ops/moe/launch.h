// The launch sequences of the mixture-of-experts dispatch, declared once per device backend: each
// returns 0 or the vendor's error code of the first launch that failed, or kTooManyBlocks
// (launch_code.h). The scratch of the arguments is in place (workspace.h).
#pragma once

#include "device/launch_code.h"
#include "ops/moe/args.h"

namespace dspark {

struct MoeLaunch {
    int (*plan)(const PlanArgs& args, LaunchTarget& target);
    int (*permute)(const PermuteArgs& args, LaunchTarget& target);
    int (*combine)(const CombineArgs& args, LaunchTarget& target);
};

}  // namespace dspark

namespace dspark::DSPARK_ISA {
const MoeLaunch& moe_launch();
}
