// Layout of the device scratch in one block of memory, which the operator allocates with its
// outputs. Nothing needs to be cleared: what a kernel reads, a kernel of the same call has written.
#pragma once

#include "device/layout.h"
#include "ops/draft/step.h"

namespace dspark::draft {

constexpr int64_t kMaxDeviceVocab = 1024 * 4096;

// A call of markov_sample on a device.
struct MarkovCall {
    MarkovArgs args;
    MarkovScratch scratch;
};

// Points the scratch of a call into `block` and returns the bytes it takes; with a null block it
// only returns the bytes.
inline int64_t place_workspace(MarkovCall& call, Global<char> block) {
    Layout layout(block);
    MarkovArgs& args = call.args;
    call.scratch.tickets = layout.take<uint32_t>(args.num_drafts + 1);
    call.scratch.tiles_done = layout.take<uint32_t>(args.batch);
    call.scratch.inputs_ready = layout.take<uint32_t>(args.batch);
    call.scratch.tile_first = layout.take<int32_t>(args.batch * args.tiles);
    call.scratch.tile_scale = layout.take<double>(args.batch * args.tiles);
    if (args.head == MarkovHead::kVanilla) return layout.bytes();
    const int64_t rows = args.head == MarkovHead::kRnn ? 3 * args.rank : args.rank;
    args.bias_input = layout.take<float>(args.batch * args.padded_rank);
    args.hidden_dots = layout.take<float>(args.batch * args.num_drafts * rows);
    if (args.head == MarkovHead::kRnn) {
        args.state = layout.take<float>(args.batch * args.padded_rank);
    }
    return layout.bytes();
}

}  // namespace dspark::draft
