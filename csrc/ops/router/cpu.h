// CPU kernels of the router family.
#pragma once

#include "backends/cpu/isa.h"
#include "ops/router/args.h"

// clang-format off
DSPARK_CPU_DECLARE(
    void route(const ::dspark::RouteArgs& args, int64_t begin, int64_t end))
// clang-format on
