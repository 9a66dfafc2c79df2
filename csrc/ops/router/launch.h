// The launch sequence of the router family, declared once per device backend: it returns 0 or the
// vendor's error code, or kTooManyBlocks (launch_code.h).
#pragma once

#include "device/launch_code.h"
#include "ops/router/args.h"

namespace dspark {

struct RouterLaunch {
    int (*route)(const RouteArgs& args, LaunchTarget& target);
};

}  // namespace dspark

namespace dspark::DSPARK_ISA {
const RouterLaunch& router_launch();
}
