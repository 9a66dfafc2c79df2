// The rules of algorithm.h on the CPU: laws and residual masses are computed when a decision first
// needs them, so rows that no decision needs are not read.
#pragma once

#include "ops/sampling/algorithm.h"
#include "ops/sampling/cpu_measure.h"
#include "ops/sampling/cpu_residual.h"
#include "ops/sampling/validity.h"

namespace dspark::DSPARK_ISA::sampling {

DSPARK_DEVICE void fill_law(Law& law, const void* row, const RowsView& view, float temperature,
                            Workspace& workspace) {
    law.row = row;
    law.dtype = view.dtype;
    law.vocab = view.vocab;
    row_statistics(law, temperature, workspace.target_tile);
}

inline void filter_law(Law& law, const LawArgs& args, int64_t i, Workspace& workspace) {
    RowMeasure measure(law, workspace);
    const Kept kept = filter_row(args, i, measure);
    law.cut = kept.cut;
    law.total = kept.total;
}

class LazyLaws {
  public:
    LazyLaws(const VerifyArgs& args, Workspace& workspace) : args_(args), workspace_(workspace) {}

    const Law& target(int64_t b, int64_t i) {
        Law& law = args_.target_laws[b * (args_.num_drafts + 1) + i];
        if (!law.is_ready) {
            const void* row = row_at(args_.target_logits, 0, args_.query_start_loc[b] + i);
            fill_law(law, row, args_.target_logits, target_temperature(args_, b), workspace_);
            filter_law(law, args_.law, b, workspace_);
        }
        return law;
    }

    const Law& draft(int64_t b, int64_t i) {
        Law& law = args_.draft_laws[b * args_.num_drafts + i];
        if (!law.is_ready) {
            const void* row = row_at(args_.draft_logits, b, i);
            if (has_statistics(args_, b, i)) {
                take_statistics(law, row, b, i);
            } else {
                fill_law(law, row, args_.draft_logits, args_.draft_temperature[b], workspace_);
            }
        }
        return law;
    }

  private:
    void take_statistics(Law& law, const void* row, int64_t b, int64_t i) {
        law.row = row;
        law.dtype = args_.draft_logits.dtype;
        law.vocab = args_.draft_logits.vocab;
        start_law(law, args_.draft_temperature[b]);
        law.has_nan = false;
        const int tiles = num_tiles(law.vocab);
        const int64_t begin = (b * args_.num_drafts + i) * tiles;
        for (int t = 0; t < tiles; ++t) {
            law.tile_max[t] = args_.draft_statistics.tile_max[begin + t];
            law.tile_sum[t] = args_.draft_statistics.tile_sum[begin + t];
            law.has_nan = law.has_nan || args_.draft_statistics.tile_nan[begin + t] != 0;
        }
        finish_law(law);
    }

    const VerifyArgs& args_;
    Workspace& workspace_;
};

struct LazySlots {
    const Request<LazyLaws>& request;
    Slot operator()(int i) const { return request.slot(i); }
};

class RequestVerifier {
  public:
    RequestVerifier(const VerifyArgs& args, int64_t b, Workspace& workspace)
        : args_(args),
          b_(b),
          workspace_(workspace),
          laws_(args, workspace),
          request_(args, b, laws_) {}

    void rejection_sample() {
        if (is_absent(args_, b_)) return skip();
        ending_ = request_.is_block_rule() ? accept_block() : accept_tokens();
        const Law& law = request_.target_law(ending_.accepted);
        int32_t status;
        const int64_t last = final_token(request_, law, ending_, *this, &status);
        write_tokens(args_, b_, request_, ending_.accepted, last, status);
        if (args_.logprobs != nullptr) write_logprobs();
    }

    // What block_accept decides by, for every position.
    void block_acceptance() {
        const int64_t begin = b_ * args_.num_drafts;
        double* prefix = args_.prefix_prob + begin;
        const int drafts = is_absent(args_, b_) ? 0 : request_.num_drafts();
        const int n = prefix_products(drafts, LazySlots{request_}, prefix).count;
        for (int i = 0; i < args_.num_drafts; ++i) {
            if (i >= n) prefix[i] = 0.0;
            const double mass = i + 1 < n ? residual_mass(i + 1, prefix[i]) : 0.0;
            args_.residual_mass[begin + i] = mass;
            args_.accept_prob[begin + i] =
                i + 1 < n ? accept_probability(prefix[i], mass) : prefix[i];
        }
    }

    // What final_token asks for.
    bool use_residual() {
        const int i = ending_.accepted;
        const Law& law = request_.target_law(i);
        proposal_ = request_.proposal(i);
        draws_residual_ = true;
        if (residual_row_ != i) residual(law, ending_.prefix, proposal_, workspace_);
        return add_totals(law, workspace_.totals) > 0.0;
    }
    void use_law() { draws_residual_ = false; }
    int64_t draw(double u) {
        const Law& law = request_.target_law(ending_.accepted);
        if (!draws_residual_) return DSPARK_ISA::draw(law, u, workspace_);
        return draw_residual(law, ending_.prefix, proposal_, u, workspace_);
    }

  private:
    void skip() {
        write_absent(args_, b_);
        const int64_t begin = b_ * (args_.num_drafts + 1);
        for (int i = 0; i <= args_.num_drafts && args_.logprobs != nullptr; ++i) {
            args_.logprobs[begin + i] = 0.0f;
        }
    }

    Ending accept_tokens() {
        return token_accept(
            request_.num_drafts(), LazySlots{request_},
            [this](int i, const Slot& slot) { return token_accepts(args_, request_, i, slot); });
    }

    Ending accept_block() {
        double* prefix = workspace_.prefixes;
        return block_accept(
            prefix_products(request_.num_drafts(), LazySlots{request_}, prefix), prefix,
            [this](int i) { return request_.accept_draw(i, Stream::kAccept); },
            [this, prefix](int i) { return residual_mass(i, prefix[i - 1]); });
    }

    // Of row i over the proposal of slot i. Leaves its tile totals in the workspace unless the
    // proposal is one-hot.
    double residual_mass(int i, double prefix) {
        const Slot slot = request_.slot(i);
        if (slot.proposal.kind == Proposal::Kind::kOneHot) return one_hot_mass(prefix, slot.p);
        residual_row_ = i;
        return residual(request_.target_law(i), prefix, slot.proposal, workspace_);
    }

    void write_logprobs() {
        const int64_t begin = b_ * (args_.num_drafts + 1);
        for (int i = 0; i <= args_.num_drafts; ++i) {
            args_.logprobs[begin + i] =
                i <= ending_.accepted
                    ? log_probability(request_.target_law(i), args_.token_ids[begin + i])
                    : 0.0f;
        }
    }

    const VerifyArgs& args_;
    const int64_t b_;
    Workspace& workspace_;
    LazyLaws laws_;
    Request<LazyLaws> request_;
    Ending ending_ = {};
    Proposal proposal_ = {};
    bool draws_residual_ = false;
    int residual_row_ = -1;  // the row whose residual totals the workspace holds
};

}  // namespace dspark::DSPARK_ISA::sampling
