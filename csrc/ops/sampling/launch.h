// The launch sequences of the sampling family, declared once per device backend: each returns 0 or
// the vendor's error code of the first launch that failed. The scratch of the arguments is in place
// (workspace.h); `stream` is the vendor's stream.
#pragma once

#include "ops/sampling/args.h"

namespace dspark {

struct SamplingLaunch {
    int (*target_probs)(const TargetProbsArgs& args, void* stream);
    int (*sample)(const SampleArgs& args, void* stream);
    int (*rejection_sample)(const VerifyArgs& args, void* stream);
    int (*block_acceptance)(const VerifyArgs& args, void* stream);
};

}  // namespace dspark

namespace dspark::cuda {
const SamplingLaunch& sampling_launch();
}
namespace dspark::hip {
const SamplingLaunch& sampling_launch();
}
namespace dspark::simt {
// The emulator has several warp sizes: 4, 32 or 64.
const SamplingLaunch& sampling_launch(int warp_size);
}  // namespace dspark::simt
