// The launch sequences of the verify family, declared once per device backend: each returns 0 or
// the vendor's error code of the first launch that failed, or kTooManyBlocks (launch_code.h).
// The scratch of the arguments is in place (workspace.h); `stream` is the vendor's stream.
#pragma once

#include "device/launch_code.h"
#include "ops/verify/args.h"

namespace dspark {

struct VerifyLaunch {
    int (*schedule)(const ScheduleArgs& args, void* stream);
    int (*pack)(const PackArgs& args, void* stream);
    int (*unpack)(const UnpackArgs& args, void* stream);
    int (*commit)(const CommitArgs& args, void* stream);
    int (*accumulate_stats)(const AccumulateStatsArgs& args, void* stream);
};

}  // namespace dspark

namespace dspark::DSPARK_ISA {
const VerifyLaunch& verify_launch();
}
