// The rules of a schedule: which drafts stand in which order, and where the order ends. Every
// backend runs this text; what differs is how it sorts and sums. Arithmetic: docs/numerics.md
// section 9; why these rules keep the law of the target: docs/losslessness.md.
//
// Tokens are counted in units of 2^-40, as integers: their sum does not depend on its order.
#pragma once

#include "device/numeric.h"
#include "ops/verify/args.h"

namespace dspark::DSPARK_ISA::verify {

constexpr float kSmallestSurvival = 0x1p-100f;  // below it a survival counts as 0
constexpr int64_t kToken = int64_t{1} << 40;
constexpr uint64_t kNoCandidate = ~uint64_t{0};

DSPARK_DEVICE int32_t clamp(int32_t value, int32_t low, int32_t high) {
    return value < low ? low : value > high ? high : value;
}
DSPARK_DEVICE int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// ---- what a request brings ----------------------------------------------------------------------

DSPARK_DEVICE float clamp_confidence(float c) {
    return c > 0.0f ? (c < 1.0f ? c : 1.0f) : 0.0f;  // NaN: 0
}

// The running product of conditional confidences, one factor longer.
DSPARK_DEVICE float next_survival(float survival, float confidence) {
    const float product = survival * clamp_confidence(confidence);
    return product < kSmallestSurvival ? 0.0f : product;
}

// Tokens that a draft of this survival is expected to give.
DSPARK_DEVICE int64_t token_units(float survival) {
    return static_cast<int64_t>(static_cast<double>(survival) * static_cast<double>(kToken));
}

DSPARK_DEVICE int32_t live_requests(const ScheduleArgs& args) {
    if (args.num_requests == nullptr) return args.batch;
    return clamp(args.num_requests[0], 0, args.batch);
}

// Drafts that request b, which exists, can take at all.
DSPARK_DEVICE int32_t draft_limit(const ScheduleArgs& args, int32_t b) {
    if (args.capacity == nullptr) return args.num_drafts;
    return clamp(args.capacity[b], 0, args.num_drafts);
}

// ---- the order of the drafts --------------------------------------------------------------------
// The key of a draft is its place in the order: ascending keys are what is admitted first, then
// falling survival, then position, then request. Keys of a request ascend with the position.

// Whether a draft is admitted first, whatever its survival.
DSPARK_DEVICE bool is_forced(const ScheduleArgs& args, int32_t position) {
    const bool all = args.mode == ScheduleMode::kFixed;
    return position < (all ? args.num_drafts : args.min_drafts);
}
DSPARK_DEVICE bool is_forced_key(uint64_t key) {
    return key >> kPlaceBits == 0;
}

DSPARK_DEVICE uint64_t draft_key(const ScheduleArgs& args, bool forced, float survival,
                                 int32_t position, int32_t request) {
    const uint32_t below_one = bit_cast<uint32_t>(1.0f) - bit_cast<uint32_t>(survival);
    const uint64_t place = static_cast<uint32_t>(position * args.batch + request);
    return (forced ? 0 : uint64_t{below_one} + 1) << kPlaceBits | place;
}

// Tokens of the draft, 0 if it is forced: those are counted beforehand.
DSPARK_DEVICE int64_t key_units(uint64_t key) {
    if (is_forced_key(key)) return 0;
    const uint32_t below_one = static_cast<uint32_t>(key >> kPlaceBits) - 1;
    return token_units(bit_cast<float>(bit_cast<uint32_t>(1.0f) - below_one));
}

// Goes along the drafts of a request.
struct DraftWalk {
    float survival = 1.0f;     // of the draft that next() was last called for
    bool is_confident = true;  // no conditional confidence below the threshold so far

    // To the next draft, which stands at `position`; its key, or kNoCandidate.
    DSPARK_DEVICE uint64_t next(const ScheduleArgs& args, Global<const float> confidence,
                                int32_t limit, int32_t position, int32_t request) {
        if (position >= limit) return kNoCandidate;
        if (confidence != nullptr) {
            const float c = confidence[int64_t{request} * args.num_positions + position];
            survival = next_survival(survival, c);
            if (args.mode == ScheduleMode::kThreshold && !(clamp_confidence(c) >= args.threshold)) {
                is_confident = false;
            }
        }
        const bool forced = is_forced(args, position);
        if (!forced && !(survival > 0.0f && is_confident)) return kNoCandidate;
        return draft_key(args, forced, survival, position, request);
    }
};

// Tokens of the first `length` drafts of a request.
DSPARK_DEVICE int64_t draft_units(const ScheduleArgs& args, int32_t length, int32_t request) {
    DraftWalk walk;
    int64_t units = 0;
    for (int32_t j = 0; j < length; ++j) {
        walk.next(args, args.confidence, length, j, request);
        units += token_units(walk.survival);
    }
    return units;
}

DSPARK_DEVICE float expected_tokens(int64_t units) {
    return static_cast<float>(static_cast<double>(units) / static_cast<double>(kToken));
}

// ---- lengths
// -------------------------------------------------------------------------------------

// What is verified of a request, and the tokens that gives.
struct Admission {
    int32_t length;
    int64_t units;
};

// Admits the drafts whose keys are below a bound.
struct KeysBelow {
    uint64_t bound;

    DSPARK_DEVICE Admission operator()(const ScheduleArgs& args, int32_t b) const {
        const int32_t limit = draft_limit(args, b);
        DraftWalk walk;
        Admission admission = {0, 0};
        for (int32_t j = 0; j < limit; ++j) {
            if (!(walk.next(args, args.confidence, limit, j, b) < bound)) break;
            admission = {j + 1, admission.units + token_units(walk.survival)};
        }
        return admission;
    }
};

// Admits as many drafts of each request, as far as it has them.
struct UpToLength {
    int32_t length;

    DSPARK_DEVICE Admission operator()(const ScheduleArgs& args, int32_t b) const {
        const int32_t own = clamp(draft_limit(args, b), 0, length);
        return {own, draft_units(args, own, b)};
    }
};

// ---- where the order ends -----------------------------------------------------------------------

// Drafts for which the pass has rows.
DSPARK_DEVICE int64_t draft_room(const ScheduleArgs& args, int32_t live) {
    int64_t rows = args.max_rows;
    if (args.budget != nullptr) rows = smaller(rows, args.budget[0]);
    return rows > live ? rows - live : 0;
}

// Seconds of a pass of `rows` rows of ours.
DSPARK_DEVICE double seconds_of(const ScheduleArgs& args, int64_t rows) {
    const int64_t all = args.num_other_rows + rows;
    const int64_t last = args.cost_size - 1;
    if (all <= last) return args.cost[all];
    const double end = args.cost[last];
    const double before = args.cost[last - 1];
    return end + static_cast<double>(all - last) * (end - before);
}

// Tokens per second; a time that is no positive number counts as endless.
DSPARK_DEVICE double rate_of(int64_t units, double seconds) {
    const double tokens = static_cast<double>(units) / static_cast<double>(kToken);
    return seconds > 0.0 ? tokens / seconds : 0.0;
}

// What a pass of so many rows is expected to emit.
struct Yield {
    int64_t rows;
    int64_t units;
};

DSPARK_DEVICE double rate_of(const ScheduleArgs& args, Yield yield) {
    return rate_of(yield.units, seconds_of(args, yield.rows));
}

// Whether `more` is worth it, which has some more tokens: for no more time, or at a higher rate.
DSPARK_DEVICE bool pays(const ScheduleArgs& args, Yield now, Yield more) {
    const double seconds = seconds_of(args, now.rows);
    const double more_seconds = seconds_of(args, more.rows);
    return more_seconds <= seconds ||
           rate_of(more.units, more_seconds) > rate_of(now.units, seconds);
}

constexpr int64_t kNoEnd = INT64_MAX;

// Goes along the order of the drafts, from anywhere on, and finds where it ends: early_stop and
// lagged, the others admit all there is room for.
struct OrderSearch {
    Yield yield;    // with all drafts so far
    int64_t count;  // of them
    int64_t end;    // drafts to admit, or kNoEnd: not to be seen from here
    double rate;    // lagged: tokens per second there, -1 before any was found

    // The next draft. False: nothing further is to be looked at. `forced`: drafts of the order that
    // are admitted first; `room`: how many may be in all.
    DSPARK_DEVICE bool add(const ScheduleArgs& args, int64_t forced, int64_t room, uint64_t key) {
        const Yield more = {yield.rows + 1, yield.units + key_units(key)};
        if (args.mode == ScheduleMode::kEarlyStop && !is_forced_key(key) &&
            !pays(args, yield, more)) {
            end = count;
            return false;
        }
        yield = more;
        ++count;
        if (args.mode == ScheduleMode::kLagged) consider(args, forced, room);
        return true;
    }

    // Takes what was added so far for the end if no smaller number of drafts is as good. Called
    // once more before the first draft of the order is added.
    DSPARK_DEVICE void consider(const ScheduleArgs& args, int64_t forced, int64_t room) {
        if (count < forced || count > room) return;
        const double here = rate_of(args, yield);
        if (here > rate) {
            rate = here;
            end = count;
        }
    }
};

// ---- mode uniform -------------------------------------------------------------------------------

DSPARK_DEVICE int32_t most_uniform_drafts(const ScheduleArgs& args, int32_t live) {
    if (live == 0) return 0;
    return static_cast<int32_t>(smaller(args.num_drafts, args.max_rows / live - 1));
}

// The one length of all requests, found by adding the drafts of one position after the other.
struct UniformSearch {
    int32_t length;
    int64_t units;  // tokens with everything added so far
    double rate;    // tokens per second with `length`

    DSPARK_DEVICE UniformSearch(const ScheduleArgs& args, int32_t live)
        : length(0), units(live * kToken), rate(rate_of(args, {live, units})) {}

    // `gain`: tokens of all drafts at `position`. False: nothing further is to be looked at.
    DSPARK_DEVICE bool add(const ScheduleArgs& args, int32_t live, int32_t position, int64_t gain) {
        const Yield now = {int64_t{live} * (position + 1), units};
        const Yield more = {int64_t{live} * (position + 2), units + gain};
        const bool lagged = args.lagged_confidence != nullptr;
        const double more_rate = rate_of(args, more);
        const bool better = is_forced(args, position) ||
                            (lagged ? more_rate > rate : gain > 0 && pays(args, now, more));
        units = more.units;
        if (better) {
            length = position + 1;
            rate = more_rate;
        }
        return better || lagged;
    }
};

}  // namespace dspark::DSPARK_ISA::verify
