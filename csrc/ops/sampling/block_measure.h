// What of a row lies at or above two thresholds, answered by the 256 threads of a block: counts,
// canonical masses, ties. Every thread asks the same and gets the same answer.
//
// A pass over the row is a warp per tile (device/warp_tile.h); it skips tiles that lie below the
// window, and lists the entries of the window on chip. Where the list holds all that is asked
// about, it answers in place of the row. Both ways give the same bits: leaving out zeros does not
// change a canonical sum.
//
// Passes over the row, besides the statistics. The profile of the row says where the cut lies. If
// some 3500 entries reach down to it: one, which lists them, and all else is answered from the
// list. If more do: one that lists those around the cut, for a mass one that proves the entry found
// among them (and leaves the sums of what is kept), for a count one that sums. More only where the
// profile misleads or thousands of entries are equal.
#pragma once

#include "ops/sampling/block_list.h"
#include "ops/sampling/block_profile.h"

namespace dspark::DSPARK_ISA::sampling {

template <int W>
struct MeasureShared {
    SharedArray<Law, 1> law;
    SharedArray<float, kTileWarps<W> * kLanes> lanes;  // of the tile that each warp sums
    SharedArray<float, kMaxTiles> low;                 // amounts of the last probe
    SharedArray<float, kMaxTiles> high;
    SharedArray<uint16_t, kMaxTiles> ties;  // entries of its window
    // Its smallest and its largest entry, as each warp knows them.
    SharedArray<float, kTileWarps<W>> first;
    SharedArray<float, kTileWarps<W>> last;
    SharedArray<int32_t, 1> tie_id;
    SharedArray<double, 1> above_list;  // the amount above what is listed
    SharedArray<Guess, 1> last_guess;
    SharedArray<int32_t, 1> guesses;  // made in this search
    ListShared<W> list;
    GuessShared<W> guess;
};

template <int W>
class BlockMeasure {
  public:
    // shared.law is the law of the whole row; the profiles of its tiles lie at `profiles`.
    DSPARK_DEVICE BlockMeasure(Global<const uint64_t> profiles, MeasureShared<W>& shared)
        : profiles_(profiles), list_(shared.law, shared.list), shared_(shared) {}

    // Read anew where it is needed, which takes less than registers for all of it.
    DSPARK_DEVICE Law law() const { return shared_.law[0]; }

    // Where to look next: at the entry that the list says is sought, three times in four, as it may
    // be wrong; else where the profile expects it, corrected once by what was found there; else in
    // the middle of the bracket.
    DSPARK_DEVICE Window next_window(Amount kind, double need, float floor,
                                     const Bracket& bracket) {
        const bool is_open = bracket.end >= law().maximum;
        const float end = is_open ? kInfinity : next_above(bracket.end);
        if (bracket.is_closed()) return {bracket.begin, next_above(bracket.begin)};
        if (bracket.has_begin && bracket.step % 4 != 3 && list_.covers(bracket.begin, end)) {
            const float t = list_.find(kind, need, bracket);
            return {t, next_above(t)};
        }
        const float begin = bracket.has_begin ? bracket.begin : floor;
        double error = 0.0;
        int guesses = 0;
        if (bracket.step > 0 || bracket.has_begin) {
            guesses = shared_.guesses[0];
            const Guess guess = shared_.last_guess[0];
            if (bracket.has_begin && bracket.begin >= guess.window.high) {
                error = need + static_cast<double>(bracket.beyond) - guess.at_high;
            } else if (bracket.end < guess.window.low) {
                error = bracket.above_end - guess.at_low;
            } else {
                guesses = kGuesses;
            }
        }
        Window window = {floor, end};
        if (bracket.has_begin) {
            // Above the pivot and below it in turn: each names the entry next to it on its side.
            const float pivot = bracket.pivot(need);
            window = bracket.step % 2 == 0 ? Window{pivot, end} : Window{begin, pivot};
        }
        if (guesses < kGuesses) {
            const Guess guess =
                guess_window<W>(kind, need - error, 0.875f * kListCapacity, law().total, law(),
                                profiles_, shared_.lanes, shared_.guess);
            if (thread_idx() == 0) {
                shared_.last_guess[0] = guess;
                shared_.guesses[0] = guesses + 1;
            }
            const float low = guess.window.low > begin ? guess.window.low : begin;
            const float high = guess.window.high < end ? guess.window.high : end;
            if (low < high) window = {low, high};
        }
        return window;
    }

    // How much lies at or above both ends of a window and within `before`.
    DSPARK_DEVICE WindowProbe probe(Amount kind, Window window, Cut before) {
        const bool is_listed = knows(kind, window);
        const bool lists = !is_listed && !list_.covers(window.low, window.high);
        if (lists) list_.start();
        const Cut cut = stricter({window.low, kEveryTie}, before);
        Ends ends;
        const Law law = this->law();
        const int tiles = num_tiles(law.vocab);
        sync_block();  // the last answer has been read
        for (int first = 0; first < tiles; first += kTileWarps<W>) {
            const int tile = first + warp_index<W>();
            LaneHits<W> hits;
            if (warp_index<W>() < kTileWarps<W> && tile < tiles) {
                const float maximum = law.tile_max[tile];
                TileAmounts amounts = {0.0f, 0.0f, 0};
                if (maximum >= window.low) {
                    amounts = is_listed ? ask_list(kind, tile, maximum, window, cut, ends)
                                        : ask_row(kind, tile, maximum, window, cut, ends, hits);
                }
                if (lane_index<W>() == 0) {
                    shared_.low[tile] = amounts.low;
                    shared_.high[tile] = amounts.high;
                    shared_.ties[tile] = static_cast<uint16_t>(amounts.ties);
                }
            }
            if (lists) list_.add_round(first, tiles, hits);
        }
        store(ends);
        if (lists) list_.finish(tiles, window);
        sync_block();
        WindowProbe answer = beside(window);
        add_tiles(kind, answer.low.amount, answer.high.amount);
        if (is_listed) {
            answer.low.amount += shared_.above_list[0];
            answer.high.amount += shared_.above_list[0];
        } else if (lists && thread_idx() == 0) {
            shared_.above_list[0] = answer.high.amount;
        }
        probed_kind_ = kind;
        probed_ = answer.low.at_least == answer.high.below ? answer.high.below : kInfinity;
        return answer;
    }

    // Whether the window of the last probe holds the entries equal to t and no other.
    DSPARK_DEVICE bool has_probed(float t) const { return probed_ == t; }

    // The probe that has found t has counted the entries equal to it.
    DSPARK_DEVICE void count_ties(float /*t*/, int32_t /*last_id*/) {}
    DSPARK_DEVICE int ties(int tile) const { return shared_.ties[tile]; }

    // Id of the tie number `ordinal` (from 0) of a tile.
    DSPARK_DEVICE int32_t tie_id(int tile, float t, int ordinal) {
        if (warp_index<W>() == 0) find_tie(tile, t, ordinal);
        sync_block();
        return shared_.tie_id[0];
    }

    // Gives the law the canonical tile sums of what a cut keeps; returns what they add up to.
    DSPARK_DEVICE double sum_tiles(Cut cut) {
        const Law law = this->law();
        const int tiles = num_tiles(law.vocab);
        const bool is_probed = probed_kind_ == Amount::kMass && has_probed(cut.x);
        const bool is_listed = list_.covers(cut.x, kInfinity);
        probed_ = kInfinity;
        sync_block();  // the last answer has been read
        for (int tile = warp_index<W>(); tile < tiles; tile += kTileWarps<W>) {
            if (warp_index<W>() >= kTileWarps<W>) break;
            const float maximum = law.tile_max[tile];
            const int32_t last = cut.id - tile * kTile;  // of the ties in the tile
            float sum = 0.0f;
            if (is_probed && (last < 0 || last >= kTile - 1)) {
                sum = last < 0 ? shared_.high[tile] : shared_.low[tile];
                sync_warp<W>();  // all lanes have read it
            } else if (maximum >= cut.x && is_listed) {
                sum = listed_amount(Amount::kMass, tile, maximum, cut.x, cut);
            } else if (maximum >= cut.x) {
                Ends ends;
                LaneHits<W> hits;
                sum =
                    ask_row(Amount::kMass, tile, maximum, {cut.x, kInfinity}, cut, ends, hits).low;
            }
            if (lane_index<W>() != 0) continue;
            shared_.low[tile] = sum;
            shared_.high[tile] = 0.0f;
            law.tile_sum[tile] = sum;
        }
        sync_block();
        double total = 0.0;
        double none = 0.0;
        add_tiles(Amount::kMass, total, none);
        return total;
    }

  private:
    static constexpr int kGuesses = 2;

    // The smallest and the largest entry of a window.
    struct Ends {
        float first = kInfinity;
        float last = -kInfinity;

        DSPARK_DEVICE void add(float x) {
            first = x < first ? x : first;
            last = x > last ? x : last;
        }
    };

    // Amounts of a tile at or above the ends of a window; entries in it.
    struct TileAmounts {
        float low;
        float high;
        int ties;
    };

    // Whether the list answers about a window. What lies above the listed entries is known where
    // entries are counted: as that is asked first, a list is then of counts.
    DSPARK_DEVICE bool knows(Amount kind, Window window) const {
        return list_.covers(window.low, kind == Amount::kCount ? window.high : kInfinity);
    }

    DSPARK_DEVICE void store(const Ends& ends) {
        const float first = warp_min<W>(ends.first);
        const float last = warp_max<W>(ends.last);
        if (lane_index<W>() != 0 || warp_index<W>() >= kTileWarps<W>) return;
        shared_.first[warp_index<W>()] = first;
        shared_.last[warp_index<W>()] = last;
    }

    // What the entries of the window say about the places of others.
    DSPARK_DEVICE WindowProbe beside(Window window) const {
        Ends ends;
        for (int warp = 0; warp < kTileWarps<W>; ++warp) {
            ends.first = Min()(ends.first, static_cast<float>(shared_.first[warp]));
            ends.last = Max()(ends.last, static_cast<float>(shared_.last[warp]));
        }
        const float below = next_below(window.low);
        const bool has_entries = ends.first < kInfinity;
        return {{0.0, has_entries ? ends.first : window.high, below},
                {0.0, window.high, has_entries ? ends.last : below}};
    }

    // What the stored amounts of the tiles add up to, in tile order.
    DSPARK_DEVICE void add_tiles(Amount kind, double& low, double& high) const {
        const Law law = this->law();
        const int tiles = num_tiles(law.vocab);
        for (int first = 0; first < tiles; first += W) {
            const int tile = first + lane_index<W>();
            double of_low = 0.0;
            double of_high = 0.0;
            if (tile < tiles) {
                const double scale = kind == Amount::kCount ? 1.0 : double{law.tile_scale[tile]};
                of_low = tile_mass(shared_.low[tile], scale);
                of_high = tile_mass(shared_.high[tile], scale);
            }
            for (int j = 0; j < W; ++j) {  // past the end: adds 0
                low += shuffle<W>(of_low, j);
                high += shuffle<W>(of_high, j);
            }
        }
    }

    DSPARK_DEVICE TileAmounts ask_list(Amount kind, int tile, float maximum, Window window, Cut cut,
                                       Ends& ends) {
        int ties = 0;
        for (int i = list_.begin(tile) + lane_index<W>(); i < list_.begin(tile + 1); i += W) {
            const float x = list_.x(i);
            if (!(x < window.high) || !is_kept(cut, x, tile * kTile + list_.index(i))) continue;
            ends.add(x);
            ++ties;
        }
        float amounts[2];
        for (int end = 0; end < 2; ++end) {
            amounts[end] =
                listed_amount(kind, tile, maximum, end == 0 ? window.low : window.high, cut);
        }
        return {amounts[0], amounts[1], warp_sum<W>(ties)};
    }

    // The amount of the listed entries of a tile from t on that a cut keeps.
    DSPARK_DEVICE float listed_amount(Amount kind, int tile, float maximum, float t, Cut cut) {
        const int begin = list_.begin(tile);
        const int end = list_.begin(tile + 1);
        const Cut tile_cut = {cut.x, cut.id - tile * kTile};
        const float scale = law().scale;
        int count = 0;
        float sum = 0.0f;
        for (int i = begin + lane_index<W>(); i < end; i += W) {
            const float x = list_.x(i);
            if (!(x >= t) || !is_kept(tile_cut, x, list_.index(i))) continue;
            ++count;
            sum += exp2_nonpositive((x - maximum) * scale);
        }
        count = warp_sum<W>(count);
        if (kind == Amount::kCount) return static_cast<float>(count);
        // One or two entries meet in one addition, wherever their lanes are.
        return count <= 2 ? warp_tree<W>(sum) : listed_sum(begin, end, maximum, t, tile_cut);
    }

    // The first entry of each lane of the canonical sum adds up those of that lane.
    DSPARK_DEVICE float listed_sum(int begin, int end, float maximum, float t, Cut tile_cut) {
        const int lanes = warp_index<W>() * kLanes;
        const float scale = law().scale;
        sync_warp<W>();  // the last tree has been read
        for (int j = 0; j < kSlots<W>; ++j) shared_.lanes[lanes + lane_index<W>() + j * W] = 0.0f;
        sync_warp<W>();
        for (int i = begin + lane_index<W>(); i < end; i += W) {
            const int lane = list_.index(i) % kLanes;
            if (i > begin && list_.index(i - 1) % kLanes == lane) continue;
            float sum = 0.0f;
            for (int k = i; k < end; ++k) {
                const int index = list_.index(k);
                if (index % kLanes != lane) break;
                const float x = list_.x(k);
                if (!(x >= t) || !is_kept(tile_cut, x, index)) continue;
                sum += exp2_nonpositive((x - maximum) * scale);
            }
            shared_.lanes[lanes + lane] = sum;
        }
        sync_warp<W>();
        return warp_halving_tree<W>(shared_.lanes, lanes);
    }

    DSPARK_DEVICE TileAmounts ask_row(Amount kind, int tile, float maximum, Window window, Cut cut,
                                      Ends& ends, LaneHits<W>& hits) {
        const Law law = this->law();
        const float scale = law.scale;
        const WarpTile<W> entries(row_of(law), tile);
        const Cut tile_cut = {cut.x, cut.id - tile * kTile};
        float low[kSlots<W>] = {};
        float high[kSlots<W>] = {};
        entries.template visit<1>([&](int j, int c, float x) {
            if (!is_kept(tile_cut, x, c * kLanes + entries.lane_of_slot(j))) return;
            if (x < window.high) {
                ends.add(x);
                hits.add(j, c);
            }
            const float amount =
                kind == Amount::kCount ? 1.0f : exp2_nonpositive((x - maximum) * scale);
            low[j] += amount;
            high[j] += zero_if(x < window.high, amount);
        });
        const float of_low = tree(entries, low);
        const float of_high = window.high < kInfinity ? tree(entries, high) : 0.0f;
        return {of_low, of_high, warp_sum<W>(hits.count)};
    }

    // The canonical sum of a tile whose slots hold these values.
    DSPARK_DEVICE float tree(const WarpTile<W>& entries, const float (&slots)[kSlots<W>]) {
        const int lanes = warp_index<W>() * kLanes;
        sync_warp<W>();  // the last tree has been read
        for (int j = 0; j < kSlots<W>; ++j) {
            shared_.lanes[lanes + entries.lane_of_slot(j)] = slots[j];
        }
        sync_warp<W>();
        return warp_halving_tree<W>(shared_.lanes, lanes);
    }

    DSPARK_DEVICE void find_tie(int tile, float t, int ordinal) {
        const Row row = row_of(law());
        const int count = tile_size(row.size, tile);
        for (int begin = 0; begin < count && ordinal >= 0; begin += W) {
            const int32_t id = tile * kTile + begin + lane_index<W>();
            const bool is_tie = id < row.size && read_entry(row, id) == t;
            const int up_to_here = warp_inclusive_sum<W>(is_tie ? 1 : 0);
            if (is_tie && up_to_here == ordinal + 1) shared_.tie_id[0] = id;
            ordinal -= shuffle<W>(up_to_here, W - 1);
        }
    }

    Global<const uint64_t> profiles_;
    BlockList<W> list_;
    MeasureShared<W>& shared_;
    Amount probed_kind_ = Amount::kCount;
    float probed_ = kInfinity;
};

}  // namespace dspark::DSPARK_ISA::sampling
