// The rules of routing, docs/numerics.md section 12: scores, the order of the experts, weights.
// What differs between backends is how experts are spread over vectors or threads.
//
// Templates on V take floats and the vectors of a CPU.
#pragma once

#include "device/dtype.h"
#include "device/numeric.h"
#include "ops/router/args.h"

namespace dspark::DSPARK_ISA::router {

constexpr float kNotChosen = -kInfinity;  // biased scores are finite or +inf
constexpr float kLeast = -kFltMax;        // an expert whose bias is -inf
constexpr float kSmallestScore = 0x1p-100f;
constexpr float kRenormalizeGuard = 1e-20f;

// ---- scores -------------------------------------------------------------------------------------

// A logit as it enters the arithmetic. Of a NaN: some value, the row does not count.
template <class V>
DSPARK_DEVICE V clamp_logit(V x) {
    return select(less(x, V(kFltMax)), x, V(kFltMax));
}

template <class V>
DSPARK_DEVICE V drop_small(V score) {
    return zero_if(less(score, V(kSmallestScore)), score);
}

// The terms of a softmax: numerators with the largest logit of the row, 0 if that is -inf, and
// scores with their sum, 1 if that is 0.
template <class V>
DSPARK_DEVICE V softmax_numerator(V x, V maximum) {
    return exp_nonpositive(x - maximum);
}
template <class V>
DSPARK_DEVICE V softmax_score(V numerator, V sum) {
    return drop_small(numerator / sum);
}
DSPARK_DEVICE float softmax_maximum(float maximum) {
    return maximum > -kInfinity ? maximum : 0.0f;
}
DSPARK_DEVICE float softmax_sum(float sum) {
    return sum > 0.0f ? sum : 1.0f;
}

// The logistic function, and the square root of log(1 + e^x).
template <class V>
DSPARK_DEVICE V sigmoid_score(V x) {
    const V negative = V(0.0f) - x;
    const V t = exp_nonpositive(select(less(x, V(0.0f)), x, negative));
    return drop_small(select(less(x, V(0.0f)), t, V(1.0f)) / (V(1.0f) + t));
}
template <class V>
DSPARK_DEVICE V sqrt_softplus_score(V x) {
    const V negative = V(0.0f) - x;
    const V t = exp_nonpositive(select(less(x, V(0.0f)), x, negative));
    return drop_small(square_root(select(less(x, V(0.0f)), V(0.0f), x) + log1p_unit(t)));
}

// What experts are ordered by; NaN where the bias is.
template <class V>
DSPARK_DEVICE V biased_score(V score, V bias) {
    const V sum = score + bias;
    return select(less(sum, V(kLeast)), V(kLeast), sum);
}

// ---- groups -------------------------------------------------------------------------------------

// The two best biased scores of a group.
struct BestTwo {
    float first = kNotChosen;
    float second = kNotChosen;

    DSPARK_DEVICE void add(float biased) {
        const float lower = biased < first ? biased : first;
        second = lower > second ? lower : second;
        first = biased > first ? biased : first;
    }
    // A group of one expert has the score of that expert.
    DSPARK_DEVICE float group_score() const {
        return second == kNotChosen ? first : first + second;
    }
};

// Whether group g is among the best: scores descending, ties to the lowest index. Scores are
// `scores[begin + g]`.
template <class Scores>
DSPARK_DEVICE bool is_kept_group(const RouteArgs& args, const Scores& scores, int begin, int g) {
    const float own = scores[begin + g];
    int before = 0;
    for (int other = 0; other < args.num_groups; ++other) {
        const float score = scores[begin + other];
        before += score > own || (score == own && other < g) ? 1 : 0;
    }
    return before < args.topk_groups;
}

// ---- slots --------------------------------------------------------------------------------------

DSPARK_DEVICE int32_t num_slots(const RouteArgs& args) {
    return args.num_chosen + (args.has_shared_expert ? 1 : 0);
}

// A row that gives nothing: its ids are 0 .. k - 1, its weights 0.
DSPARK_DEVICE bool is_dead_row(int32_t status) {
    return (status & (kRouteNan | kRouteInvalidId)) != 0;
}

// The row of the hash table that a token chooses, or -1.
DSPARK_DEVICE int64_t hash_row(const RouteArgs& args, int64_t token) {
    int64_t id = 0;
    if (args.hash_ids_are_wide) {
        id = global_cast<const int64_t>(args.hash_ids)[token];
    } else {
        const int32_t narrow = global_cast<const int32_t>(args.hash_ids)[token];
        id = narrow;
    }
    return id >= 0 && id < args.hash_rows ? id : -1;
}

// The score that the weight of a chosen expert is made from.
DSPARK_DEVICE float counted_score(float score, float biased) {
    return biased <= kLeast ? 0.0f : score;
}

// `sum`: of the counted scores of all slots, in slot order.
DSPARK_DEVICE float slot_weight(const RouteArgs& args, float score, float sum) {
    const float share = args.renormalize ? score / (sum + kRenormalizeGuard) : score;
    return share * args.scale;
}

}  // namespace dspark::DSPARK_ISA::router
