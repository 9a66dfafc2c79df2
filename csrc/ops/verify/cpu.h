// CPU kernels of the verify family. They check the data they index with before they write.
#pragma once

#include "backends/cpu/isa.h"
#include "ops/verify/args.h"

// clang-format off
DSPARK_CPU_DECLARE(
    void schedule(const ::dspark::ScheduleArgs& args);
    ::dspark::VerifyCheck pack(const ::dspark::PackArgs& args);
    ::dspark::VerifyCheck commit(const ::dspark::CommitArgs& args);
    ::dspark::VerifyCheck accumulate_stats(const ::dspark::AccumulateStatsArgs& args))
// clang-format on
