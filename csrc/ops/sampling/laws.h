// Laws of a call, computed when a decision first needs them.
#pragma once

#include "ops/sampling/filter.h"

namespace dspark::DSPARK_ISA::sampling {

DSPARK_DEVICE const void* row_at(const RowsView& view, int64_t request, int64_t row) {
    const int64_t element = view.dtype == FloatType::kFloat32 ? 4 : 2;
    const int64_t offset = request * view.request_stride + row * view.row_stride;
    return static_cast<const char*>(view.data) + offset * element;
}

DSPARK_DEVICE void fill_law(Law& law, const void* row, const RowsView& view, float temperature,
                            Workspace& workspace) {
    law.row = row;
    law.dtype = view.dtype;
    law.vocab = view.vocab;
    row_statistics(law, temperature, workspace.target_tile);
}

// 0 means greedy.
DSPARK_DEVICE float target_temperature(const VerifyArgs& args, int64_t b) {
    return args.method == Method::kGreedy ? 0.0f : args.law.temperature[b];
}

inline const Law& target_law(const VerifyArgs& args, int64_t b, int64_t row, Workspace& workspace) {
    Law& law = args.target_laws[row];
    if (!law.is_ready) {
        const void* data = row_at(args.target_logits, 0, row);
        fill_law(law, data, args.target_logits, target_temperature(args, b), workspace);
        filter_cut(law, args.law, b, workspace);
    }
    return law;
}

inline const Law& draft_law(const VerifyArgs& args, int64_t b, int64_t slot, Workspace& workspace) {
    Law& law = args.draft_laws[b * args.num_drafts + slot];
    if (!law.is_ready) {
        const void* data = row_at(args.draft_logits, b, slot);
        fill_law(law, data, args.draft_logits, args.draft_temperature[b], workspace);
    }
    return law;
}

}  // namespace dspark::DSPARK_ISA::sampling
