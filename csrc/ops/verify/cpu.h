// CPU kernels of the verify family. They check the data they index with before they write.
#pragma once

#include "backends/cpu/isa.h"
#include "ops/verify/args.h"

// clang-format off
DSPARK_CPU_DECLARE(
    void schedule(const ::dspark::ScheduleArgs& args);
    ::dspark::VerifyCheck pack(const ::dspark::PackArgs& args);
    void unpack(const ::dspark::UnpackArgs& args, int64_t begin, int64_t end);
    ::dspark::VerifyCheck commit(const ::dspark::CommitArgs& args);
    ::dspark::VerifyCheck accumulate_stats(const ::dspark::AccumulateStatsArgs& args))
// clang-format on
