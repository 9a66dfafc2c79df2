// Verification of one request, step by step: row_statistics, filter_cut, token_accept or
// block_accept, residual, draw, finalise. The same names stand in python/dspark_ext/reference.
//
// Token rule: Leviathan et al. 2023 (arXiv 2211.17192). Block rule: Sun et al. 2024
// (arXiv 2403.10444, algorithm 2). Arithmetic: docs/numerics.md sections 7 and 8.
#pragma once

#include "device/philox.h"
#include "ops/sampling/laws.h"
#include "ops/sampling/residual.h"

namespace dspark::DSPARK_ISA::sampling {

// How a block ended: `accepted` drafts stand. The next token comes from the residual of `prefix`
// times the target law over the proposal of the next slot or, if that has none, from the target
// law.
struct Ending {
    int accepted;
    bool has_proposal;
    double prefix;
};

class RequestVerifier {
  public:
    RequestVerifier(const VerifyArgs& args, int64_t request, Workspace& workspace)
        : args_(args),
          b_(request),
          first_row_(args.query_start_loc[request]),
          num_drafts_(static_cast<int>(args.query_start_loc[request + 1] - first_row_ - 1)),
          uses_q_(target_temperature(args, request) != 0.0f),
          workspace_(workspace) {}

    void rejection_sample() {
        const bool is_block = args_.method == Method::kBlock && uses_q_;
        finalise(is_block ? block_accept() : token_accept());
    }

    // What block_accept decides by, for every position.
    void block_acceptance() {
        double* prefix = args_.prefix_prob + b_ * args_.num_drafts;
        double* mass = args_.residual_mass + b_ * args_.num_drafts;
        double* accept = args_.accept_prob + b_ * args_.num_drafts;
        const int n = prefix_products(prefix);
        for (int i = 0; i < args_.num_drafts; ++i) {
            if (i >= n) prefix[i] = 0.0;
            mass[i] = i + 1 < n ? residual_mass(i + 1, prefix[i]) : 0.0;
            accept[i] = i + 1 < n ? accept_probability(prefix[i], mass[i]) : prefix[i];
        }
    }

  private:
    // One draft after the other; the first failure ends the block.
    Ending token_accept() {
        for (int i = 0; i < num_drafts_; ++i) {
            Proposal proposal;
            if (!find_proposal(i, &proposal)) return {i, false, 1.0};
            if (!accepts(i, proposal)) return {i, true, 1.0};
        }
        return {num_drafts_, false, 1.0};
    }

    bool accepts(int i, const Proposal& proposal) {
        if (args_.method == Method::kSynthetic) {
            const double rate = static_cast<double>(args_.synthetic_rates[i]);
            return accept_draw(i, Stream::kSynthetic) < rate;
        }
        const Law& law = target_law(i);
        if (law.is_greedy) return proposal.id == law.argmax;
        return accept_draw(i, Stream::kAccept) * proposal.q() < probability(law, proposal.id);
    }

    // The largest i with u_i < accept_i, searched from the end. Since accept_i <= prefix_i, a
    // residual mass is computed only where u_i < prefix_i.
    Ending block_accept() {
        double* prefix = workspace_.prefixes;
        const int n = prefix_products(prefix);
        for (int i = n; i > 0; --i) {
            const double u = accept_draw(i - 1, Stream::kAccept);
            if (!(u < prefix[i - 1])) continue;
            if (i == n) return {i, false, prefix[i - 1]};
            const double mass = residual_mass(i, prefix[i - 1]);
            if (u < accept_probability(prefix[i - 1], mass)) return {i, true, prefix[i - 1]};
        }
        return {0, n > 0, 1.0};
    }

    // prefix[i - 1] = prefix_i. Returns the number of slots before the first without a proposal, or
    // before the end of interest: beyond a prefix of 0 nothing can be accepted.
    int prefix_products(double* prefix) {
        double last = 1.0;
        for (int i = 0; i < num_drafts_; ++i) {
            Proposal proposal;
            if (!find_proposal(i, &proposal)) return i;
            const double p = probability(target_law(i), proposal.id);
            const double q = proposal.q();
            const double next = q > 0.0 ? last * p / q : p > 0.0 ? 1.0 : 0.0;
            last = next < 1.0 ? next : 1.0;
            prefix[i] = last;
            if (last == 0.0) return i + 1;
        }
        return num_drafts_;
    }

    static double accept_probability(double prefix, double mass) {
        const double denominator = mass + (1.0 - prefix);
        const double accept = denominator == 0.0 ? 1.0 : mass / denominator;
        return accept < prefix ? accept : prefix;
    }

    // Mass of max(prefix p - q, 0) of row i over the proposal of slot i. Leaves its tile totals in
    // the workspace unless the proposal is one-hot.
    double residual_mass(int i, double prefix) {
        Proposal proposal;
        find_proposal(i, &proposal);
        const Law& law = target_law(i);
        if (proposal.is_one_hot()) return prefix * (1.0 - probability(law, proposal.id));
        residual_row_ = i;
        return residual(law, prefix, proposal, workspace_);
    }

    void finalise(const Ending& ending) {
        const int tau = ending.accepted;
        const Law& law = target_law(tau);
        int32_t status = law.has_nan ? kNanRow : 0;
        if (law.is_empty) status |= kEmptyRow;
        if (!ending.has_proposal) status |= cut_status_;

        int64_t* tokens = args_.token_ids + b_ * (args_.num_drafts + 1);
        for (int i = 0; i < tau; ++i) tokens[i] = draft_id(i);
        tokens[tau] = final_token(law, ending, &status);
        for (int i = tau + 1; i <= args_.num_drafts; ++i) tokens[i] = -1;
        args_.num_accepted[b_] = tau;
        args_.num_emitted[b_] = tau + 1;
        args_.last_token[b_] = tokens[tau];
        args_.status[b_] = status;
        if (args_.logprobs == nullptr) return;
        float* logprobs = args_.logprobs + b_ * (args_.num_drafts + 1);
        for (int i = 0; i <= args_.num_drafts; ++i) {
            logprobs[i] = i <= tau ? log_probability(target_law(i), tokens[i]) : 0.0f;
        }
    }

    int64_t final_token(const Law& law, const Ending& ending, int32_t* status) {
        if (law.is_empty || law.is_greedy) return law.argmax;
        const int tau = ending.accepted;
        const double u =
            args_.uniforms != nullptr
                ? args_.uniforms[b_ * (args_.num_drafts + 1) + args_.num_drafts]
                : uniform(args_.seeds[b_], args_.positions[b_] + tau, Stream::kResample, 0);
        if (ending.has_proposal) {
            Proposal proposal;
            find_proposal(tau, &proposal);
            if (residual_row_ != tau) residual(law, ending.prefix, proposal, workspace_);
            const int64_t id = draw_residual(law, ending.prefix, proposal, u, workspace_);
            if (id >= 0) return id;
            *status |= kZeroResidual;
        }
        return draw(law, u, workspace_);
    }

    // False, and the status to report, if slot i has no proposal.
    bool find_proposal(int i, Proposal* proposal) {
        *proposal = {draft_id(i), nullptr, nullptr, 0};
        cut_status_ = 0;
        if (proposal->id < 0 || proposal->id >= args_.target_logits.vocab) {
            cut_status_ = proposal->id == -1 ? 0 : kInvalidId;
            return false;
        }
        const Law& target = target_law(i);
        if (target.has_nan || target.is_empty) return false;
        if (!uses_q_) return true;
        if (args_.draft_probs.data != nullptr) {
            proposal->probs = static_cast<const float*>(row_at(args_.draft_probs, b_, i));
            proposal->vocab = args_.draft_probs.vocab;
            const double q = proposal->q();
            if (!(q >= 0.0 && q <= 1.0 + 1e-6)) cut_status_ = kInvalidDraft;
        } else if (args_.draft_logits.data != nullptr && args_.draft_temperature[b_] != 0.0f) {
            proposal->law = &draft_law(args_, b_, i, workspace_);
            if (proposal->law->has_nan || proposal->law->is_empty) cut_status_ = kInvalidDraft;
        }
        return cut_status_ == 0;
    }

    double accept_draw(int i, Stream stream) const {
        if (args_.uniforms != nullptr) return args_.uniforms[b_ * (args_.num_drafts + 1) + i];
        return uniform(args_.seeds[b_], args_.positions[b_] + i, stream, i);
    }

    int64_t draft_id(int i) const { return args_.draft_token_ids[b_ * args_.draft_ids_stride + i]; }

    const Law& target_law(int i) {
        return sampling::target_law(args_, b_, first_row_ + i, workspace_);
    }

    const VerifyArgs& args_;
    const int64_t b_;
    const int64_t first_row_;
    const int num_drafts_;
    const bool uses_q_;  // false: greedy
    Workspace& workspace_;
    int32_t cut_status_ = 0;  // of the slot that find_proposal looked at last
    int residual_row_ = -1;   // the row whose residual totals the workspace holds
};

}  // namespace dspark::DSPARK_ISA::sampling
