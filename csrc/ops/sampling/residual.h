// Draws: from a law, and from what a law has over a proposal, max(a p - q, 0).
// docs/numerics.md sections 6 and 7.
#pragma once

#include "ops/sampling/filter.h"

namespace dspark::DSPARK_ISA::sampling {

// What the drafter proposed at one slot: an id, and the distribution it was drawn from as a law or
// as given probabilities. Neither: one-hot at the id.
struct Proposal {
    int64_t id;
    const Law* law;
    const float* probs;
    int32_t vocab;  // entries of probs

    DSPARK_DEVICE bool is_one_hot() const { return law == nullptr && probs == nullptr; }
    DSPARK_DEVICE double q() const {
        if (probs != nullptr) return id < vocab ? static_cast<double>(probs[id]) : 0.0;
        return law != nullptr ? probability(*law, id) : 1.0;
    }
};

DSPARK_DEVICE FloatVector positive_part(FloatVector difference) {
    constexpr float kJustAboveFloor = 0x1.000002p-100f;  // the float after 2^-100
    return zero_if(less(difference, FloatVector(kJustAboveFloor)), difference);
}

// Entries of max(a p - q, 0) in one tile, q from a law.
struct ResidualOverLaw {
    TileWeights target;
    FloatVector target_scale;
    TileWeights draft;
    FloatVector draft_scale;

    DSPARK_DEVICE FloatVector operator()(int i) const {
        return positive_part(target_scale * target(i) - draft_scale * draft(i));
    }
};

// The same, q given. NaN and negative probabilities count as 0.
struct ResidualOverProbs {
    TileWeights target;
    FloatVector target_scale;
    const float* probs;

    DSPARK_DEVICE FloatVector operator()(int i) const {
        return positive_part(target_scale * target(i) - max(load(probs + i), FloatVector(0.0f)));
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
    const FloatVector target_scale(static_cast<float>(a * law.tile_scale[t] / law.total));
    const Law* draft = proposal.law;
    if (draft != nullptr && t < num_tiles(draft->vocab) && draft->tile_max[t] > -kInfinity) {
        const TileWeights weights = kept_weights(*draft, t, workspace.draft_tile);
        const FloatVector draft_scale(static_cast<float>(draft->tile_scale[t] / draft->total));
        use(ResidualOverLaw{target, target_scale, weights, draft_scale});
    } else {
        const float* probs = read_probs(proposal.probs, proposal.vocab, t, workspace.draft_tile);
        use(ResidualOverProbs{target, target_scale, probs});
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

DSPARK_DEVICE void law_totals(const Law& law, double* totals) {
    for (int t = 0; t < num_tiles(law.vocab); ++t) {
        totals[t] = static_cast<double>(law.tile_sum[t]) * law.tile_scale[t];
    }
}

DSPARK_DEVICE double add_totals(const Law& law, const double* totals) {
    double total = 0.0;
    for (int t = 0; t < num_tiles(law.vocab); ++t) total += totals[t];
    return total;
}

// Tile totals of the residual over a one-hot: the law without the id, at the law's own scale.
inline double residual_over_one_hot(const Law& law, int64_t id, Workspace& workspace) {
    law_totals(law, workspace.totals);
    const int t = static_cast<int>(id / kTile);
    if (law.tile_max[t] > -kInfinity) {
        const TileWeights rest = weights_without(law, id, t, workspace.target_tile);
        const float sum = canonical_sum(tile_size(row_of(law), t), rest);
        workspace.totals[t] = static_cast<double>(sum) * law.tile_scale[t];
    }
    return add_totals(law, workspace.totals);
}

// Fills workspace.totals with the tile totals of max(a p - q, 0) and returns their sum.
inline double residual(const Law& law, double a, const Proposal& proposal, Workspace& workspace) {
    if (proposal.is_one_hot()) return residual_over_one_hot(law, proposal.id, workspace);
    for (int t = 0; t < num_tiles(law.vocab); ++t) {
        double& total = workspace.totals[t];
        total = 0.0;
        if (!(law.tile_sum[t] > 0.0f)) continue;  // p is 0 here
        with_residual_tile(law, a, proposal, t, workspace, [&](const auto& entries) {
            total = static_cast<double>(canonical_sum(tile_size(row_of(law), t), entries));
        });
    }
    return add_totals(law, workspace.totals);
}

template <class Entries>
DSPARK_DEVICE void store_entries(const Entries& entries, float* weights) {
    for (int i = 0; i < kTile; i += FloatVector::kWidth) store(weights + i, entries(i));
}

// A draw among tiles of workspace.totals; fill(t) stores the entries of tile t in
// workspace.weights. -1 if there is no mass.
template <class Fill>
DSPARK_DEVICE int64_t draw_tiles(const Law& law, double u, Workspace& workspace, Fill fill) {
    const double v = u * add_totals(law, workspace.totals);
    const TileChoice choice = choose_tile(workspace.totals, num_tiles(law.vocab), v);
    if (choice.tile < 0) return -1;
    fill(choice.tile);
    const double ratio = (v - choice.before) / workspace.totals[choice.tile];
    const int count = tile_size(row_of(law), choice.tile);
    return static_cast<int64_t>(choice.tile) * kTile +
           draw_in_tile(workspace.weights, count, ratio);
}

// A draw from the law; 0 if it is empty, the argmax if it is greedy.
inline int64_t draw(const Law& law, double u, Workspace& workspace) {
    if (law.is_empty || law.is_greedy) return law.argmax;
    law_totals(law, workspace.totals);
    return draw_tiles(law, u, workspace, [&](int t) {
        store_entries(kept_weights(law, t, workspace.target_tile), workspace.weights);
    });
}

// A draw from the residual whose totals the workspace holds; -1 if its mass is 0.
inline int64_t draw_residual(const Law& law, double a, const Proposal& proposal, double u,
                             Workspace& workspace) {
    return draw_tiles(law, u, workspace, [&](int t) {
        if (proposal.is_one_hot()) {
            const TileWeights rest = weights_without(law, proposal.id, t, workspace.target_tile);
            store_entries(rest, workspace.weights);
            return;
        }
        with_residual_tile(law, a, proposal, t, workspace,
                           [&](const auto& entries) { store_entries(entries, workspace.weights); });
    });
}

}  // namespace dspark::DSPARK_ISA::sampling
