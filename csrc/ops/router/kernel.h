// Kernels of the router family: a warp or a block per token, see team.h. The steps are those of
// algorithm.h. Scores lie in shared memory, so that the code of a score stands here once; the
// choice, which looks at all of them k times, is made in registers.
#pragma once

#include "ops/router/algorithm.h"
#include "ops/router/team.h"

namespace dspark::DSPARK_ISA::router {

constexpr int kCanonicalLanes = 256;

// Teams of one block share it; each has its part.
template <class Team, int N>
struct RouteShared {
    static constexpr int kTeams = kThreads / Team::kSize;
    typename Team::Scratch scratch;
    SharedArray<float, kThreads * N> score;  // logits before
    SharedArray<float, kThreads * N> biased;
    SharedArray<float, kTeams * kMostGroups> group_score;
    SharedArray<int32_t, kTeams * kMostGroups> group_kept;
    SharedArray<int32_t, kTeams * kMostChosen> chosen;
    SharedArray<float, kTeams * kMostChosen> chosen_score;
};

// Each member of the team works on its own experts, up to N of them; where it needs those of others
// the team synchronises first.
template <class Team, int N>
class TokenRouter {
  public:
    using Shared = RouteShared<Team, N>;

    DSPARK_DEVICE TokenRouter(const RouteArgs& args, int64_t token, Shared& shared)
        : args_(args), token_(token), shared_(shared), team_{shared.scratch} {}

    DSPARK_DEVICE void run() {
        const int32_t status = choose();
        team_.sync();
        store_slots(status);
    }

  private:
    DSPARK_DEVICE static int experts_begin() { return Team::index() * Team::kSize * N; }
    DSPARK_DEVICE static int groups_begin() { return Team::index() * kMostGroups; }
    DSPARK_DEVICE static int slots_begin() { return Team::index() * kMostChosen; }

    // visit(e, at) for each own expert e, which lies at `at` in shared memory.
    template <class Visit>
    DSPARK_DEVICE void visit_own(Visit&& visit) const {
        for (int e = Team::rank(); e < args_.num_experts; e += Team::kSize) {
            visit(e, experts_begin() + e);
        }
    }

    // Returns the status of the row; unless it is dead, the chosen experts are in shared memory.
    DSPARK_DEVICE int32_t choose() {
        const LogitFacts facts = load_logits();
        if (facts.has_nan) return kRouteNan;
        score(facts.maximum);
        const int32_t status = facts.maximum > -kInfinity ? 0 : kRouteEmpty;
        if (args_.hash_ids != nullptr) {
            return choose_by_hash() ? status : status | kRouteInvalidId;
        }
        if (!bias()) return kRouteNan;
        if (args_.num_groups > 1) drop_groups();
        choose_by_score();
        return status;
    }

    // ---- logits and scores ----------------------------------------------------------------------

    struct LogitFacts {
        float maximum;
        bool has_nan;
    };

    DSPARK_DEVICE LogitFacts load_logits() {
        switch (args_.dtype) {
            case FloatType::kBFloat16:
                return load_from(global_cast<const BFloat16>(args_.logits));
            case FloatType::kFloat16:
                return load_from(global_cast<const Float16>(args_.logits));
            case FloatType::kFloat32:
                break;
        }
        return load_from(global_cast<const float>(args_.logits));
    }

    template <class T>
    DSPARK_DEVICE LogitFacts load_from(Global<const T> logits) {
        const Global<const T> row = logits + token_ * args_.row_stride;
        float largest = -kInfinity;
        bool has_nan = false;
        visit_own([&](int e, int at) {
            const T raw = row[e];
            const float x = to_float(raw);
            has_nan = has_nan || x != x;
            shared_.score[at] = clamp_logit(x);
            largest = x > largest ? x : largest;
        });
        return {team_.max(largest < kFltMax ? largest : kFltMax), team_.any(has_nan)};
    }

    // Logits become scores.
    DSPARK_DEVICE void score(float maximum) {
        if (args_.scoring == Scoring::kSigmoid) {
            map_scores([](float x) { return sigmoid_score(x); });
        } else if (args_.scoring == Scoring::kSqrtSoftplus) {
            map_scores([](float x) { return sqrt_softplus_score(x); });
        } else {
            const float shift = softmax_maximum(maximum);
            map_scores([=](float x) { return softmax_numerator(x, shift); });
            const float divisor = softmax_sum(canonical_sum());
            map_scores([=](float x) { return softmax_score(x, divisor); });
        }
    }

    template <class Map>
    DSPARK_DEVICE void map_scores(Map&& map) {
        visit_own([&](int, int at) {
            const float x = shared_.score[at];
            shared_.score[at] = map(x);
        });
    }

    // The canonical sum of docs/numerics.md section 3: expert e is in lane e mod 256. Lanes that
    // the team leaves empty would add zeros.
    DSPARK_DEVICE float canonical_sum() {
        constexpr int kMost = kCanonicalLanes / Team::kSize;
        constexpr int kLanesOfMember = N < kMost ? N : kMost;
        float lane[kLanesOfMember];
        for (int j = 0; j < N; ++j) {
            const int e = Team::rank() + j * Team::kSize;
            float x = 0.0f;
            if (e < args_.num_experts) x = shared_.score[experts_begin() + e];
            lane[j % kLanesOfMember] = j < kLanesOfMember ? x : lane[j % kLanesOfMember] + x;
        }
        for (int half = kLanesOfMember / 2; half > 0; half /= 2) {
            for (int j = 0; j < half; ++j) lane[j] += lane[j + half];
        }
        return team_.tree_sum(lane[0]);
    }

    // False: a biased score is NaN.
    DSPARK_DEVICE bool bias() {
        bool has_nan = false;
        visit_own([&](int e, int at) {
            float biased = shared_.score[at];
            if (args_.bias != nullptr) {
                const float bias = args_.bias[e];
                biased = biased_score(biased, bias);
            }
            has_nan = has_nan || biased != biased;
            shared_.biased[at] = biased;
        });
        return args_.bias == nullptr || !team_.any(has_nan);
    }

    // ---- the choice -----------------------------------------------------------------------------

    DSPARK_DEVICE void drop_groups() {
        team_.sync();
        const int size = args_.num_experts / args_.num_groups;
        visit_groups([&](int g, int at) {
            const int begin = experts_begin() + g * size;
            BestTwo best;
            int i = g % size;  // members start apart: no two at one bank
            for (int step = 0; step < size; ++step) {
                best.add(shared_.biased[begin + i]);
                i = i + 1 < size ? i + 1 : 0;
            }
            shared_.group_score[at] = best.group_score();
        });
        team_.sync();
        visit_groups([&](int g, int at) {
            const bool is_kept = is_kept_group(args_, shared_.group_score, groups_begin(), g);
            shared_.group_kept[at] = is_kept ? 1 : 0;
        });
        team_.sync();
        visit_own([&](int e, int at) {
            const int is_kept = shared_.group_kept[groups_begin() + e / size];
            if (is_kept == 0) shared_.biased[at] = kNotChosen;
        });
    }

    template <class Visit>
    DSPARK_DEVICE void visit_groups(Visit&& visit) const {
        for (int g = Team::rank(); g < args_.num_groups; g += Team::kSize) {
            visit(g, groups_begin() + g);
        }
    }

    // Ascends with the biased score and, among equals, descends with the id.
    DSPARK_DEVICE static uint64_t key_of(float biased, int id) {
        const uint32_t bits = bit_cast<uint32_t>(biased);
        const uint32_t ascending = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
        return uint64_t{ascending} << 32 | static_cast<uint32_t>(~id);
    }

    DSPARK_DEVICE void choose_by_score() {
        float biased[N];
        for (int j = 0; j < N; ++j) {
            const int e = Team::rank() + j * Team::kSize;
            biased[j] = kNotChosen;
            if (e < args_.num_experts) biased[j] = shared_.biased[experts_begin() + e];
        }
        for (int s = 0; s < args_.num_chosen; ++s) {
            float best = biased[0];
            int best_j = 0;
            for (int j = 1; j < N; ++j) {
                best_j = biased[j] > best ? j : best_j;
                best = biased[j] > best ? biased[j] : best;
            }
            const int own = Team::rank() + best_j * Team::kSize;
            const uint64_t key = team_.max(key_of(best, own));
            const int id = static_cast<int>(~static_cast<uint32_t>(key));
            if (id != own) continue;
            shared_.chosen[slots_begin() + s] = id;
            const float score = shared_.score[experts_begin() + id];
            shared_.chosen_score[slots_begin() + s] = counted_score(score, best);
            for (int j = 0; j < N; ++j) biased[j] = j == best_j ? kNotChosen : biased[j];
        }
    }

    // False: an id is out of range.
    DSPARK_DEVICE bool choose_by_hash() {
        team_.sync();
        const int64_t row = hash_row(args_, token_);
        bool is_invalid = row < 0;
        for (int s = Team::rank(); row >= 0 && s < args_.num_chosen; s += Team::kSize) {
            const int32_t id = args_.hash_table[row * args_.num_chosen + s];
            if (id < 0 || id >= args_.num_experts) {
                is_invalid = true;
                continue;
            }
            const float score = shared_.score[experts_begin() + id];
            shared_.chosen[slots_begin() + s] = id;
            shared_.chosen_score[slots_begin() + s] = score;
        }
        return !team_.any(is_invalid);
    }

    // ---- the result -----------------------------------------------------------------------------

    DSPARK_DEVICE void store_slots(int32_t status) {
        const bool is_dead = is_dead_row(status);
        const int32_t slots = num_slots(args_);
        float sum = 0.0f;
        for (int s = 0; !is_dead && s < args_.num_chosen; ++s) {
            sum += shared_.chosen_score[slots_begin() + s];
        }
        for (int s = Team::rank(); s < slots; s += Team::kSize) {
            int32_t id = s < args_.num_chosen ? s : args_.num_experts;
            float weight = 0.0f;
            if (!is_dead && s < args_.num_chosen) {
                id = shared_.chosen[slots_begin() + s];
                weight = slot_weight(args_, shared_.chosen_score[slots_begin() + s], sum);
            } else if (!is_dead) {
                weight = args_.shared_expert_weight;
            }
            args_.ids[token_ * slots + s] = id;
            args_.weights[token_ * slots + s] = weight;
        }
        if (Team::rank() == 0) args_.status[token_] = status;
    }

    const RouteArgs& args_;
    int64_t token_;
    Shared& shared_;
    Team team_;
};

// A warp per token, for up to N W experts.
template <int W, int N>
DSPARK_KERNEL(kThreads)
void route_by_warp_kernel(RouteArgs args) {
    check_warp_size<W>();
    using Team = WarpTeam<W>;
    using Shared = RouteShared<Team, N>;
    DSPARK_SHARED(Shared, shared);
    const int64_t token = int64_t{block_idx().x} * kWarps<W> + warp_index<W>();
    if (token >= args.num_tokens) return;
    TokenRouter<Team, N>(args, token, shared).run();
}

// A block per token, for up to N kThreads experts.
template <int W, int N>
DSPARK_KERNEL(kThreads)
void route_by_block_kernel(RouteArgs args) {
    check_warp_size<W>();
    using Team = BlockTeam<W>;
    using Shared = RouteShared<Team, N>;
    DSPARK_SHARED(Shared, shared);
    TokenRouter<Team, N>(args, block_idx().x, shared).run();
}

}  // namespace dspark::DSPARK_ISA::router
