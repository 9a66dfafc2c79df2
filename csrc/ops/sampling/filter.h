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

// What of a row lies at or above a threshold: how many entries, or their canonical mass.
enum class Amount { kCount, kMass };
struct Probe {
    double amount;
    float at_least;  // the smallest entry at or above the threshold
    float below;     // the largest entry below it
};

// One row while its cut is being found. Measure answers questions about the row; each backend has
// its own (cpu_measure.h, block_measure.h). Where threads share a row, all of them run this text
// with the same values.
template <class Measure>
class RowFilter {
  public:
    DSPARK_DEVICE RowFilter(Law& law, Measure& measure) : law_(law), measure_(measure) {}

    // Keeps the k largest.
    DSPARK_DEVICE void top_k(int64_t k) {
        const double need = static_cast<double>(k);
        const Covered from = cover(Amount::kCount, need);
        if (from.amount < need) return;  // not that many above -inf
        const float t = largest_reaching(Amount::kCount, from, need);
        int64_t wanted = k - measure_.count({t, kNoTie});
        enter_ties(t, kEveryTie, [&](double) { return wanted-- > 0; });
    }

    // Keeps the largest until their mass reaches top_p of what is kept so far.
    DSPARK_DEVICE void top_p(float top_p) {
        if (top_p <= 0.0f) {
            int64_t wanted = 1;
            enter_ties(law_.maximum, kEveryTie, [&](double) { return wanted-- > 0; });
            return;
        }
        const Cut before = cut_;
        const double all = before.x > -kInfinity ? measure_.mass(before) : law_.total;
        const double need = static_cast<double>(top_p) * all;
        const float t = largest_reaching(Amount::kMass, cover(Amount::kMass, need), need);
        double reached = measure_.mass({t, kNoTie});
        bool is_first = true;
        enter_ties(t, t == before.x ? before.id : kEveryTie, [&](double p) {
            if (!is_first && reached >= need) return false;
            is_first = false;
            reached += p;
            return true;
        });
    }

    // Keeps what is at least min_p times as likely as the maximum.
    DSPARK_DEVICE void min_p(float min_p) {
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

    // Makes the cut the law's, and renormalises.
    DSPARK_DEVICE void finish() {
        if (cut_.x == -kInfinity) return;
        law_.cut = cut_;
        measure_.sum_tiles(cut_, law_.tile_sum);
        law_.total = measure_.add_up(law_.tile_sum);
    }

  private:
    struct Covered {
        float from;
        double amount;
    };

    // A threshold whose amount reaches `need`, if there is one, with the entries from there on
    // listed if they are few.
    DSPARK_DEVICE Covered cover(Amount kind, double need) {
        const float floor = cut_.x > -kInfinity ? cut_.x : -kFltMax;
        float from = floor;
        if (!measure_.is_listed(floor)) {
            bool are_few = true;
            for (float reach = 12.0f; reach <= 48.0f; reach *= 2.0f) {
                const float wished = law_.maximum - reach / law_.scale;
                from = wished > floor ? wished : floor;
                are_few = are_few && measure_.list(from);
                const double amount = measure_.amount(kind, stricter({from, kEveryTie}, cut_));
                if (amount >= need || from == floor) return {from, amount};
            }
            from = floor;
            if (are_few) measure_.list(from);
        }
        return {from, measure_.amount(kind, stricter({from, kEveryTie}, cut_))};
    }

    // The largest entry t whose amount reaches `need`, as that of `low` does; the amount falls as t
    // grows. Interpolation and bisection by turns; each step moves one bound to an entry next to
    // the pivot.
    DSPARK_DEVICE float largest_reaching(Amount kind, Covered low, double need) {
        float begin = low.from;
        float end = law_.maximum;
        double at_begin = low.amount;
        double above_end = 0.0;
        for (bool interpolate = true; begin < end; interpolate = !interpolate) {
            const double part = (at_begin - need) / (at_begin - above_end);
            const float guess = begin + (end - begin) * static_cast<float>(part);
            float pivot = interpolate ? guess : begin + (end - begin) * 0.5f;
            if (!(pivot > begin && pivot < end)) pivot = end;
            const Probe probe = measure_.probe(kind, pivot, cut_);
            if (probe.amount >= need) {
                begin = probe.at_least;
                at_begin = probe.amount;
            } else {
                end = probe.below;
                above_end = probe.amount;
            }
        }
        return begin;
    }

    // Sets the cut to everything above t and those of the entries equal to t, with ids up to
    // last_id and in index order, that enters(p) lets in; the first one refused ends it.
    template <class Enters>
    DSPARK_DEVICE void enter_ties(float t, int32_t last_id, Enters enters) {
        cut_ = {t, kNoTie};
        measure_.count_ties(t, last_id);
        for (int tile = 0; tile < num_tiles(law_.vocab); ++tile) {
            const int ties = measure_.ties(tile);
            if (ties == 0) continue;
            const float weight = exp2_nonpositive((t - law_.tile_max[tile]) * law_.scale);
            const double p = tile_mass(weight, law_.tile_scale[tile]);
            int entered = 0;
            while (entered < ties && enters(p)) ++entered;
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
    const float top_p = args.top_p != nullptr ? args.top_p[i] : 1.0f;
    const float min_p = args.min_p != nullptr ? args.min_p[i] : 0.0f;
    RowFilter<Measure> filter(law, measure);
    if (k > 0 && k < law.vocab) filter.top_k(k);
    if (top_p < 1.0f) filter.top_p(top_p);
    if (min_p > 0.0f) filter.min_p(min_p);
    filter.finish();
}

}  // namespace dspark::DSPARK_ISA::sampling
