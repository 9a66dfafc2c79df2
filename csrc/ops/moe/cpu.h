// CPU kernels of the mixture-of-experts dispatch. Ranges may run in different threads; the result
// does not depend on how they are cut.
#pragma once

#include "backends/cpu/isa.h"
#include "ops/moe/args.h"

// count_slots, then lay_out_experts, then place_slots make a plan; ranges are of segments.
//
// permute_tokens (range of tokens) and clear_padding (range of rows) together fill the result.
//
// first_bad_row: the first slot whose row is not below num_rows, or -1.
// clang-format off
DSPARK_CPU_DECLARE(
    void count_slots(const ::dspark::PlanArgs& args, int64_t begin, int64_t end);
    void lay_out_experts(const ::dspark::PlanArgs& args);
    void place_slots(const ::dspark::PlanArgs& args, int64_t begin, int64_t end);
    void permute_tokens(const ::dspark::PermuteArgs& args, int64_t begin, int64_t end);
    void clear_padding(const ::dspark::PermuteArgs& args, int64_t begin, int64_t end);
    void combine(const ::dspark::CombineArgs& args, int64_t begin, int64_t end);
    int64_t first_bad_row(const ::dspark::PlanRows& rows, int64_t num_rows))
// clang-format on
