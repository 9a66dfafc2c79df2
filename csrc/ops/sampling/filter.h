// Filters: the cut that top-k, top-p and min-p make through a row (docs/numerics.md section 4).
#pragma once

#include "ops/sampling/row_measure.h"

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

// The stricter of two cuts.
DSPARK_DEVICE Cut stricter(Cut a, Cut b) {
    if (a.x != b.x) return a.x > b.x ? a : b;
    return a.id < b.id ? a : b;
}

// One row while its cut is being found.
class RowFilter {
  public:
    RowFilter(Law& law, Workspace& workspace) : law_(law), measure_(law, workspace) {}

    // Keeps the k largest.
    void top_k(int64_t k) {
        const auto amount = [&](float t) {
            return static_cast<double>(measure_.count({t, kEveryTie}));
        };
        const double need = static_cast<double>(k);
        const float low = cover(amount, need);
        if (amount(low) < need) return;  // not that many above -inf
        const float t = largest_reaching(low, amount, need);
        int64_t wanted = k - measure_.count({t, kNoTie});
        enter_ties(t, [&](int32_t, double) { return wanted-- > 0; });
    }

    // Keeps the largest until their mass reaches top_p of what is kept so far.
    void top_p(float top_p) {
        if (top_p <= 0.0f) {
            int64_t wanted = 1;
            enter_ties(law_.maximum, [&](int32_t, double) { return wanted-- > 0; });
            return;
        }
        const Cut before = cut_;
        const auto amount = [&](float t) {
            return measure_.mass(stricter({t, kEveryTie}, before));
        };
        const double all = before.x > -kInfinity ? measure_.mass(before) : law_.total;
        const double need = static_cast<double>(top_p) * all;
        const float t = largest_reaching(cover(amount, need), amount, need);
        double reached = measure_.mass({t, kNoTie});
        bool is_first = true;
        enter_ties(t, [&](int32_t id, double p) {
            if ((!is_first && reached >= need) || !is_kept(before, t, id)) return false;
            is_first = false;
            reached += p;
            return true;
        });
    }

    // Keeps what is at least min_p times as likely as the maximum.
    void min_p(float min_p) {
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
    void finish() {
        if (cut_.x == -kInfinity) return;
        law_.cut = cut_;
        measure_.sum_tiles(cut_, law_.tile_sum);
        law_.total = measure_.add_up(law_.tile_sum);
    }

  private:
    // A threshold whose amount reaches `need`, if there is one, with the entries from there on
    // listed if they are few.
    template <class Amount>
    float cover(Amount amount, double need) {
        const float floor = cut_.x > -kInfinity ? cut_.x : -kFltMax;
        if (measure_.is_listed(floor)) return floor;
        bool are_few = true;
        for (float reach = 8.0f;; reach *= 2.0f) {
            const float wished = law_.maximum - reach / law_.scale;
            const float from = wished > floor && reach <= 64.0f ? wished : floor;
            are_few = are_few && measure_.list(from);
            if (amount(from) >= need || from == floor) return from;
        }
    }

    // The largest entry t with amount(t) >= need, where amount(low) is; amount falls as t grows.
    // Interpolation and bisection by turns; each step moves one bound to an entry next to the
    // pivot.
    template <class Amount>
    float largest_reaching(float low, Amount amount, double need) {
        float begin = low;
        float end = law_.maximum;
        double at_begin = amount(begin);
        double above_end = 0.0;
        for (bool interpolate = true; begin < end; interpolate = !interpolate) {
            const double part = (at_begin - need) / (at_begin - above_end);
            const float guess = begin + (end - begin) * static_cast<float>(part);
            float pivot = interpolate ? guess : begin + (end - begin) * 0.5f;
            if (!(pivot > begin && pivot < end)) pivot = end;
            const double at_pivot = amount(pivot);
            const RowMeasure::Neighbours next = measure_.neighbours(pivot);
            if (at_pivot >= need) {
                begin = next.at_least;
                at_begin = at_pivot;
            } else {
                end = next.below;
                above_end = at_pivot;
            }
        }
        return begin;
    }

    // Sets the cut to everything above t and those of the entries equal to t, in index order, that
    // enters(id, p) lets in; the first one refused ends it.
    template <class Enters>
    void enter_ties(float t, Enters enters) {
        cut_ = {t, kNoTie};
        const auto visit = [&](int64_t id) {
            const int tile = static_cast<int>(id / kTile);
            const double weight = static_cast<double>(measure_.weight_of(tile, t));
            const bool is_in = enters(static_cast<int32_t>(id), weight * law_.tile_scale[tile]);
            if (is_in) cut_.id = static_cast<int32_t>(id);
            return is_in;
        };
        if (measure_.visit_ties(t, visit)) cut_.id = kEveryTie;
    }

    Law& law_;
    RowMeasure measure_;
    Cut cut_ = kKeepAll;
};

// Cuts the law of a row by the filters of request (or row) i.
inline void filter_cut(Law& law, const LawArgs& args, int64_t i, Workspace& workspace) {
    if (law.is_empty || law.is_greedy) return;
    const int64_t k = args.top_k.data != nullptr ? args.top_k[i] : 0;
    const float top_p = args.top_p != nullptr ? args.top_p[i] : 1.0f;
    const float min_p = args.min_p != nullptr ? args.min_p[i] : 0.0f;
    RowFilter filter(law, workspace);
    if (k > 0 && k < law.vocab) filter.top_k(k);
    if (top_p < 1.0f) filter.top_p(top_p);
    if (min_p > 0.0f) filter.min_p(min_p);
    filter.finish();
}

}  // namespace dspark::DSPARK_ISA::sampling
