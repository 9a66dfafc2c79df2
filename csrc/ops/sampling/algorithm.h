// The rules of verification, one request at a time: token_accept or block_accept, then final_token.
// The same names stand in python/dspark_ext/reference. Every backend runs this text; what differs
// is where laws and residual masses come from.
//
// Token rule: Leviathan et al. 2023 (arXiv 2211.17192). Block rule: Sun et al. 2024
// (arXiv 2403.10444, algorithm 2). Arithmetic: docs/numerics.md sections 7 and 8.
#pragma once

#include "ops/sampling/request.h"

namespace dspark::DSPARK_ISA::sampling {

// ---- token rule ---------------------------------------------------------------------------------

// Whether draft i stands: u q < p, or at a given rate, or because it is the argmax.
template <class Laws>
DSPARK_DEVICE bool token_accepts(const VerifyArgs& args, const Request<Laws>& request, int i,
                                 const Slot& slot) {
    if (args.method == Method::kSynthetic) {
        const double rate = static_cast<double>(args.synthetic_rates[i]);
        return request.accept_draw(i, Stream::kSynthetic) < rate;
    }
    if (!request.uses_q()) return slot.p == 1.0;
    return request.accept_draw(i, Stream::kAccept) * slot.q < slot.p;
}

// One draft after the other; the first failure ends the block. slots(i): the Slot; accepts(i): what
// token_accepts said of it.
template <class Slots, class Accepts>
DSPARK_DEVICE Ending token_accept(int num_drafts, Slots slots, Accepts accepts) {
    for (int i = 0; i < num_drafts; ++i) {
        const auto& slot = slots(i);
        if (!slot.has_proposal) return {i, false, slot.status, 1.0};
        if (!accepts(i, slot)) return {i, true, 0, 1.0};
    }
    return {num_drafts, false, 0, 1.0};
}

// ---- block rule ---------------------------------------------------------------------------------

// prefix[i - 1] = prefix_i = min(1, prefix_{i-1} p / q): how likely drafts 1 .. i stand together.
template <class Slots, class Prefix>
DSPARK_DEVICE Candidates prefix_products(int num_drafts, Slots slots, Prefix& prefix) {
    double last = 1.0;
    for (int i = 0; i < num_drafts; ++i) {
        const auto& slot = slots(i);
        if (!slot.has_proposal) return {i, slot.status};
        const double next = slot.q > 0.0 ? last * slot.p / slot.q : slot.p > 0.0 ? 1.0 : 0.0;
        last = next < 1.0 ? next : 1.0;
        prefix[i] = last;
        if (last == 0.0) return {i + 1, 0};
    }
    return {num_drafts, 0};
}

// accept_i from prefix_i and the residual mass of row i, sum of max(prefix_i p - q, 0).
DSPARK_DEVICE double accept_probability(double prefix, double mass) {
    const double denominator = mass + (1.0 - prefix);
    const double accept = denominator == 0.0 ? 1.0 : mass / denominator;
    return accept < prefix ? accept : prefix;
}

// Residual mass over a one-hot proposal, without a pass over the row.
DSPARK_DEVICE double one_hot_mass(double prefix, double p) {
    return prefix * (1.0 - p);
}

// The largest i with u_i < accept_i, searched from the end. Since accept_i <= prefix_i, a residual
// mass matters only where u_i < prefix_i: mass(i) is asked for those alone.
template <class Prefix, class Draws, class Masses>
DSPARK_DEVICE Ending block_accept(Candidates candidates, const Prefix& prefix, Draws draws,
                                  Masses mass) {
    for (int i = candidates.count; i > 0; --i) {
        const double prefix_i = prefix[i - 1];
        const double u = draws(i - 1);
        if (!(u < prefix_i)) continue;
        if (i == candidates.count) return {i, false, candidates.status, prefix_i};
        if (u < accept_probability(prefix_i, mass(i))) return {i, true, 0, prefix_i};
    }
    return {0, candidates.count > 0, candidates.status, 1.0};
}

// ---- the token after the accepted drafts --------------------------------------------------------

// drawer.use_residual() makes the residual that the ending names what is drawn from, unless it has
// no mass: then it returns false; drawer.use_law() does so with the target law.
template <class Laws, class Drawer>
DSPARK_DEVICE int64_t final_token(const Request<Laws>& request, const Law& law,
                                  const Ending& ending, Drawer& drawer, int32_t* status) {
    *status = (law.has_nan ? kNanRow : 0) | (law.is_empty ? kEmptyRow : 0);
    if (!ending.has_proposal) *status |= ending.status;
    if (law.is_empty || law.is_greedy) return law.argmax;
    if (!ending.has_proposal) {
        drawer.use_law();
    } else if (!drawer.use_residual()) {
        *status |= kZeroResidual;
        drawer.use_law();
    }
    return drawer.draw(request.final_draw(ending.accepted));
}

// What a slot without a request returns: no token at all. (Its log-probabilities are 0.)
DSPARK_DEVICE void write_absent(const VerifyArgs& args, int64_t b) {
    const int64_t begin = b * (args.num_drafts + 1);
    for (int i = 0; i <= args.num_drafts; ++i) args.token_ids[begin + i] = -1;
    args.num_accepted[b] = 0;
    args.num_emitted[b] = 0;
    args.last_token[b] = -1;
    args.status[b] = 0;
}

// Everything a request returns but the log-probabilities.
template <class Laws>
DSPARK_DEVICE void write_tokens(const VerifyArgs& args, int64_t b, const Request<Laws>& request,
                                int accepted, int64_t last, int32_t status) {
    const int64_t begin = b * (args.num_drafts + 1);
    for (int i = 0; i <= args.num_drafts; ++i) {
        args.token_ids[begin + i] = i < accepted ? request.draft_id(i) : i == accepted ? last : -1;
    }
    args.num_accepted[b] = accepted;
    args.num_emitted[b] = accepted + 1;
    args.last_token[b] = last;
    args.status[b] = status;
}

}  // namespace dspark::DSPARK_ISA::sampling
