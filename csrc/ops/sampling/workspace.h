// Layout of the device scratch in one block of memory, which the operator allocates with its
// outputs. Nothing needs to be cleared: what a kernel reads, a kernel of the same call has written.
#pragma once

#include "device/layout.h"
#include "ops/sampling/args.h"

namespace dspark::sampling {

// Largest sizes that the device kernels are made for.
constexpr int32_t kMaxDeviceDrafts = 256;
constexpr int32_t kMaxDeviceVocab = 1024 * 4096;

inline bool has_filters(const LawArgs& law) {
    return law.top_k.data != nullptr || law.top_p != nullptr || law.min_p != nullptr;
}

// Laws of `rows` rows; profiles of the first `filtered` of them.
inline LawScratch place_laws(Layout& layout, int64_t rows, int64_t filtered, int32_t vocab) {
    LawScratch scratch = {};
    scratch.tiles = (vocab + 4095) / 4096;
    scratch.laws = layout.take<Law>(rows);
    scratch.tile_max = layout.take<float>(rows * scratch.tiles);
    scratch.tile_sum = layout.take<float>(rows * scratch.tiles);
    scratch.tile_scale = layout.take<double>(rows * scratch.tiles);
    scratch.tile_first = layout.take<int32_t>(rows * scratch.tiles);
    scratch.tile_nan = layout.take<uint8_t>(rows * scratch.tiles);
    scratch.filtered_rows = filtered;
    if (filtered > 0) scratch.profiles = layout.take<uint64_t>(filtered * scratch.tiles * 3);
    return scratch;
}

// Points the scratch of a call into `block` and returns the bytes it takes; with a null block it
// only returns the bytes.
inline int64_t place_workspace(TargetProbsArgs& args, Global<char> block) {
    Layout layout(block);
    args.scratch =
        place_laws(layout, args.rows, has_filters(args.law) ? args.rows : 0, args.logits.vocab);
    return layout.bytes();
}

inline int64_t place_workspace(SampleArgs& args, Global<char> block) {
    Layout layout(block);
    args.scratch =
        place_laws(layout, args.rows, has_filters(args.law) ? args.rows : 0, args.logits.vocab);
    return layout.bytes();
}

inline int64_t place_workspace(VerifyArgs& args, Global<char> block) {
    Layout layout(block);
    const int64_t slots = args.batch * args.num_drafts;
    const int64_t target_rows = slots + args.batch;
    const int64_t draft_rows = args.draft_logits.data != nullptr ? slots : 0;
    args.scratch = place_laws(layout, target_rows + draft_rows,
                              has_filters(args.law) ? target_rows : 0, args.target_logits.vocab);
    args.decisions = layout.take<Decision>(args.batch);
    args.prefixes = layout.take<double>(slots);
    args.slot_p = layout.take<double>(slots);
    args.needs_residual = layout.take<int32_t>(slots);
    args.residual_totals = layout.take<double>(slots * args.scratch.tiles);
    return layout.bytes();
}

}  // namespace dspark::sampling
