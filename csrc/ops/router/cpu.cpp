// CPU kernel of the router family; compiled once per instruction set, in namespace
// dspark::DSPARK_ISA.
#include "ops/router/cpu.h"

#include "backends/cpu/tile.h"
#include "ops/router/algorithm.h"

namespace dspark::DSPARK_ISA {

using namespace router;

namespace {

constexpr int kWidth = FloatVector::kWidth;
constexpr int kPadding = 4 * kWidth;  // canonical_sum reads so many entries at a time

int padded(int count) {
    return (count + kWidth - 1) / kWidth * kWidth;
}

// Per expert; what lies past the last one is never chosen and has score 0.
using Experts = float[kMostExperts + kPadding];

struct Buffers {
    alignas(64) Experts logit;
    alignas(64) Experts score;
    alignas(64) Experts biased;
    alignas(64) Experts bias;
    int32_t chosen[kMostChosen];
    float chosen_score[kMostChosen];
};

float largest_lane(FloatVector v) {
    float lanes[kWidth];
    store(lanes, v);
    float largest = lanes[0];
    for (float lane : lanes) largest = lane > largest ? lane : largest;
    return largest;
}

// ---- logits -------------------------------------------------------------------------------------

struct RowFacts {
    float maximum;
    bool has_nan;
};

template <class T>
RowFacts read_logits(const T* row, int count, float* logit) {
    const int whole = count / kWidth * kWidth;
    for (int i = whole; i < padded(count); ++i) {
        logit[i] = i < count ? to_float(row[i]) : -kInfinity;
    }
    FloatVector largest(-kInfinity);
    VectorMask nan = is_nan(largest);
    for (int i = 0; i < padded(count); i += kWidth) {
        const FloatVector raw = i < whole ? load(row + i) : load(logit + i);
        nan = nan | is_nan(raw);
        const FloatVector x = clamp_logit(raw);
        store(logit + i, x);
        largest = max(x, largest);
    }
    return {largest_lane(largest), any(nan)};
}

RowFacts read_logits(const RouteArgs& args, int64_t token, float* logit) {
    const int64_t begin = token * args.row_stride;
    switch (args.dtype) {
        case FloatType::kBFloat16:
            return read_logits(static_cast<const BFloat16*>(args.logits) + begin, args.num_experts,
                               logit);
        case FloatType::kFloat16:
            return read_logits(static_cast<const Float16*>(args.logits) + begin, args.num_experts,
                               logit);
        case FloatType::kFloat32:
            break;
    }
    return read_logits(static_cast<const float*>(args.logits) + begin, args.num_experts, logit);
}

// ---- scores -------------------------------------------------------------------------------------

template <class Score>
void score_all(int count, const float* from, float* to, const Score& score) {
    for (int i = 0; i < padded(count); i += kWidth) store(to + i, score(load(from + i)));
}

void score_experts(const RouteArgs& args, float maximum, const float* logit, float* score) {
    const int count = args.num_experts;
    if (args.scoring == Scoring::kSigmoid) {
        return score_all(count, logit, score, [](FloatVector x) { return sigmoid_score(x); });
    }
    if (args.scoring == Scoring::kSqrtSoftplus) {
        return score_all(count, logit, score, [](FloatVector x) { return sqrt_softplus_score(x); });
    }
    const FloatVector shift(softmax_maximum(maximum));
    score_all(count, logit, score, [&](FloatVector x) { return softmax_numerator(x, shift); });
    for (int i = padded(count); i < count + kPadding; ++i) score[i] = 0.0f;
    const float sum = canonical_sum(count, [&](int i) { return load(score + i); });
    const FloatVector divisor(softmax_sum(sum));
    score_all(count, score, score, [&](FloatVector e) { return softmax_score(e, divisor); });
}

// False: a biased score is NaN.
bool bias_experts(const RouteArgs& args, Buffers& buffers) {
    const int count = args.num_experts;
    VectorMask nan = is_nan(FloatVector(0.0f));
    for (int i = 0; i < padded(count); i += kWidth) {
        FloatVector biased = load(buffers.score + i);
        if (args.bias != nullptr) {
            biased = biased_score(biased, load(buffers.bias + i));
            nan = nan | is_nan(biased);
        }
        store(buffers.biased + i, biased);
    }
    for (int i = count; i < padded(count); ++i) buffers.biased[i] = kNotChosen;
    return !any(nan);
}

// ---- the choice ---------------------------------------------------------------------------------

void drop_groups(const RouteArgs& args, float* biased) {
    const int size = args.num_experts / args.num_groups;
    float scores[kMostGroups];
    for (int g = 0; g < args.num_groups; ++g) {
        BestTwo best;
        for (int i = g * size; i < (g + 1) * size; ++i) best.add(biased[i]);
        scores[g] = best.group_score();
    }
    for (int g = 0; g < args.num_groups; ++g) {
        if (is_kept_group(args, scores, 0, g)) continue;
        for (int i = g * size; i < (g + 1) * size; ++i) biased[i] = kNotChosen;
    }
}

// The first entry with the largest biased score.
int best_expert(const float* biased, int count) {
    FloatVector largest(kNotChosen);
    for (int i = 0; i < count; i += kWidth) largest = max(load(biased + i), largest);
    const FloatVector best(largest_lane(largest));
    for (int i = 0; i < count; i += kWidth) {
        const uint32_t lanes = lanes_at_least(load(biased + i), best);
        if (lanes != 0) return i + __builtin_ctz(lanes);
    }
    return 0;  // not reached: no entry is NaN
}

void choose_by_score(const RouteArgs& args, Buffers& buffers) {
    if (args.num_groups > 1) drop_groups(args, buffers.biased);
    for (int s = 0; s < args.num_chosen; ++s) {
        const int e = best_expert(buffers.biased, padded(args.num_experts));
        buffers.chosen[s] = e;
        buffers.chosen_score[s] = counted_score(buffers.score[e], buffers.biased[e]);
        buffers.biased[e] = kNotChosen;
    }
}

// False: an id is out of range.
bool choose_by_hash(const RouteArgs& args, int64_t token, Buffers& buffers) {
    const int64_t row = hash_row(args, token);
    if (row < 0) return false;
    for (int s = 0; s < args.num_chosen; ++s) {
        const int32_t e = args.hash_table[row * args.num_chosen + s];
        if (e < 0 || e >= args.num_experts) return false;
        buffers.chosen[s] = e;
        buffers.chosen_score[s] = buffers.score[e];
    }
    return true;
}

// ---- a token ------------------------------------------------------------------------------------

// Returns the status of the row.
int32_t choose(const RouteArgs& args, int64_t token, Buffers& buffers) {
    const RowFacts facts = read_logits(args, token, buffers.logit);
    if (facts.has_nan) return kRouteNan;
    score_experts(args, facts.maximum, buffers.logit, buffers.score);
    const int32_t status = facts.maximum > -kInfinity ? 0 : kRouteEmpty;
    if (args.hash_ids != nullptr) {
        return choose_by_hash(args, token, buffers) ? status : status | kRouteInvalidId;
    }
    if (!bias_experts(args, buffers)) return kRouteNan;
    choose_by_score(args, buffers);
    return status;
}

void route_token(const RouteArgs& args, int64_t token, Buffers& buffers) {
    const int32_t status = choose(args, token, buffers);
    const bool is_dead = is_dead_row(status);
    int32_t* ids = args.ids + token * num_slots(args);
    float* weights = args.weights + token * num_slots(args);
    float sum = 0.0f;
    for (int s = 0; s < args.num_chosen; ++s) sum += is_dead ? 0.0f : buffers.chosen_score[s];
    for (int s = 0; s < args.num_chosen; ++s) {
        ids[s] = is_dead ? s : buffers.chosen[s];
        weights[s] = is_dead ? 0.0f : slot_weight(args, buffers.chosen_score[s], sum);
    }
    if (args.has_shared_expert) {
        ids[args.num_chosen] = args.num_experts;
        weights[args.num_chosen] = is_dead ? 0.0f : args.shared_expert_weight;
    }
    args.status[token] = status;
}

}  // namespace

// Tokens begin .. end - 1.
void route(const RouteArgs& args, int64_t begin, int64_t end) {
    Buffers buffers;
    if (args.bias != nullptr) {
        for (int i = 0; i < padded(args.num_experts); ++i) {
            buffers.bias[i] = i < args.num_experts ? args.bias[i] : 0.0f;
        }
    }
    for (int64_t token = begin; token < end; ++token) route_token(args, token, buffers);
}

}  // namespace dspark::DSPARK_ISA
