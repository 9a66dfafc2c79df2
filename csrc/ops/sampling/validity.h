// Whether the parameters of a request or row are in range. The operators refuse tensors on the CPU
// that are not. On a device the host does not read them: there every kernel asks here first, and a
// request that is not valid gets status kInvalidRequest (docs/numerics.md section 8).
#pragma once

#include "ops/sampling/args.h"

namespace dspark::DSPARK_ISA::sampling {

DSPARK_DEVICE bool is_valid_temperature(float temperature) {
    return temperature >= 0.0f && temperature < kInfinity;
}

DSPARK_DEVICE bool is_valid_filter(float value) {
    return value == value;  // any number
}

// What shapes the law of request (or row) i.
DSPARK_DEVICE bool is_valid_law(const LawArgs& law, int64_t i) {
    return is_valid_temperature(law.temperature[i]) &&
           (law.top_p == nullptr || is_valid_filter(law.top_p[i])) &&
           (law.min_p == nullptr || is_valid_filter(law.min_p[i]));
}

// A slot of the batch that no request takes in this step: it owns no rows.
DSPARK_DEVICE bool is_absent(const VerifyArgs& args, int64_t b) {
    return args.query_start_loc[b] == args.query_start_loc[b + 1];
}

// Whether a request may own the rows [begin, end): 1 to K + 1 rows among the N of target_logits.
DSPARK_DEVICE bool are_valid_rows(const VerifyArgs& args, int64_t begin, int64_t end) {
    return begin >= 0 && begin < end && end <= args.target_rows &&
           end - begin <= args.num_drafts + 1;
}

// Of an invalid request nothing may be read but its parameters.
DSPARK_DEVICE bool is_valid_request(const VerifyArgs& args, int64_t b) {
    return are_valid_rows(args, args.query_start_loc[b], args.query_start_loc[b + 1]) &&
           is_valid_law(args.law, b) && is_valid_temperature(args.draft_temperature[b]);
}

// Whether draft row (b, i) comes with statistics, of the temperature that it is to be judged by.
DSPARK_DEVICE bool has_statistics(const VerifyArgs& args, int64_t b, int64_t i) {
    const GivenStatistics& given = args.draft_statistics;
    return given.temperature != nullptr &&
           given.temperature[b * args.num_drafts + i] == args.draft_temperature[b];
}

}  // namespace dspark::DSPARK_ISA::sampling
