// Layout of the device scratch in one block of memory, which the operator allocates with its
// outputs. Nothing needs to be cleared: what a kernel reads, a kernel of the same call has written.
#pragma once

#include "device/layout.h"
#include "ops/verify/args.h"

namespace dspark::verify {

// Largest K that the device kernels are made for.
constexpr int64_t kMostDeviceDrafts = 256;

// Whether one block of a device can sort all candidates.
inline bool fits_one_block(const ScheduleArgs& args) {
    return int64_t{args.batch} * args.num_positions <= kTileCandidates;
}

inline int32_t num_tiles(const ScheduleArgs& args) {
    if (fits_one_block(args)) return 1;
    const int32_t requests = kTileCandidates / args.num_positions;
    return (args.batch + requests - 1) / requests;
}

// Points the scratch of a call into `block` and returns the bytes it takes; with a null block it
// only returns the bytes.
inline int64_t place_workspace(ScheduleArgs& args, Global<char> block) {
    Layout layout(block);
    if (args.mode == ScheduleMode::kUniform) {
        args.survival = layout.take<float>(args.batch);
    } else if (!fits_one_block(args)) {
        ScheduleScratch& scratch = args.scratch;
        const int64_t tiles = num_tiles(args);
        const int64_t orders = args.mode == ScheduleMode::kLagged ? 2 : 1;
        scratch.tiles = static_cast<int32_t>(tiles);
        scratch.tile_keys = layout.take<uint64_t>(orders * tiles * kTileCandidates);
        scratch.keys = layout.take<uint64_t>(orders * tiles * kTileCandidates);
        scratch.tile_counts = layout.take<int64_t>(orders * tiles);
        scratch.tile_units = layout.take<int64_t>(orders * tiles);
        scratch.run_units = layout.take<int64_t>(tiles);
        scratch.run_ends = layout.take<int64_t>(tiles);
        scratch.run_rates = layout.take<double>(tiles);
    }
    return layout.bytes();
}

}  // namespace dspark::verify
