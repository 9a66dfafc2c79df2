// One request as the rules of algorithm.h see it: its rows, its slots, its random numbers.
// docs/numerics.md sections 5, 7 and 8.
#pragma once

#include "device/philox.h"
#include "ops/sampling/args.h"

namespace dspark::DSPARK_ISA::sampling {

DSPARK_DEVICE Global<const void> row_at(const RowsView& view, int64_t request, int64_t row) {
    const int64_t element = view.dtype == FloatType::kFloat32 ? 4 : 2;
    const int64_t offset = request * view.request_stride + row * view.row_stride;
    return global_cast<const char>(view.data) + offset * element;
}

// 0 means greedy.
DSPARK_DEVICE float target_temperature(const VerifyArgs& args, int64_t b) {
    return args.method == Method::kGreedy ? 0.0f : args.law.temperature[b];
}

// What the drafter proposed at one slot: an id, and the distribution it was drawn from as a law or
// as given probabilities. Neither: one-hot at the id.
struct Proposal {
    enum class Kind { kOneHot, kLaw, kProbs };

    int64_t id;
    Kind kind;
    Law law;
    Global<const float> probs;
    int32_t vocab;  // entries of probs

    DSPARK_DEVICE double q() const {
        switch (kind) {
            case Kind::kLaw:
                return probability(law, id);
            case Kind::kProbs:
                return id < vocab ? static_cast<double>(probs[id]) : 0.0;
            case Kind::kOneHot:
                break;
        }
        return 1.0;
    }
};

// One draft slot. Without a proposal the block ends there, and `status` says why.
struct Slot {
    bool has_proposal;
    int32_t status;
    Proposal proposal;
    double p;  // of the drafted id under the target law
    double q;  // and under the proposal
};

// Laws provides target(b, i), the law of row R_i of request b, and draft(b, i), that of slot i.
template <class Laws>
class Request {
  public:
    DSPARK_DEVICE Request(const VerifyArgs& args, int64_t b, Laws& laws)
        : args_(args),
          laws_(laws),
          b_(b),
          num_drafts_(static_cast<int>(args.query_start_loc[b + 1] - args.query_start_loc[b] - 1)),
          uses_q_(target_temperature(args, b) != 0.0f) {}

    DSPARK_DEVICE int num_drafts() const { return num_drafts_; }
    // False: greedy.
    DSPARK_DEVICE bool uses_q() const { return uses_q_; }
    DSPARK_DEVICE bool is_block_rule() const { return args_.method == Method::kBlock && uses_q_; }
    DSPARK_DEVICE decltype(auto) target_law(int i) const { return laws_.target(b_, i); }

    DSPARK_DEVICE int64_t draft_id(int i) const {
        return args_.draft_token_ids[b_ * args_.draft_ids_stride + i];
    }

    // Of the first draft with stream ACCEPT or SYNTHETIC.
    DSPARK_DEVICE double accept_draw(int i, Stream stream) const {
        if (args_.uniforms != nullptr) return args_.uniforms[b_ * (args_.num_drafts + 1) + i];
        return uniform(args_.seeds[b_], args_.positions[b_] + i, stream, i);
    }

    // Of the token after `accepted` drafts.
    DSPARK_DEVICE double final_draw(int accepted) const {
        if (args_.uniforms != nullptr) {
            return args_.uniforms[b_ * (args_.num_drafts + 1) + args_.num_drafts];
        }
        return uniform(args_.seeds[b_], args_.positions[b_] + accepted, Stream::kResample, 0);
    }

    // What the drafter proposed at slot i, whether or not it is valid.
    DSPARK_DEVICE Proposal proposal(int i) const {
        Proposal proposal = {};
        proposal.id = draft_id(i);
        if (!uses_q_) return proposal;
        if (args_.draft_probs.data != nullptr) {
            proposal.kind = Proposal::Kind::kProbs;
            proposal.probs = global_cast<const float>(row_at(args_.draft_probs, b_, i));
            proposal.vocab = args_.draft_probs.vocab;
        } else if (args_.draft_logits.data != nullptr && args_.draft_temperature[b_] != 0.0f) {
            proposal.kind = Proposal::Kind::kLaw;
            proposal.law = laws_.draft(b_, i);
        }
        return proposal;
    }

    DSPARK_DEVICE Slot slot(int i) const {
        Slot slot = {};
        slot.proposal.id = draft_id(i);
        const int64_t id = slot.proposal.id;
        if (id < 0 || id >= args_.target_logits.vocab) {
            slot.status = id == -1 ? 0 : kInvalidId;
            return slot;
        }
        const Law& target = laws_.target(b_, i);
        if (target.has_nan || target.is_empty) return slot;
        slot.proposal = proposal(i);
        slot.p = probability(target, id);
        slot.q = slot.proposal.q();
        if (!is_distribution(slot)) slot.status = kInvalidDraft;
        slot.has_proposal = slot.status == 0;
        return slot;
    }

  private:
    DSPARK_DEVICE static bool is_distribution(const Slot& slot) {
        if (slot.proposal.kind == Proposal::Kind::kLaw) {
            return !slot.proposal.law.has_nan && !slot.proposal.law.is_empty;
        }
        return slot.q >= 0.0 && slot.q <= 1.0 + 1e-6;
    }

    const VerifyArgs& args_;
    Laws& laws_;
    const int64_t b_;
    const int num_drafts_;
    const bool uses_q_;
};

}  // namespace dspark::DSPARK_ISA::sampling
