// The entries of a row that lie in a window, listed on chip by the 256 threads of a block while
// they pass over the row.
#pragma once

#include "device/block_law.h"
#include "device/warp_scan.h"
#include "device/warp_tile.h"
#include "ops/sampling/filter.h"

namespace dspark::DSPARK_ISA::sampling {

constexpr int kListCapacity = 4096;

// Warps that take tiles: all but in the emulator's blocks of many tiny warps.
template <int W>
constexpr int kTileWarps = kWarps<W> < 8 ? kWarps<W> : 8;

template <int W>
struct ListShared {
    SharedArray<float, kListCapacity> x;
    SharedArray<uint16_t, kListCapacity> index;    // in the tile
    SharedArray<uint16_t, kMaxTiles + 1> begin;    // of the entries of a tile; at last the end
    SharedArray<int32_t, 2 * kTileWarps<W>> hits;  // of the tiles of this round and of the last
    BlockReduceScratch<W, int64_t> amount;
    BlockReduceScratch<W, float> at_least;
    BlockReduceScratch<W, float> below;
};

// Entries of a tile that one lane of a warp has met.
template <int W>
struct LaneHits {
    static constexpr int kWords = kSlots<W> * kChunks / 32;
    uint32_t bits[kWords] = {};  // bit 16 j + c: entry c of slot j
    int count = 0;

    DSPARK_DEVICE void add(int j, int c) {
        bits[j / 2] |= 1u << (j % 2 * kChunks + c);
        ++count;
    }
};

// All threads of the block call the member functions, with the same values.
template <int W>
class BlockList {
  public:
    DSPARK_DEVICE BlockList(SharedArray<Law, 1>& law, ListShared<W>& shared)
        : law_(law), shared_(shared) {}

    // Whether every entry of [low, high) is listed.
    DSPARK_DEVICE bool covers(float low, float high) const {
        return window_.low <= low && high <= window_.high;
    }

    // The listed entries of a tile are x(i), index(i) for i in [begin(tile), begin(tile + 1)):
    // those of one lane of the canonical sum stand together, in index order.
    DSPARK_DEVICE int begin(int tile) const { return shared_.begin[tile]; }
    DSPARK_DEVICE float x(int i) const { return shared_.x[i]; }
    DSPARK_DEVICE int index(int i) const { return shared_.index[i]; }

    // To list the entries of a window, the tiles are passed in rounds of one per warp.
    DSPARK_DEVICE void start() {
        count_ = 0;
        window_ = {kInfinity, -kInfinity};
    }
    // Adds the hits of the tiles from `first` on; the row has `tiles`.
    DSPARK_DEVICE void add_round(int first, int tiles, LaneHits<W>& hits) {
        const int tile = first + warp_index<W>();
        const bool has_tile = warp_index<W>() < kTileWarps<W> && tile < tiles;
        const int round = first / kTileWarps<W> % 2 * kTileWarps<W>;
        const int up_to_here = warp_inclusive_sum<W>(hits.count);
        if (has_tile && lane_index<W>() == W - 1) {
            shared_.hits[round + warp_index<W>()] = up_to_here;
        }
        sync_block();
        int begin = count_;
        for (int warp = 0; warp < kTileWarps<W> && first + warp < tiles; ++warp) {
            const int of_warp = shared_.hits[round + warp];
            if (warp < warp_index<W>()) begin += of_warp;
            count_ += of_warp;
        }
        if (count_ > kListCapacity || !has_tile) return;
        if (lane_index<W>() == 0) shared_.begin[tile] = static_cast<uint16_t>(begin);
        append(tile, hits.bits, begin + up_to_here - hits.count);
    }
    // What was added are all entries of the window. It is listed unless they are too many.
    DSPARK_DEVICE void finish(int tiles, Window window) {
        if (count_ <= kListCapacity) window_ = window;
        if (thread_idx() == 0) shared_.begin[tiles] = static_cast<uint16_t>(count_);
        sync_block();
    }

    // The entry sought, if weights and their sums had no rounding errors from the nearer end of the
    // bracket on. The entries of the bracket are listed.
    DSPARK_DEVICE float find(Amount kind, double need, const Bracket& bracket) {
        const Probe all = add_up(kind, bracket.begin, bracket.end);
        Bracket rest = bracket;
        rest.step = 0;
        rest.begin = all.at_least;
        const double from_begin = need + static_cast<double>(bracket.beyond) - all.amount;
        if (bracket.beyond < static_cast<float>(need - bracket.above_end) && from_begin < need) {
            rest.above_end = from_begin;
        }
        const double above_end = rest.above_end;
        while (rest.begin < rest.end) {
            const float t = rest.pivot(need);
            Probe probe = add_up(kind, t, bracket.end);
            probe.amount += above_end;
            rest.narrow({probe, probe}, need);
        }
        return rest.begin;
    }

  private:
    // The words come to the front one by one, so that none is indexed by a variable.
    template <int N>
    DSPARK_DEVICE void append(int tile, uint32_t (&hits)[N], int at) {
        const Row row = row_of(law_[0]);
        const WarpTile<W> entries(row, tile);
        for (int word = 0; word < N; ++word) {
            for (uint32_t bits = hits[0]; bits != 0; bits &= bits - 1) {
                const int bit = lowest_bit(bits);
                const int lane = entries.lane_of_slot(2 * word + bit / kChunks);
                const int index = bit % kChunks * kLanes + lane;
                shared_.x[at] = read_entry(row, tile * kTile + index);
                shared_.index[at] = static_cast<uint16_t>(index);
                ++at;
            }
            for (int next = 1; next < N; ++next) hits[next - 1] = hits[next];
        }
    }

    // Number of the lowest bit set; a float has it in the exponent.
    DSPARK_DEVICE static int lowest_bit(uint32_t bits) {
        const uint32_t lowest = bits & (~bits + 1);
        return static_cast<int>(bit_cast<uint32_t>(static_cast<float>(lowest)) >> 23) - 127;
    }

    // Listed entries in [t, last], their masses in integers so that they add up in any order; and
    // the entries next to t.
    DSPARK_DEVICE Probe add_up(Amount kind, float t, float last) {
        const Law law = law_[0];
        int64_t amount = 0;
        float at_least = kInfinity;
        float below = -kInfinity;
        for (int i = thread_idx(); i < count_; i += kThreads) {
            const float x = shared_.x[i];
            if (x < t) {
                below = x > below ? x : below;
                continue;
            }
            at_least = x < at_least ? x : at_least;
            if (!(x <= last)) continue;
            const float weight = exp2_nonpositive((x - law.maximum) * law.scale);
            amount += kind == Amount::kCount ? 1 : static_cast<int64_t>(weight * 0x1p50f);
        }
        sync_block();  // the scratches are free
        const double total = static_cast<double>(block_sum<W>(amount, shared_.amount));
        return {kind == Amount::kCount ? total : total * 0x1p-50,
                block_min<W>(at_least, shared_.at_least), block_max<W>(below, shared_.below)};
    }

    SharedArray<Law, 1>& law_;
    ListShared<W>& shared_;
    int count_ = 0;
    Window window_ = {kInfinity, -kInfinity};
};

}  // namespace dspark::DSPARK_ISA::sampling
