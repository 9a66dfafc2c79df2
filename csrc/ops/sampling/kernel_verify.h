// Kernels of the sampling family, part three: residual masses, the accepted length, the token after
// it.
#pragma once

#include "ops/sampling/kernel_decide.h"

namespace dspark::DSPARK_ISA::sampling {

// ---- residual_masses ----------------------------------------------------------------------------

// All that the entries of max(a p - q, 0) in one tile depend on; q is not one-hot.
struct ResidualTile {
    enum class Draft : int32_t { kNone, kLaw, kProbs };

    KeptTile target;
    float target_scale;
    Draft kind;
    KeptTile draft;  // of given probabilities only the row
    float draft_scale;
};

struct ResidualShared {
    SharedArray<ResidualTile, 1> tile;
    SharedArray<int32_t, 1> has_mass;
    TileStage stage;
    LaneSums sums;
};

// The prefix that the residual of row i is taken with.
DSPARK_DEVICE double residual_prefix(const VerifyArgs& args, const Decision& decision, int64_t b,
                                     int i) {
    const bool is_block_rule = decision.candidates.count > 0;
    return is_block_rule && i > 0 ? args.prefixes[b * args.num_drafts + i - 1] : 1.0;
}

DSPARK_DEVICE ResidualTile residual_tile(const Law& law, double a, const Proposal& proposal,
                                         int tile) {
    ResidualTile out = {};
    out.target = kept_tile(law, tile);
    out.target_scale = target_scale(a, law.tile_scale[tile], law.total);
    const Law& draft = proposal.law;
    if (proposal.kind == Proposal::Kind::kLaw && tile < num_tiles(draft.vocab) &&
        draft.tile_max[tile] > -kInfinity) {
        out.kind = ResidualTile::Draft::kLaw;
        out.draft = kept_tile(draft, tile);
        out.draft_scale = draft_scale(draft.tile_scale[tile], draft.total);
    } else if (proposal.kind == Proposal::Kind::kProbs && tile < num_tiles(proposal.vocab)) {
        out.kind = ResidualTile::Draft::kProbs;
        out.draft.row = {proposal.probs, FloatType::kFloat32, proposal.vocab};
    }
    return out;
}

// This thread's entries of a residual. Called by the whole block.
DSPARK_DEVICE LaneEntries residual_entries(const ResidualTile& residual, int tile,
                                           TileStage& stage) {
    LaneEntries entries = read_weights(residual.target, tile, stage);
    const float p_scale = residual.target_scale;
    if (residual.kind == ResidualTile::Draft::kLaw) {
        sync_block();  // the stage is free
        const LaneEntries q = read_weights(residual.draft, tile, stage);
        for (int c = 0; c < kEntriesPerThread; ++c) {
            entries.x[c] = residual_entry(p_scale, entries.x[c], residual.draft_scale, q.x[c]);
        }
    } else if (residual.kind == ResidualTile::Draft::kProbs) {
        sync_block();
        const Row probs = {residual.draft.row.data, FloatType::kFloat32, residual.draft.row.size};
        const LaneEntries q = read_tile<ReadProbability>(probs, tile, stage);
        for (int c = 0; c < kEntriesPerThread; ++c) {
            entries.x[c] = residual_entry(p_scale, entries.x[c], q.x[c]);
        }
    } else {
        for (float& x : entries.x) x = residual_entry(p_scale, x, 0.0f);
    }
    return entries;
}

// By one thread: what the residual of a slot needs in one tile. False: p is 0 there.
DSPARK_DEVICE bool find_residual_tile(const VerifyArgs& args, int64_t slot, int tile,
                                      ResidualTile* out) {
    const int64_t b = slot / args.num_drafts;
    const int i = static_cast<int>(slot % args.num_drafts);
    ReadyLaws laws = {args};
    const Request<ReadyLaws> request(args, b, laws);
    const Law law = request.target_law(i);
    if (!(law.tile_sum[tile] > 0.0f)) return false;
    const double a = residual_prefix(args, args.decisions[b], b, i);
    *out = residual_tile(law, a, request.proposal(i), tile);
    return true;
}

// Tile totals of the residuals that decide_kernel asked for. One block per (request, row, tile).
template <int W>
DSPARK_KERNEL(kThreads, 4)
void residual_masses_kernel(VerifyArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(ResidualShared, shared);
    const int tile = block_idx().x % args.scratch.tiles;
    const int64_t slot = block_idx().x / args.scratch.tiles;
    if (args.needs_residual[slot] == 0) return;
    if (thread_idx() == 0) {
        ResidualTile residual = {};
        shared.has_mass[0] = find_residual_tile(args, slot, tile, &residual) ? 1 : 0;
        shared.tile[0] = residual;
    }
    sync_block();
    double total = 0.0;
    if (shared.has_mass[0] != 0) {
        const ResidualTile residual = shared.tile[0];
        const LaneEntries entries = residual_entries(residual, tile, shared.stage);
        total = static_cast<double>(halving_tree<W>(lane_sum(entries), shared.sums));
    }
    if (thread_idx() == 0) args.residual_totals[slot * args.scratch.tiles + tile] = total;
}

// ---- finalise -----------------------------------------------------------------------------------

template <int W>
struct FinaliseShared {
    DrawShared<W> draw;
    LaneSums sums;
    BlockReduceScratch<W, uint32_t> has_mass;
    SharedArray<double, kMaxDeviceDrafts> mass;
    SharedArray<double, kMaxDeviceDrafts> prefix;
    SharedArray<double, kMaxDeviceDrafts> accept;
    SharedArray<double, 1> ending_prefix;
    SharedArray<int32_t, 3> ending;
};

// Masses of the rows whose tile totals are known, one thread per row.
DSPARK_DEVICE double residual_mass(const VerifyArgs& args, int64_t slot) {
    if (args.needs_residual[slot] == 0) return 0.0;
    double mass = 0.0;
    const int64_t begin = slot * args.scratch.tiles;
    for (int t = 0; t < args.scratch.tiles; ++t) mass += args.residual_totals[begin + t];
    return mass;
}

// How the block of a request ended, in every thread.
template <int W>
DSPARK_DEVICE Ending find_ending(const VerifyArgs& args, int64_t b, const Decision& decision,
                                 const Request<ReadyLaws>& request, FinaliseShared<W>& shared) {
    if (decision.has_ended) return decision.ending;
    const int i = thread_idx();
    const int64_t slot = b * args.num_drafts + i;
    if (i < decision.candidates.count) {
        shared.prefix[i] = args.prefixes[slot];
        shared.accept[i] = request.accept_draw(i, Stream::kAccept);
        shared.mass[i] = residual_mass(args, slot);
    }
    sync_block();
    if (i == 0) {
        const Ending ending = block_accept(
            decision.candidates, shared.prefix, [&](int j) -> double { return shared.accept[j]; },
            [&](int j) -> double { return shared.mass[j]; });
        shared.ending[0] = ending.accepted;
        shared.ending[1] = ending.has_proposal ? 1 : 0;
        shared.ending[2] = ending.status;
        shared.ending_prefix[0] = ending.prefix;
    }
    sync_block();
    return {shared.ending[0], shared.ending[1] != 0, shared.ending[2], shared.ending_prefix[0]};
}

// The three things that a final token is drawn from, tile by tile.
template <int W>
struct FinalWeights {
    enum class Source { kLaw, kLawWithoutId, kResidual };

    const Law& law;
    const Proposal& proposal;
    double prefix;
    Source source;
    TileStage& stage;

    DSPARK_DEVICE LaneEntries operator()(int tile) const {
        if (source == Source::kResidual) {
            return residual_entries(residual_tile(law, prefix, proposal, tile), tile, stage);
        }
        LaneEntries entries = read_tile(row_of(law), tile, stage);
        const int64_t excluded = source == Source::kLaw ? -1 : proposal.id;
        for (int c = 0; c < kEntriesPerThread; ++c) {
            const int64_t id = static_cast<int64_t>(tile) * kTile + entry_index(c);
            if (id == excluded) entries.x[c] = -kInfinity;
        }
        return kept_weights(kept_tile(law, tile), tile, entries);
    }
};

// What final_token asks for, by the whole block.
template <int W>
class BlockDrawer {
    using Source = typename FinalWeights<W>::Source;

  public:
    DSPARK_DEVICE BlockDrawer(const VerifyArgs& args, int64_t b, const Law& law,
                              const Proposal& proposal, const Ending& ending,
                              FinaliseShared<W>& shared)
        : args_(args),
          slot_(b * args.num_drafts + ending.accepted),
          weights_{law, proposal, ending.prefix, Source::kLaw, shared.draw.stage},
          shared_(shared) {}

    DSPARK_DEVICE bool use_residual() {
        const bool is_one_hot = weights_.proposal.kind == Proposal::Kind::kOneHot;
        weights_.source = is_one_hot ? Source::kLawWithoutId : Source::kResidual;
        if (is_one_hot) {
            place_law_totals();
            replace_tile(static_cast<int>(weights_.proposal.id / kTile));
        } else {
            const int64_t begin = slot_ * args_.scratch.tiles;
            for (int t = thread_idx(); t < num_tiles(weights_.law.vocab); t += kThreads) {
                shared_.draw.totals[t] = args_.residual_totals[begin + t];
            }
        }
        sync_block();
        bool has_mass = false;
        for (int t = thread_idx(); t < num_tiles(weights_.law.vocab); t += kThreads) {
            has_mass = has_mass || shared_.draw.totals[t] > 0.0;
        }
        return block_any<W>(has_mass, shared_.has_mass);
    }

    DSPARK_DEVICE void use_law() {
        weights_.source = Source::kLaw;
        place_law_totals();
    }

    DSPARK_DEVICE int64_t draw(double u) {
        return block_draw<W>(weights_.law.vocab, u, shared_.draw, weights_);
    }

  private:
    DSPARK_DEVICE void place_law_totals() {
        const Law& law = weights_.law;
        for (int t = thread_idx(); t < num_tiles(law.vocab); t += kThreads) {
            shared_.draw.totals[t] = tile_mass(law.tile_sum[t], law.tile_scale[t]);
        }
    }

    // The total of the tile that lacks the drafted id, at the law's own scale.
    DSPARK_DEVICE void replace_tile(int tile) {
        const Law& law = weights_.law;
        if (!(law.tile_max[tile] > -kInfinity)) return;
        const float sum = halving_tree<W>(lane_sum(weights_(tile)), shared_.sums);
        if (thread_idx() == 0) {
            shared_.draw.totals[tile] = tile_mass(sum, law.tile_scale[tile]);
        }
    }

    const VerifyArgs& args_;
    const int64_t slot_;
    FinalWeights<W> weights_;
    FinaliseShared<W>& shared_;
};

// What an invalid request returns: one token, id 0. A slot without a request: nothing.
DSPARK_DEVICE void write_unjudged(const VerifyArgs& args, int64_t b) {
    const int64_t begin = b * (args.num_drafts + 1);
    const bool absent = is_absent(args, b);
    for (int i = thread_idx(); i <= args.num_drafts && args.logprobs != nullptr; i += kThreads) {
        args.logprobs[begin + i] = i == 0 && !absent ? -kInfinity : 0.0f;
    }
    if (thread_idx() != 0) return;
    write_absent(args, b);
    if (absent) return;
    args.token_ids[begin] = 0;
    args.num_emitted[b] = 1;
    args.last_token[b] = 0;
    args.status[b] = kInvalidRequest;
}

// The accepted length, the token after it, and all outputs. One block per request.
template <int W>
DSPARK_KERNEL(kThreads)
void finalise_kernel(VerifyArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(FinaliseShared<W>, shared);
    const int64_t b = block_idx().x;
    const Decision decision = args.decisions[b];
    if (!decision.is_valid) return write_unjudged(args, b);
    ReadyLaws laws = {args};
    const Request<ReadyLaws> request(args, b, laws);
    const Ending ending = find_ending(args, b, decision, request, shared);
    const Law law = request.target_law(ending.accepted);
    const Proposal proposal = ending.has_proposal ? request.proposal(ending.accepted) : Proposal{};
    BlockDrawer<W> drawer(args, b, law, proposal, ending, shared);
    int32_t status;
    const int64_t last = final_token(request, law, ending, drawer, &status);
    if (thread_idx() == 0) write_tokens(args, b, request, ending.accepted, last, status);
    if (args.logprobs == nullptr) return;
    for (int i = thread_idx(); i <= args.num_drafts; i += kThreads) {
        float logprob = 0.0f;
        if (i < ending.accepted) logprob = log_probability(laws.target(b, i), request.draft_id(i));
        if (i == ending.accepted) logprob = log_probability(law, last);
        args.logprobs[b * (args.num_drafts + 1) + i] = logprob;
    }
}

// What block_accept decides by, for every position. One block per request.
template <int W>
DSPARK_KERNEL(kThreads)
void block_acceptance_kernel(VerifyArgs args) {
    check_warp_size<W>();
    const int64_t b = block_idx().x;
    const Decision decision = args.decisions[b];
    const int i = thread_idx();
    if (i >= args.num_drafts) return;
    const int64_t slot = b * args.num_drafts + i;
    const int count = decision.candidates.count;
    const double prefix = i < count ? static_cast<double>(args.prefixes[slot]) : 0.0;
    double mass = 0.0;
    double accept = prefix;
    if (i + 1 < count) {
        ReadyLaws laws = {args};
        const Request<ReadyLaws> request(args, b, laws);
        mass = request.proposal(i + 1).kind == Proposal::Kind::kOneHot
                   ? one_hot_mass(prefix, args.slot_p[slot + 1])
                   : residual_mass(args, slot + 1);
        accept = accept_probability(prefix, mass);
    }
    args.prefix_prob[slot] = prefix;
    args.residual_mass[slot] = mass;
    args.accept_prob[slot] = accept;
}

}  // namespace dspark::DSPARK_ISA::sampling
