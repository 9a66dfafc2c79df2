// Filters: the cut that top-k, top-p and min-p make through a row (docs/numerics.md section 4).
//
// Every filter is "the largest threshold t for which a monotone condition on {x >= t} still holds",
// found by bisection over float32 values. The condition is evaluated on the few largest entries,
// collected once; a row too flat for that is evaluated tile by tile. Both give the same bits:
// leaving out zeros does not change a canonical sum.
#pragma once

#include "ops/sampling/law.h"
#include "ops/sampling/workspace.h"

namespace dspark::DSPARK_ISA {

// Order-preserving integer of a float, and back.
DSPARK_DEVICE int32_t order_key(float x) {
    const int32_t bits = bit_cast<int32_t>(x);
    return bits >= 0 ? bits : bits ^ 0x7FFFFFFF;
}
DSPARK_DEVICE float from_order_key(int32_t key) {
    return bit_cast<float>(key >= 0 ? key : key ^ 0x7FFFFFFF);
}

// The largest float in [low, high] for which holds(x) is true. It is for low (or low is the
// answer), and if it is for x, it is for everything below.
template <class Condition>
DSPARK_DEVICE float largest_where(float low, float high, Condition holds) {
    int64_t begin = order_key(low);
    int64_t end = order_key(high);
    while (begin < end) {
        const int64_t middle = begin + (end - begin + 1) / 2;
        if (holds(from_order_key(static_cast<int32_t>(middle)))) {
            begin = middle;
        } else {
            end = middle - 1;
        }
    }
    return from_order_key(static_cast<int32_t>(begin));
}

// The stricter of two cuts.
DSPARK_DEVICE Cut stricter(Cut a, Cut b) {
    if (a.x != b.x) return a.x > b.x ? a : b;
    return a.id < b.id ? a : b;
}

// One row while its cut is being found.
class RowFilter {
  public:
    RowFilter(Law& law, Workspace& workspace)
        : law_(law), workspace_(workspace), list_(workspace.candidates) {}

    // Keeps the k largest.
    void top_k(int64_t k) {
        const auto has_k = [&](float t) { return count({t, kEveryTie}) >= k; };
        const float low = cover(has_k);
        if (!has_k(low)) return;  // not that many above -inf
        const float t = largest_where(low, law_.maximum, has_k);
        int64_t wanted = k - count({t, kNoTie});
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
        const double need =
            static_cast<double>(top_p) * (before.x > -kInfinity ? mass(before) : law_.total);
        const auto reaches = [&](float t) {
            return mass(stricter({t, kEveryTie}, before)) >= need;
        };
        const float t = largest_where(cover(reaches), law_.maximum, reaches);
        double reached = mass({t, kNoTie});
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
        const auto is_unlikely = [&](float x) {
            const double below = static_cast<double>(x) - static_cast<double>(law_.maximum);
            return below * static_cast<double>(law_.scale) < bound;
        };
        if (!is_unlikely(-kFltMax)) return;
        const float t = largest_where(-kFltMax, law_.maximum, is_unlikely);
        cut_ = stricter({from_order_key(order_key(t) + 1), kEveryTie}, cut_);
    }

    // Makes the cut the law's, and renormalises.
    void finish() {
        if (cut_.x == -kInfinity) return;
        law_.cut = cut_;
        sum_tiles(cut_, law_.tile_sum);
        law_.total = add_up(law_.tile_sum);
    }

  private:
    static constexpr int32_t kNoTie = -1;

    // A threshold at which the condition holds, if there is one, with the entries from there on
    // listed if they are few.
    template <class Condition>
    float cover(Condition holds) {
        const float floor = cut_.x > -kInfinity ? cut_.x : -kFltMax;
        if (listed_from_ <= floor) return floor;
        for (float reach = 8.0f;; reach *= 2.0f) {
            const float wished = law_.maximum - reach / law_.scale;
            const float from = wished > floor && reach <= 64.0f ? wished : floor;
            const bool is_listed = listed_from_ <= from || list(from);
            if (holds(from)) return from;
            if (!is_listed || from == floor) return floor;
        }
    }

    // Lists the entries from `from` on; false if they are too many.
    bool list(float from) {
        constexpr int kWidth = FloatVector::kWidth;
        list_.count = 0;
        listed_from_ = kInfinity;
        for (int t = 0; t < num_tiles(law_.vocab); ++t) {
            if (!(law_.tile_max[t] >= from)) continue;
            const float* x = read_tile(row_of(law_), t, workspace_.target_tile).x;
            for (int i = 0; i < kTile; i += kWidth) {
                uint32_t hits = lanes_at_least(load(x + i), FloatVector(from));
                if (list_.count + kWidth > list_.capacity) return false;
                for (; hits != 0; hits &= hits - 1) append(t, i + __builtin_ctz(hits), x);
            }
        }
        listed_from_ = from;
        return true;
    }

    void append(int tile, int i, const float* x) {
        list_.x[list_.count] = x[i];
        list_.weight[list_.count] = weight_of(tile, x[i]);
        list_.id[list_.count] = tile * kTile + i;
        ++list_.count;
    }

    float weight_of(int tile, float x) const {
        return exp2_nonpositive((x - law_.tile_max[tile]) * law_.scale);
    }

    int64_t count(Cut cut) {
        int64_t total = 0;
        if (listed_from_ <= cut.x) {
            for (int i = 0; i < list_.count; ++i) total += is_kept(cut, list_.x[i], list_.id[i]);
            return total;
        }
        for (int t = 0; t < num_tiles(law_.vocab); ++t) {
            if (!(law_.tile_max[t] >= cut.x)) continue;
            const float* x = read_kept(law_, cut, t, workspace_.target_tile);
            for (int i = 0; i < kTile; ++i) total += x[i] >= cut.x;
        }
        return total;
    }

    double mass(Cut cut) {
        sum_tiles(cut, workspace_.sums);
        return add_up(workspace_.sums);
    }

    double add_up(const float* sums) const {
        double total = 0.0;
        for (int t = 0; t < num_tiles(law_.vocab); ++t) {
            total += static_cast<double>(sums[t]) * law_.tile_scale[t];
        }
        return total;
    }

    // Canonical sums of what a cut keeps.
    void sum_tiles(Cut cut, float* sums) {
        for (int t = 0; t < num_tiles(law_.vocab); ++t) sums[t] = 0.0f;
        if (listed_from_ <= cut.x) {
            for (int i = 0; i < list_.count;) i = sum_listed_tile(cut, i, sums);
            return;
        }
        for (int t = 0; t < num_tiles(law_.vocab); ++t) {
            if (!(law_.tile_max[t] >= cut.x)) continue;
            const float* x = read_kept(law_, cut, t, workspace_.target_tile);
            const TileWeights weights(x, law_.tile_max[t], law_.scale, cut.x);
            sums[t] = canonical_sum(tile_size(row_of(law_), t), weights);
        }
    }

    // The tile that listed entry `begin` lies in; returns where the next tile begins. One or two
    // entries meet in one addition, wherever their lanes are.
    int sum_listed_tile(Cut cut, int begin, float* sums) {
        const int tile = list_.id[begin] / kTile;
        int end = begin;
        int kept = 0;
        float sum = 0.0f;
        for (; end < list_.count && list_.id[end] / kTile == tile; ++end) {
            if (!is_kept(cut, list_.x[end], list_.id[end])) continue;
            sum += list_.weight[end];
            ++kept;
        }
        if (kept > 2) {
            float lanes[kLanes] = {};
            for (int i = begin; i < end; ++i) {
                if (is_kept(cut, list_.x[i], list_.id[i])) {
                    lanes[list_.id[i] % kLanes] += list_.weight[i];
                }
            }
            sum = halving_tree(lanes);
        }
        sums[tile] = sum;
        return end;
    }

    // Sets the cut to everything above t and those of the entries equal to t, in index order, that
    // enters(id, p) lets in; the first one refused ends it.
    template <class Enters>
    void enter_ties(float t, Enters enters) {
        cut_ = {t, kNoTie};
        const auto visit = [&](int64_t id) {
            const int tile = static_cast<int>(id / kTile);
            const double p = static_cast<double>(weight_of(tile, t)) * law_.tile_scale[tile];
            const bool is_in = enters(static_cast<int32_t>(id), p);
            if (is_in) cut_.id = static_cast<int32_t>(id);
            return is_in;
        };
        if (visit_ties(t, visit)) cut_.id = kEveryTie;
    }

    // visit(id) for the entries equal to t in index order, until it returns false; true if it never
    // did.
    template <class Visit>
    bool visit_ties(float t, Visit visit) {
        constexpr int kWidth = FloatVector::kWidth;
        if (listed_from_ <= t) {
            for (int i = 0; i < list_.count; ++i) {
                if (list_.x[i] == t && !visit(list_.id[i])) return false;
            }
            return true;
        }
        for (int tile = 0; tile < num_tiles(law_.vocab); ++tile) {
            if (!(law_.tile_max[tile] >= t)) continue;
            const float* x = read_tile(row_of(law_), tile, workspace_.target_tile).x;
            for (int i = 0; i < kTile; i += kWidth) {
                uint32_t hits = lanes_at_least(load(x + i), FloatVector(t));
                for (; hits != 0; hits &= hits - 1) {
                    const int at = i + __builtin_ctz(hits);
                    if (x[at] == t && !visit(tile * kTile + at)) return false;
                }
            }
        }
        return true;
    }

    Law& law_;
    Workspace& workspace_;
    Candidates& list_;
    Cut cut_ = kKeepAll;
    float listed_from_ = kInfinity;  // list_ holds every entry from here on
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

}  // namespace dspark::DSPARK_ISA
