// What of a row lies at or above a threshold: counts, canonical masses, ties, neighbours.
//
// The largest entries can be listed once; whatever lies within the list is then answered from it,
// the rest tile by tile. Both ways give the same bits: leaving out zeros does not change a
// canonical sum.
#pragma once

#include "ops/sampling/cpu_workspace.h"
#include "ops/sampling/filter.h"

namespace dspark::DSPARK_ISA::sampling {

class RowMeasure {
  public:
    RowMeasure(const Law& law, Workspace& workspace)
        : law_(law), workspace_(workspace), list_(workspace.candidates) {}

    // The law of the whole row.
    const Law& law() const { return law_; }

    // Where to look next: lower at each attempt until the amount is reached, then in between.
    Window next_window(Amount, double need, float floor, const Bracket& bracket) {
        const float t = bracket.has_begin ? bracket.pivot(need) : reach_down(floor, bracket.step);
        return {t, t};
    }
    // Whether the ties at an end of the search can be counted at once.
    bool has_probed(float) const { return true; }

    // Lists the entries from `from` on; false if they are too many.
    bool list(float from) {
        constexpr int kWidth = FloatVector::kWidth;
        list_.count = 0;
        listed_from_ = kInfinity;
        for (int t = 0; t < num_tiles(law_.vocab); ++t) {
            if (!(law_.tile_max[t] >= from)) continue;
            const float* x = reread_tile(law_, t, workspace_.target_tile);
            for (int i = 0; i < kTile; i += kWidth) {
                uint32_t hits = lanes_at_least(load(x + i), FloatVector(from));
                if (list_.count + kWidth > list_.capacity) return false;
                for (; hits != 0; hits &= hits - 1) append(t, i + __builtin_ctz(hits), x);
            }
        }
        listed_from_ = from;
        return true;
    }

    // How many entries a cut keeps.
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

    // Gives the law the canonical tile sums of what a cut keeps; returns what they add up to.
    double sum_tiles(Cut cut) { return sum_tiles(cut, law_.tile_sum); }

    double sum_tiles(Cut cut, float* sums) {
        store_sums(cut, sums);
        double total = 0.0;
        for (int t = 0; t < num_tiles(law_.vocab); ++t) {
            total += tile_mass(sums[t], law_.tile_scale[t]);
        }
        return total;
    }

    // Counts, tile by tile, the entries equal to t with ids up to last_id.
    void count_ties(float t, int32_t last_id) {
        for (int tile = 0; tile < num_tiles(law_.vocab); ++tile) workspace_.ties[tile] = 0;
        visit_ties(t, last_id, [&](int32_t id) {
            ++workspace_.ties[id / kTile];
            return true;
        });
    }
    int ties(int tile) const { return workspace_.ties[tile]; }

    // Id of the tie number `ordinal` (from 0) of a tile.
    int32_t tie_id(int tile, float t, int ordinal) {
        int32_t found = 0;
        visit_ties(t, kEveryTie, [&](int32_t id) {
            found = id;
            return id / kTile != tile || ordinal-- > 0;
        });
        return found;
    }

    // How much lies at or above both ends (which are one) and within `before`.
    WindowProbe probe(Amount kind, Window window, Cut before) {
        Probe probe = neighbours(window.low);
        if (!(probe.below > -kInfinity)) probe.below = next_below(window.low);  // not in the list
        probe.amount = amount(kind, stricter({window.low, kEveryTie}, before));
        return {probe, probe};
    }

    double amount(Amount kind, Cut cut) {
        return kind == Amount::kCount ? static_cast<double>(count(cut))
                                      : sum_tiles(cut, workspace_.sums);
    }

  private:
    // A threshold lower than at the last attempt, `floor` in the end. The entries from there on are
    // listed if they are few.
    float reach_down(float floor, int attempt) {
        if (is_listed(floor)) return floor;
        if (attempt == 0) are_few_ = true;
        const float wished = law_.maximum - static_cast<float>(12 << attempt) / law_.scale;
        const float from = attempt < 3 && wished > floor ? wished : floor;
        are_few_ = are_few_ && list(from);
        return from;
    }

    bool is_listed(float from) const { return listed_from_ <= from; }

    void store_sums(Cut cut, float* sums) {
        for (int t = 0; t < num_tiles(law_.vocab); ++t) sums[t] = 0.0f;
        if (listed_from_ <= cut.x) {
            for (int i = 0; i < list_.count;) i = sum_listed_tile(cut, i, sums);
            return;
        }
        for (int t = 0; t < num_tiles(law_.vocab); ++t) {
            if (!(law_.tile_max[t] >= cut.x)) continue;
            const float* x = read_kept(law_, cut, t, workspace_.target_tile);
            const TileWeights weights(x, law_.tile_max[t], law_.scale, cut.x);
            sums[t] = canonical_sum(tile_size(law_.vocab, t), weights);
        }
    }

    // visit(id) for the entries equal to t with ids up to last_id, in index order, until it returns
    // false.
    template <class Visit>
    void visit_ties(float t, int32_t last_id, Visit visit) {
        constexpr int kWidth = FloatVector::kWidth;
        if (listed_from_ <= t) {
            for (int i = 0; i < list_.count && list_.id[i] <= last_id; ++i) {
                if (list_.x[i] == t && !visit(list_.id[i])) return;
            }
            return;
        }
        for (int tile = 0; tile < num_tiles(law_.vocab); ++tile) {
            if (!(law_.tile_max[tile] >= t)) continue;
            const float* x = reread_tile(law_, tile, workspace_.target_tile);
            for (int i = 0; i < kTile; i += kWidth) {
                uint32_t hits = lanes_at_least(load(x + i), FloatVector(t));
                for (; hits != 0; hits &= hits - 1) {
                    const int at = i + __builtin_ctz(hits);
                    const int32_t id = tile * kTile + at;
                    if (id > last_id) return;
                    if (x[at] == t && !visit(id)) return;
                }
            }
        }
    }

    Probe neighbours(float t) {
        Probe next = {0.0, kInfinity, -kInfinity};
        if (is_listed(t)) {
            for (int i = 0; i < list_.count; ++i) next = closer(next, list_.x[i], t);
            return next;
        }
        for (int tile = 0; tile < num_tiles(law_.vocab); ++tile) {
            if (law_.tile_max[tile] < t) {
                next = closer(next, law_.tile_max[tile], t);
            } else {
                next = closer_in_tile(next, tile, t);
            }
        }
        return next;
    }

    static Probe closer(Probe next, float x, float t) {
        if (x >= t) {
            next.at_least = x < next.at_least ? x : next.at_least;
        } else {
            next.below = x > next.below ? x : next.below;
        }
        return next;
    }

    Probe closer_in_tile(Probe next, int tile, float t) {
        constexpr int kWidth = FloatVector::kWidth;
        const float* x = reread_tile(law_, tile, workspace_.target_tile);
        const FloatVector zero(0.0f);
        FloatVector minus_at_least(-kInfinity);
        FloatVector below(-kInfinity);
        for (int i = 0; i < kTile; i += kWidth) {
            const FloatVector value = load(x + i);
            const VectorMask is_below = less(value, FloatVector(t));
            below = max(select(is_below, value, below), below);
            minus_at_least = max(select(is_below, minus_at_least, zero - value), minus_at_least);
        }
        float lanes[2 * kWidth];
        store(lanes, below);
        store(lanes + kWidth, zero - minus_at_least);
        for (float lane : lanes) next = closer(next, lane, t);
        return next;
    }

    void append(int tile, int i, const float* x) {
        list_.x[list_.count] = x[i];
        list_.weight[list_.count] = exp2_nonpositive((x[i] - law_.tile_max[tile]) * law_.scale);
        list_.id[list_.count] = tile * kTile + i;
        ++list_.count;
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

    const Law& law_;
    Workspace& workspace_;
    EntryList& list_;
    float listed_from_ = kInfinity;  // list_ holds every entry from here on
    bool are_few_ = true;            // entries from the last threshold on
};

}  // namespace dspark::DSPARK_ISA::sampling
