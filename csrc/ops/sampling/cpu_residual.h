// Residuals on the CPU: their tile totals, and draws from them (docs/numerics.md sections 6 and 7).
#pragma once

#include "ops/sampling/cpu_workspace.h"
#include "ops/sampling/request.h"
#include "ops/sampling/residual.h"

namespace dspark::DSPARK_ISA::sampling {

// Entries of max(a p - q, 0) in one tile, q from a law.
struct ResidualOverLaw {
    TileWeights target;
    FloatVector target_scale;
    TileWeights draft;
    FloatVector draft_scale;

    DSPARK_DEVICE FloatVector operator()(int i) const {
        return residual_entry(target_scale, target(i), draft_scale, draft(i));
    }
};

// The same, q given. NaN and negative probabilities count as 0.
struct ResidualOverProbs {
    TileWeights target;
    FloatVector target_scale;
    const float* probs;

    DSPARK_DEVICE FloatVector operator()(int i) const {
        return residual_entry(target_scale, target(i), max(load(probs + i), FloatVector(0.0f)));
    }
};

// Given probabilities of a tile; 0 past their end, and everywhere if there are none.
DSPARK_DEVICE const float* read_probs(const float* probs, int64_t vocab, int tile, float* buffer) {
    const int64_t start = static_cast<int64_t>(tile) * kTile;
    if (probs != nullptr && start + kTile <= vocab) return probs + start;
    for (int i = 0; i < kTile; ++i) {
        buffer[i] = probs != nullptr && start + i < vocab ? probs[start + i] : 0.0f;
    }
    return buffer;
}

// use(entries) with the residual's entries in tile t.
template <class Use>
DSPARK_DEVICE void with_residual_tile(const Law& law, double a, const Proposal& proposal, int t,
                                      Workspace& workspace, Use use) {
    const TileWeights target = kept_weights(law, t, workspace.target_tile);
    const FloatVector scale(target_scale(a, law.tile_scale[t], law.total));
    const Law& draft = proposal.law;
    if (proposal.kind == Proposal::Kind::kLaw && t < num_tiles(draft.vocab) &&
        draft.tile_max[t] > -kInfinity) {
        const TileWeights weights = kept_weights(draft, t, workspace.draft_tile);
        const FloatVector q_scale(draft_scale(draft.tile_scale[t], draft.total));
        use(ResidualOverLaw{target, scale, weights, q_scale});
    } else {
        const float* probs = read_probs(proposal.probs, proposal.vocab, t, workspace.draft_tile);
        use(ResidualOverProbs{target, scale, probs});
    }
}

// The law's weights in tile t without entry `id`.
DSPARK_DEVICE TileWeights weights_without(const Law& law, int64_t id, int t, float* buffer) {
    TileWeights weights = kept_weights(law, t, buffer);
    const int64_t at = id - static_cast<int64_t>(t) * kTile;
    if (at < 0 || at >= kTile) return weights;
    if (weights.x != buffer) memcpy(buffer, weights.x, sizeof(float) * kTile);
    buffer[at] = -kInfinity;
    weights.x = buffer;
    return weights;
}

// Tile totals of the residual over a one-hot: the law without the id, at the law's own scale.
inline double residual_over_one_hot(const Law& law, int64_t id, Workspace& workspace) {
    law_totals(law, workspace.totals);
    const int t = static_cast<int>(id / kTile);
    if (law.tile_max[t] > -kInfinity) {
        const TileWeights rest = weights_without(law, id, t, workspace.target_tile);
        const float sum = canonical_sum(tile_size(law.vocab, t), rest);
        workspace.totals[t] = static_cast<double>(sum) * law.tile_scale[t];
    }
    return add_totals(law, workspace.totals);
}

// Fills workspace.totals with the tile totals of max(a p - q, 0) and returns their sum.
inline double residual(const Law& law, double a, const Proposal& proposal, Workspace& workspace) {
    if (proposal.kind == Proposal::Kind::kOneHot)
        return residual_over_one_hot(law, proposal.id, workspace);
    for (int t = 0; t < num_tiles(law.vocab); ++t) {
        double& total = workspace.totals[t];
        total = 0.0;
        if (!(law.tile_sum[t] > 0.0f)) continue;  // p is 0 here
        with_residual_tile(law, a, proposal, t, workspace, [&](const auto& entries) {
            total = static_cast<double>(canonical_sum(tile_size(law.vocab, t), entries));
        });
    }
    return add_totals(law, workspace.totals);
}

// A draw from the residual whose totals the workspace holds.
inline int64_t draw_residual(const Law& law, double a, const Proposal& proposal, double u,
                             Workspace& workspace) {
    return draw_tiles(law, u, workspace, [&](int t) {
        if (proposal.kind == Proposal::Kind::kOneHot) {
            const TileWeights rest = weights_without(law, proposal.id, t, workspace.target_tile);
            store_entries(rest, workspace.weights);
            return;
        }
        with_residual_tile(law, a, proposal, t, workspace,
                           [&](const auto& entries) { store_entries(entries, workspace.weights); });
    });
}

}  // namespace dspark::DSPARK_ISA::sampling
