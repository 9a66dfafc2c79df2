// The launch sequences of the sampling family, declared once per device backend: each returns 0 or
// the vendor's error code of the first launch that failed, or kTooManyBlocks (launch_code.h).
// The scratch of the arguments is in place (workspace.h).
#pragma once

#include "device/launch_code.h"
#include "ops/sampling/args.h"

namespace dspark {

struct SamplingLaunch {
    int (*target_probs)(const TargetProbsArgs& args, LaunchTarget& target);
    int (*sample)(const SampleArgs& args, LaunchTarget& target);
    int (*rejection_sample)(const VerifyArgs& args, LaunchTarget& target);
    int (*block_acceptance)(const VerifyArgs& args, LaunchTarget& target);
};

}  // namespace dspark

namespace dspark::DSPARK_ISA {
const SamplingLaunch& sampling_launch();
}
