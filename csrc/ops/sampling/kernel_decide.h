// Kernels of the sampling family, part two: what the rules of algorithm.h say before any residual
// mass is known.
#pragma once

#include "ops/sampling/algorithm.h"
#include "ops/sampling/kernel.h"
#include "ops/sampling/residual.h"
#include "ops/sampling/workspace.h"

namespace dspark::DSPARK_ISA::sampling {

using dspark::sampling::kMaxDeviceDrafts;

// Laws that earlier kernels, or this block, have finished.
struct ReadyLaws {
    const VerifyArgs& args;

    DSPARK_DEVICE int64_t target_index(int64_t b, int64_t i) const {
        return b * (args.num_drafts + 1) + i;
    }
    DSPARK_DEVICE int64_t draft_index(int64_t b, int64_t i) const {
        return args.batch * (args.num_drafts + 1) + b * args.num_drafts + i;
    }
    DSPARK_DEVICE Law target(int64_t b, int64_t i) const {
        return args.scratch.laws[target_index(b, i)];
    }
    DSPARK_DEVICE Law draft(int64_t b, int64_t i) const {
        return args.scratch.laws[draft_index(b, i)];
    }
};

// ---- decide -------------------------------------------------------------------------------------

// What the rules ask of a slot.
struct SlotSummary {
    bool has_proposal;
    bool is_one_hot;
    bool stands;  // token rule
    int32_t status;
    double p;
    double q;
};

struct DecideShared {
    SharedArray<int32_t, kMaxDeviceDrafts> flags;
    SharedArray<int32_t, kMaxDeviceDrafts> status;
    SharedArray<double, kMaxDeviceDrafts> p;
    SharedArray<double, kMaxDeviceDrafts> q;
    SharedArray<double, kMaxDeviceDrafts> draw;
    SharedArray<double, kMaxDeviceDrafts> prefix;
};

struct SharedSlots {
    const DecideShared& shared;

    DSPARK_DEVICE SlotSummary operator()(int i) const {
        const int32_t flags = shared.flags[i];
        return {(flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0,
                shared.status[i], shared.p[i],      shared.q[i]};
    }
};

// Finishes the laws of a request that the filters have not finished yet, a warp per row.
template <int W>
DSPARK_DEVICE void finish_request_laws(const VerifyRows& rows, int64_t b) {
    const VerifyArgs& args = rows.args;
    const ReadyLaws laws = {args};
    const int targets = args.scratch.filtered_rows > 0 ? 0 : args.num_drafts + 1;
    const int drafts = args.draft_logits.data != nullptr ? args.num_drafts : 0;
    for (int i = warp_index<W>(); i < targets + drafts; i += kWarps<W>) {
        const int64_t r = i < targets ? laws.target_index(b, i) : laws.draft_index(b, i - targets);
        RowJob job;
        if (!rows.find(r, &job)) continue;
        const Law law =
            warp_finish_law<W>(new_law(args.scratch, r, job), tile_statistics(args.scratch, r));
        if (lane_index<W>() == 0) args.scratch.laws[r] = law;
    }
}

// block_acceptance: every prefix and mass is wanted, nothing is drawn.
DSPARK_DEVICE bool is_report(const VerifyArgs& args) {
    return args.prefix_prob != nullptr;
}

// Every slot by a thread of its own.
DSPARK_DEVICE void summarise_slot(const VerifyArgs& args, int64_t b,
                                  const Request<ReadyLaws>& request, int i, DecideShared& shared) {
    const Slot slot = request.slot(i);
    const bool is_one_hot = slot.proposal.kind == Proposal::Kind::kOneHot;
    bool stands = false;
    double draw = 0.0;
    if (!request.is_block_rule()) {
        stands = slot.has_proposal && token_accepts(args, request, i, slot);
    } else if (!is_report(args)) {
        draw = request.accept_draw(i, Stream::kAccept);
    }
    shared.flags[i] = (slot.has_proposal ? 1 : 0) | (is_one_hot ? 2 : 0) | (stands ? 4 : 0);
    shared.status[i] = slot.status;
    shared.p[i] = slot.p;
    shared.q[i] = slot.q;
    shared.draw[i] = draw;
    args.slot_p[b * args.num_drafts + i] = slot.p;
}

// By one thread. Where the block rule asks for a residual mass, that row is noted and the mass
// taken as 0: accept_i is then 0, or 1 if prefix_i is 1 (as it is with any mass). So the walk goes
// through everything that block_accept can come to ask for, and no further.
DSPARK_DEVICE Decision decide(const VerifyArgs& args, int64_t b, const Request<ReadyLaws>& request,
                              DecideShared& shared) {
    const SharedSlots slots = {shared};
    const Global<int32_t> needs = args.needs_residual + b * args.num_drafts;
    Decision decision = {};
    decision.is_valid = true;
    decision.has_ended = true;
    if (!request.is_block_rule()) {
        decision.ending = token_accept(request.num_drafts(), slots,
                                       [](int, const SlotSummary& slot) { return slot.stands; });
    } else {
        decision.candidates = prefix_products(request.num_drafts(), slots, shared.prefix);
        decision.ending = block_accept(
            decision.candidates, shared.prefix, [&](int i) -> double { return shared.draw[i]; },
            [&](int i) {
                const SlotSummary slot = slots(i);
                const double prefix = shared.prefix[i - 1];
                if (slot.is_one_hot) return one_hot_mass(prefix, slot.p);
                needs[i] = 1;
                if (prefix < 1.0) decision.has_ended = false;
                return 0.0;
            });
    }
    const int next = decision.ending.accepted;
    if (decision.ending.has_proposal && request.uses_q() && !slots(next).is_one_hot) {
        needs[next] = 1;
    }
    return decision;
}

// For block_acceptance, by one thread.
DSPARK_DEVICE Decision note_all_masses(const VerifyArgs& args, int64_t b,
                                       const Request<ReadyLaws>& request, DecideShared& shared) {
    const SharedSlots slots = {shared};
    Decision decision = {};
    decision.is_valid = true;
    decision.candidates = prefix_products(request.num_drafts(), slots, shared.prefix);
    for (int i = 1; i < decision.candidates.count; ++i) {
        if (!slots(i).is_one_hot) args.needs_residual[b * args.num_drafts + i] = 1;
    }
    return decision;
}

// Token rule: the ending. Block rule: prefix products, and which residual masses the walk needs.
// One block per request.
template <int W>
DSPARK_KERNEL(kThreads)
void decide_kernel(VerifyRows rows) {
    check_warp_size<W>();
    DSPARK_SHARED(DecideShared, shared);
    const VerifyArgs& args = rows.args;
    const int64_t b = block_idx().x;
    const int i = thread_idx();
    if (i < args.num_drafts) args.needs_residual[b * args.num_drafts + i] = 0;
    if (!is_valid_request(args, b)) {
        if (i == 0) args.decisions[b] = Decision{};
        return;
    }
    finish_request_laws<W>(rows, b);
    sync_block();
    ReadyLaws laws = {args};
    const Request<ReadyLaws> request(args, b, laws);
    if (i < request.num_drafts()) summarise_slot(args, b, request, i, shared);
    sync_block();
    if (i != 0) return;
    const Decision decision = is_report(args) ? note_all_masses(args, b, request, shared)
                                              : decide(args, b, request, shared);
    for (int j = 0; j < decision.candidates.count; ++j) {
        args.prefixes[b * args.num_drafts + j] = shared.prefix[j];
    }
    args.decisions[b] = decision;
}

}  // namespace dspark::DSPARK_ISA::sampling
