// The launch sequences of the sampling family, declared once per device backend: each returns 0 or
// the vendor's error code of the first launch that failed, or kTooManyBlocks (launch_code.h).
// The scratch of the arguments is in place (workspace.h); `stream` is the vendor's stream.
#pragma once

#include "device/launch_code.h"
#include "ops/sampling/args.h"

namespace dspark {

struct SamplingLaunch {
    int (*target_probs)(const TargetProbsArgs& args, void* stream);
    int (*sample)(const SampleArgs& args, void* stream);
    int (*rejection_sample)(const VerifyArgs& args, void* stream);
    int (*block_acceptance)(const VerifyArgs& args, void* stream);
};

}  // namespace dspark

namespace dspark::DSPARK_ISA {
const SamplingLaunch& sampling_launch();
}
