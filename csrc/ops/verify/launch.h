// The launch sequences of the verify family, declared once per device backend: each returns 0 or
// the vendor's error code of the first launch that failed, or kTooManyBlocks (launch_code.h).
// The scratch of the arguments is in place (workspace.h).
#pragma once

#include "device/launch_code.h"
#include "ops/verify/args.h"

namespace dspark {

struct VerifyLaunch {
    int (*schedule)(const ScheduleArgs& args, LaunchTarget& target);
    int (*pack)(const PackArgs& args, LaunchTarget& target);
    int (*unpack)(const UnpackArgs& args, LaunchTarget& target);
    int (*commit)(const CommitArgs& args, LaunchTarget& target);
    int (*accumulate_stats)(const AccumulateStatsArgs& args, LaunchTarget& target);
};

}  // namespace dspark

namespace dspark::DSPARK_ISA {
const VerifyLaunch& verify_launch();
}
