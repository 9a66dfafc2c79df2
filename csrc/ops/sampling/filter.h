// Filters: the cut that top-k, top-p and min-p make through a row (docs/numerics.md section 4).
#pragma once

#include "ops/sampling/args.h"

namespace dspark::DSPARK_ISA::sampling {

// Order-preserving integer of a float, and back.
DSPARK_DEVICE int64_t order_key(float x) {
    const int32_t bits = bit_cast<int32_t>(x);
    return bits >= 0 ? bits : bits ^ 0x7FFFFFFF;
}
DSPARK_DEVICE float from_order_key(int64_t key) {
    const int32_t bits = static_cast<int32_t>(key);
    return bit_cast<float>(bits >= 0 ? bits : bits ^ 0x7FFFFFFF);
}

// About 1 / x for normal x > 0, for guesses. On devices a division is a call, around which the
// registers of everything that goes on must be kept.
DSPARK_DEVICE float rough_reciprocal(float x) {
    float r = bit_cast<float>(0x7EF311C7u - bit_cast<uint32_t>(x));
    for (int step = 0; step < 2; ++step) r = r * (2.0f - x * r);
    return r;
}

// The next larger float, by value: both zeros are one.
DSPARK_DEVICE float next_above(float x) {
    return from_order_key(order_key(x == 0.0f ? 0.0f : x) + 1);
}

// The next smaller one, by value.
DSPARK_DEVICE float next_below(float x) {
    return -next_above(-x);
}

// What of a row lies at or above a threshold: how many entries, or their canonical mass.
enum class Amount { kCount, kMass };
struct Probe {
    double amount;
    float at_least;  // the smallest entry at or above the threshold, or a bound of it
    float below;     // the largest entry below it, or a bound of that
};

// Two thresholds, and what is known of them together.
struct Window {
    float low;
    float high;  // may be low, may be +inf
};
struct WindowProbe {
    Probe low;
    Probe high;
};

// The search for the largest entry from which on the amount reaches `need`.
struct Bracket {
    float begin;  // the entry lies in [begin, end]
    float end;
    bool has_begin;    // the amount at `begin` reaches it; else nothing is known below `end`
    float beyond;      // what that amount has beyond `need`
    double above_end;  // the amount above `end`, which does not reach it
    int step;          // probes since it has a begin, or since the start

    DSPARK_DEVICE bool is_closed() const { return has_begin && !(begin < end); }

    // A threshold in (begin, end]: by interpolation in every other step, else by bisection of
    // values, which suits what lies close together, or of their keys, which suits what does not.
    DSPARK_DEVICE float pivot(double need) const {
        const float range = beyond + static_cast<float>(need - above_end);
        const float part = step % 2 == 0 ? beyond * rough_reciprocal(range) : 0.5f;
        const float inside = step % 4 == 3
                                 ? from_order_key((order_key(begin) + order_key(end)) >> 1)
                                 : begin + (end - begin) * part;
        return inside > begin && inside < end ? inside : end;
    }

    DSPARK_DEVICE void narrow(const WindowProbe& probe, double need) {
        const bool is_above = probe.high.amount >= need;
        const bool is_below = probe.low.amount < need;
        step = has_begin || is_below ? step + 1 : 0;
        if (!is_above) {
            end = is_below ? probe.low.below : probe.high.below;
            above_end = is_below ? probe.low.amount : probe.high.amount;
        }
        if (!is_below) {
            has_begin = true;
            begin = is_above ? probe.high.at_least : probe.low.at_least;
            beyond = static_cast<float>((is_above ? probe.high : probe.low).amount - need);
        }
    }
};

// What a request asks for.
struct Filters {
    int32_t top_k;  // <= 0: off
    float top_p;    // >= 1: off
    float min_p;    // <= 0: off
};

// What filters keep of a row, and its canonical mass.
struct Kept {
    Cut cut;
    double total;
};

// One row while its cut is being found. Measure answers questions about the row; each backend has
// its own (cpu_measure.h, block_measure.h). Where threads share a row, all of them run this text
// with the same values; there it becomes one function, so each question is asked at one place.
template <class Measure>
class RowFilter {
  public:
    DSPARK_DEVICE explicit RowFilter(Measure& measure)
        : measure_(measure), kept_{kKeepAll, measure.law().total} {}

    // What is kept. Its total is found in the end, and after top-k if top-p asks for it.
    DSPARK_DEVICE Kept apply(const Filters& filters) {
        const bool has_top_k = filters.top_k > 0;
        const bool has_top_p = filters.top_p < 1.0f;
        for (int step = 0; step < 3; ++step) {
            if (step == 0 ? has_top_k : step == 1 && has_top_p) {
                keep_largest(step == 0 ? Amount::kCount : Amount::kMass,
                             step == 0 ? static_cast<double>(filters.top_k)
                                       : static_cast<double>(filters.top_p) * kept_.total);
            }
            if (step == 2 && filters.min_p > 0.0f) keep_likely(filters.min_p);
            const bool is_asked = step == 2 || (step == 0 && has_top_p);
            if (is_asked && kept_.cut.x > -kInfinity) kept_.total = measure_.sum_tiles(kept_.cut);
        }
        return kept_;
    }

  private:
    // Keeps the largest entries, at least one, until their amount reaches `need`; all that is kept
    // so far if it does not.
    DSPARK_DEVICE void keep_largest(Amount kind, double need) {
        need = need > 0.0 ? need : 0x1p-1000;
        const float floor = kept_.cut.x > -kInfinity ? kept_.cut.x : -kFltMax;
        Bracket bracket = {floor, measure_.law().maximum, false, 0.0f, 0.0, 0};
        while (!bracket.is_closed() || !measure_.has_probed(bracket.begin)) {
            const Window window = measure_.next_window(kind, need, floor, bracket);
            const WindowProbe probe = measure_.probe(kind, window, kept_.cut);
            if (window.low == floor && probe.low.amount < need) return;
            bracket.narrow(probe, need);
        }
        enter_ties(kind, bracket.begin, bracket.above_end, need);
    }

    // Keeps what is at least min_p times as likely as the maximum.
    DSPARK_DEVICE void keep_likely(float min_p) {
        const double bound = min_p < 1.0f ? log2_double(static_cast<double>(min_p)) : 0.0;
        const double maximum = static_cast<double>(measure_.law().maximum);
        const double scale = static_cast<double>(measure_.law().scale);
        const auto is_likely = [&](float x) {
            return (static_cast<double>(x) - maximum) * scale >= bound;
        };
        float low = -kFltMax;
        float high = measure_.law().maximum;  // likely
        while (order_key(low) < order_key(high)) {
            const float middle = from_order_key((order_key(low) + order_key(high)) >> 1);
            if (is_likely(middle)) {
                high = middle;
            } else {
                low = from_order_key(order_key(middle) + 1);
            }
        }
        kept_.cut = stricter({high, kEveryTie}, kept_.cut);
    }

    // Sets the cut to everything above t, whose amount is `above`, and, in index order, those of
    // the entries equal to t (and within the cut so far) that it takes to reach `need`, at least
    // one.
    DSPARK_DEVICE void enter_ties(Amount kind, float t, double above, double need) {
        const int32_t last_id = t == kept_.cut.x ? kept_.cut.id : kEveryTie;
        double reached = above;
        bool is_first = true;
        kept_.cut = {t, kNoTie};
        measure_.count_ties(t, last_id);
        for (int tile = 0; tile < num_tiles(measure_.law().vocab); ++tile) {
            const int ties = measure_.ties(tile);
            if (ties == 0) continue;
            const float weight =
                exp2_nonpositive((t - measure_.law().tile_max[tile]) * measure_.law().scale);
            const double p = tile_mass(weight, measure_.law().tile_scale[tile]);
            int entered = 0;
            for (; entered < ties && (is_first || reached < need); ++entered) {
                reached += kind == Amount::kCount ? 1.0 : p;
                is_first = false;
            }
            if (entered < ties) {
                if (entered > 0) kept_.cut.id = measure_.tie_id(tile, t, entered - 1);
                return;
            }
            kept_.cut.id = tile * kTile + kTile - 1;
        }
        kept_.cut.id = last_id;
    }

    Measure& measure_;
    Kept kept_;
};

// What the filters of request (or row) i keep of the row of `measure`.
template <class Measure>
DSPARK_DEVICE Kept filter_row(const LawArgs& args, int64_t i, Measure& measure) {
    const Law& law = measure.law();
    if (law.is_empty || law.is_greedy) return {kKeepAll, law.total};
    const int64_t k = args.top_k.data != nullptr ? args.top_k[i] : 0;
    const Filters filters = {k < law.vocab ? static_cast<int32_t>(k > 0 ? k : 0) : 0,
                             args.top_p != nullptr ? args.top_p[i] : 1.0f,
                             args.min_p != nullptr ? args.min_p[i] : 0.0f};
    return RowFilter<Measure>(measure).apply(filters);
}

}  // namespace dspark::DSPARK_ISA::sampling
