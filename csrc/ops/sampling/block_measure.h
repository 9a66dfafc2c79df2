// What of a row lies at or above a threshold, answered by the 256 threads of a block: counts,
// canonical masses, ties, neighbours. Every thread asks the same and gets the same answer.
//
// A pass over the row is a warp per tile, without a barrier (device/warp_tile.h). Before anything
// is asked, the largest entries are listed where a sample of the row says that they are few and
// enough to find the cut among: then the row is read once, all questions are answered from the
// list. Both ways give the same bits: leaving out zeros does not change a canonical sum.
//
// Passes over the row, besides the statistics: where the list serves (top-k up to some 4000 and
// most top-p), one and what the sample touches (256 sectors). Else: one to see that the threshold
// is low enough, one per step of the search (5 to 20, more for float32 than for 16-bit rows), one
// for the ties and one for the sums of what is kept.
#pragma once

#include "ops/sampling/block_list.h"

namespace dspark::DSPARK_ISA::sampling {

// Warps that take tiles: all but in the emulator's blocks of many tiny warps.
template <int W>
constexpr int kTileWarps = kWarps<W> < 8 ? kWarps<W> : 8;

template <int W>
struct MeasureShared {
    SharedArray<float, kTileWarps<W> * kLanes> lanes;  // of the tile that each warp sums
    SharedArray<double, kMaxTiles> amounts;
    SharedArray<int32_t, kMaxTiles> ties;
    SharedArray<float, kTileWarps<W>> at_least;
    SharedArray<float, kTileWarps<W>> below;
    SharedArray<int32_t, 1> tie_id;
    ListShared<W> list;
};

template <int W>
class BlockMeasure {
  public:
    // Row r of the scratch is the row of the law.
    DSPARK_DEVICE BlockMeasure(const Law& law, const LawScratch& scratch, int64_t r,
                               MeasureShared<W>& shared)
        : law_(law),
          list_(law, scratch, r, shared.list),
          shared_(shared),
          tiles_(num_tiles(law.vocab)) {}

    DSPARK_DEVICE float reach_down(Amount kind, double need, float floor, int attempt) {
        return list_.reach_down(kind, need, floor, attempt);
    }

    // How much lies at or above t and within `before`, and the entries next to t.
    DSPARK_DEVICE Probe probe(Amount kind, float t, Cut before) {
        return ask<true>(kind, t, stricter({t, kEveryTie}, before), nullptr);
    }

    // Stores the canonical tile sums of what a cut keeps; returns what they add up to.
    DSPARK_DEVICE double sum_tiles(Cut cut, Global<float> sums) {
        return ask<false>(Amount::kMass, cut.x, cut, sums).amount;
    }

    // Counts, tile by tile, the entries equal to t with ids up to last_id.
    DSPARK_DEVICE void count_ties(float t, int32_t last_id) {
        sync_block();  // the last counts have been read
        for (int tile = warp_index<W>(); tile < tiles_; tile += kWarps<W>) {
            int count = 0;
            if (list_.covers(t)) {
                const int end = list_.begin(tile + 1);
                for (int i = list_.begin(tile) + lane_index<W>(); i < end; i += W) {
                    count += list_.x(i) == t && list_.id(i) <= last_id ? 1 : 0;
                }
            } else if (law_.tile_max[tile] >= t) {
                const WarpTile<W> entries(row_of(law_), tile);
                const int32_t last = last_id - tile * kTile;
                entries.template visit<1>([&](int j, int c, float x) {
                    count += x == t && c * kLanes + entries.lane_of_slot(j) <= last ? 1 : 0;
                });
            }
            count = warp_sum<W>(count);
            if (lane_index<W>() == 0) shared_.ties[tile] = count;
        }
        sync_block();
    }
    DSPARK_DEVICE int ties(int tile) const { return shared_.ties[tile]; }

    // Id of the tie number `ordinal` (from 0) of a tile.
    DSPARK_DEVICE int32_t tie_id(int tile, float t, int ordinal) {
        if (warp_index<W>() == 0) find_tie(tile, t, ordinal);
        sync_block();
        return shared_.tie_id[0];
    }

  private:
    struct Neighbours {
        float at_least = kInfinity;
        float below = -kInfinity;

        DSPARK_DEVICE void meet(float x, float t) {
            if (x >= t) {
                at_least = x < at_least ? x : at_least;
            } else {
                below = x > below ? x : below;
            }
        }
    };

    // What `cut` keeps and, if wanted, the entries next to t, which is not above the cut. Stores
    // the tile sums unless `sums` is null.
    template <bool kWithNeighbours>
    DSPARK_DEVICE Probe ask(Amount kind, float t, Cut cut, Global<float> sums) {
        sync_block();  // the last answer has been read
        Neighbours near;
        const bool is_listed = list_.covers(t);
        for (int tile = warp_index<W>(); tile < tiles_; tile += kTileWarps<W>) {
            if (warp_index<W>() >= kTileWarps<W>) break;
            const float maximum = law_.tile_max[tile];
            float value = 0.0f;  // the count or the canonical sum
            if (maximum < t) {
                near.meet(maximum, t);
            } else if (is_listed) {
                value = ask_list<kWithNeighbours>(kind, tile, maximum, t, cut, near);
            } else {
                value = ask_row<kWithNeighbours>(kind, tile, maximum, t, cut, near);
            }
            if (lane_index<W>() == 0) {
                shared_.amounts[tile] = kind == Amount::kCount
                                            ? static_cast<double>(value)
                                            : tile_mass(value, law_.tile_scale[tile]);
                if (sums != nullptr) sums[tile] = value;
            }
        }
        if (kWithNeighbours) store_neighbours(near);
        sync_block();
        Probe answer = {0.0, kInfinity, -kInfinity};
        for (int tile = 0; tile < tiles_; ++tile) answer.amount += shared_.amounts[tile];
        for (int warp = 0; kWithNeighbours && warp < kTileWarps<W>; ++warp) {
            answer.at_least = Min()(answer.at_least, static_cast<float>(shared_.at_least[warp]));
            answer.below = Max()(answer.below, static_cast<float>(shared_.below[warp]));
        }
        return answer;
    }

    DSPARK_DEVICE void store_neighbours(const Neighbours& near) {
        const float at_least = warp_min<W>(near.at_least);
        const float below = warp_max<W>(near.below);
        if (lane_index<W>() == 0 && warp_index<W>() < kTileWarps<W>) {
            shared_.at_least[warp_index<W>()] = at_least;
            shared_.below[warp_index<W>()] = below;
        }
    }

    template <bool kWithNeighbours>
    DSPARK_DEVICE float ask_list(Amount kind, int tile, float maximum, float t, Cut cut,
                                 Neighbours& near) {
        const int begin = list_.begin(tile);
        const int end = list_.begin(tile + 1);
        int count = 0;
        float sum = 0.0f;
        for (int i = begin + lane_index<W>(); i < end; i += W) {
            const float x = list_.x(i);
            if (kWithNeighbours) near.meet(x, t);
            if (!is_kept(cut, x, list_.id(i))) continue;
            ++count;
            sum += exp2_nonpositive((x - maximum) * law_.scale);
        }
        count = warp_sum<W>(count);
        if (kind == Amount::kCount) return static_cast<float>(count);
        // One or two entries meet in one addition, wherever their lanes are.
        return count <= 2 ? warp_tree<W>(sum) : sum_list(begin, end, maximum, cut);
    }

    // The first entry of each lane of the canonical sum adds up those of that lane.
    DSPARK_DEVICE float sum_list(int begin, int end, float maximum, Cut cut) {
        const int lanes = warp_index<W>() * kLanes;
        for (int j = 0; j < kSlots<W>; ++j) shared_.lanes[lanes + lane_index<W>() + j * W] = 0.0f;
        sync_warp<W>();
        for (int i = begin + lane_index<W>(); i < end; i += W) {
            const int lane = list_.id(i) % kLanes;
            if (i > begin && list_.id(i - 1) % kLanes == lane) continue;
            float sum = 0.0f;
            for (int k = i; k < end; ++k) {
                const int32_t id = list_.id(k);
                if (id % kLanes != lane) break;
                const float x = list_.x(k);
                if (is_kept(cut, x, id)) sum += exp2_nonpositive((x - maximum) * law_.scale);
            }
            shared_.lanes[lanes + lane] = sum;
        }
        sync_warp<W>();
        return warp_halving_tree<W>(shared_.lanes, lanes);
    }

    template <bool kWithNeighbours>
    DSPARK_DEVICE float ask_row(Amount kind, int tile, float maximum, float t, Cut cut,
                                Neighbours& near) {
        const WarpTile<W> entries(row_of(law_), tile);
        const Cut tile_cut = {cut.x, cut.id - tile * kTile};
        float sum[kSlots<W>] = {};
        int count = 0;
        entries.template visit<1>([&](int j, int c, float x) {
            if (kWithNeighbours) near.meet(x, t);
            if (!is_kept(tile_cut, x, c * kLanes + entries.lane_of_slot(j))) return;
            ++count;
            if (kind == Amount::kMass) sum[j] += exp2_nonpositive((x - maximum) * law_.scale);
        });
        if (kind == Amount::kCount) return static_cast<float>(warp_sum<W>(count));
        const int lanes = warp_index<W>() * kLanes;
        sync_warp<W>();  // the last tree has been read
        for (int j = 0; j < kSlots<W>; ++j) {
            shared_.lanes[lanes + entries.lane_of_slot(j)] = sum[j];
        }
        sync_warp<W>();
        return warp_halving_tree<W>(shared_.lanes, lanes);
    }

    DSPARK_DEVICE void find_tie(int tile, float t, int ordinal) {
        const int count = tile_size(law_.vocab, tile);
        for (int begin = 0; begin < count && ordinal >= 0; begin += W) {
            const int32_t id = tile * kTile + begin + lane_index<W>();
            const bool is_tie = id < law_.vocab && read_entry(row_of(law_), id) == t;
            const int up_to_here = warp_inclusive_sum<W>(is_tie ? 1 : 0);
            if (is_tie && up_to_here == ordinal + 1) shared_.tie_id[0] = id;
            ordinal -= shuffle<W>(up_to_here, W - 1);
        }
    }

    const Law& law_;
    BlockList<W> list_;
    MeasureShared<W>& shared_;
    int tiles_;
};

}  // namespace dspark::DSPARK_ISA::sampling
