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

// What of a row lies at or above a threshold: how many entries, or their canonical mass.
enum class Amount { kCount, kMass };
struct Probe {
    double amount;
    float at_least;  // the smallest entry at or above the threshold
    float below;     // the largest entry below it
};

// What a request asks for.
struct Filters {
    int32_t top_k;  // <= 0: off
    float top_p;    // >= 1: off
    float min_p;    // <= 0: off
};

// One row while its cut is being found. Measure answers questions about the row; each backend has
// its own (cpu_measure.h, block_measure.h). Where threads share a row, all of them run this text
// with the same values; there it becomes one function, so each question is asked at one place.
template <class Measure>
class RowFilter {
  public:
    DSPARK_DEVICE RowFilter(Law& law, Measure& measure) : law_(law), measure_(measure) {}

    // Cuts the law. Renormalises in the end, and after top-k if top-p asks for the mass.
    DSPARK_DEVICE void apply(const Filters& filters) {
        const bool has_top_k = filters.top_k > 0;
        const bool has_top_p = filters.top_p < 1.0f;
        for (int step = 0; step < 3; ++step) {
            if (step == 0 ? has_top_k : step == 1 && has_top_p) {
                keep_largest(step == 0 ? Amount::kCount : Amount::kMass,
                             step == 0 ? static_cast<double>(filters.top_k)
                                       : static_cast<double>(filters.top_p) * law_.total);
            }
            if (step == 2 && filters.min_p > 0.0f) keep_likely(filters.min_p);
            const bool is_asked = step == 2 || (step == 0 && has_top_p);
            if (is_asked && cut_.x > -kInfinity) {
                law_.cut = cut_;
                law_.total = measure_.sum_tiles(cut_, law_.tile_sum);
            }
        }
    }

  private:
    // Keeps the largest entries, at least one, until their amount reaches `need`; all that is kept
    // so far if it does not.
    //
    // Finds the largest entry from which on the amount reaches `need`: first a threshold that is
    // low enough, then bounds [begin, end], one of which each step moves to an entry next to the
    // pivot. Interpolation and bisection by turns.
    DSPARK_DEVICE void keep_largest(Amount kind, double need) {
        const float floor = cut_.x > -kInfinity ? cut_.x : -kFltMax;
        float begin = law_.maximum;
        float end = law_.maximum;
        float beyond = 0.0f;  // what the amount at `begin` has beyond `need`
        double above_end = 0.0;
        bool has_begin = need <= 0.0;
        for (int step = 0; !has_begin || begin < end; ++step) {
            float pivot;
            if (has_begin) {
                const float range = beyond + static_cast<float>(need - above_end);
                const float part = step % 2 == 0 ? beyond * rough_reciprocal(range) : 0.5f;
                pivot = begin + (end - begin) * part;
                if (!(pivot > begin && pivot < end)) pivot = end;
            } else {
                pivot = measure_.reach_down(kind, need, floor, step);
            }
            const Probe probe = measure_.probe(kind, pivot, cut_);
            if (probe.amount >= need) {
                if (!has_begin) step = 1;
                has_begin = true;
                begin = probe.at_least;
                beyond = static_cast<float>(probe.amount - need);
            } else if (has_begin) {
                end = probe.below;
                above_end = probe.amount;
            } else if (pivot == floor) {
                return;
            }
        }
        enter_ties(kind, begin, above_end, need);
    }

    // Keeps what is at least min_p times as likely as the maximum.
    DSPARK_DEVICE void keep_likely(float min_p) {
        const double bound = min_p < 1.0f ? log2_double(static_cast<double>(min_p)) : 0.0;
        const auto is_likely = [&](float x) {
            const double below = static_cast<double>(x) - static_cast<double>(law_.maximum);
            return below * static_cast<double>(law_.scale) >= bound;
        };
        float low = -kFltMax;
        float high = law_.maximum;  // likely
        while (order_key(low) < order_key(high)) {
            const float middle = from_order_key((order_key(low) + order_key(high)) >> 1);
            if (is_likely(middle)) {
                high = middle;
            } else {
                low = from_order_key(order_key(middle) + 1);
            }
        }
        cut_ = stricter({high, kEveryTie}, cut_);
    }

    // Sets the cut to everything above t, whose amount is `above`, and, in index order, those of
    // the entries equal to t (and within the cut so far) that it takes to reach `need`, at least
    // one.
    DSPARK_DEVICE void enter_ties(Amount kind, float t, double above, double need) {
        const int32_t last_id = t == cut_.x ? cut_.id : kEveryTie;
        double reached = above;
        bool is_first = true;
        cut_ = {t, kNoTie};
        measure_.count_ties(t, last_id);
        for (int tile = 0; tile < num_tiles(law_.vocab); ++tile) {
            const int ties = measure_.ties(tile);
            if (ties == 0) continue;
            const float weight = exp2_nonpositive((t - law_.tile_max[tile]) * law_.scale);
            const double p = tile_mass(weight, law_.tile_scale[tile]);
            int entered = 0;
            for (; entered < ties && (is_first || reached < need); ++entered) {
                reached += kind == Amount::kCount ? 1.0 : p;
                is_first = false;
            }
            if (entered < ties) {
                if (entered > 0) cut_.id = measure_.tie_id(tile, t, entered - 1);
                return;
            }
            cut_.id = tile * kTile + kTile - 1;
        }
        cut_.id = last_id;
    }

    Law& law_;
    Measure& measure_;
    Cut cut_ = kKeepAll;
};

// Cuts the law of a row by the filters of request (or row) i.
template <class Measure>
DSPARK_DEVICE void filter_cut(Law& law, const LawArgs& args, int64_t i, Measure& measure) {
    if (law.is_empty || law.is_greedy) return;
    const int64_t k = args.top_k.data != nullptr ? args.top_k[i] : 0;
    const Filters filters = {k < law.vocab ? static_cast<int32_t>(k > 0 ? k : 0) : 0,
                             args.top_p != nullptr ? args.top_p[i] : 1.0f,
                             args.min_p != nullptr ? args.min_p[i] : 0.0f};
    RowFilter<Measure>(law, measure).apply(filters);
}

}  // namespace dspark::DSPARK_ISA::sampling
