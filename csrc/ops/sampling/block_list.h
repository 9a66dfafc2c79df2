// The largest entries of a row, listed by the 256 threads of a block in one pass, where a sample of
// the row says that they are few.
#pragma once

#include "device/block_law.h"
#include "device/warp_scan.h"
#include "device/warp_tile.h"
#include "ops/sampling/filter.h"

namespace dspark::DSPARK_ISA::sampling {

template <int W>
struct ListShared {
    SharedArray<int32_t, kMaxTiles + 1> begin;  // of the entries of a tile; at last the end
    SharedArray<int32_t, kMaxTiles> counts;
    BlockReduceScratch<W, uint64_t> estimate;
};

// Entries from all over a row: 8 consecutive ones per thread.
struct RowSample {
    static constexpr int kPerThread = 8;
    float x[kPerThread];
};

DSPARK_DEVICE RowSample sample_row(const Row& row) {
    const int64_t first = int64_t{thread_idx()} * row.size / kThreads;
    RowSample sample;
    for (int e = 0; e < RowSample::kPerThread; ++e) {
        sample.x[e] = first + e < row.size ? read_entry(row, first + e) : -kInfinity;
    }
    return sample;
}

// What a sample says of a row and a threshold.
struct Estimate {
    double hits;     // of the sample, at or above
    double count;    // of the row, at or above
    double missing;  // mass of the row below
};

// All threads of the block call the member functions, with the same values.
template <int W>
class BlockList {
  public:
    // Row r of the scratch is the row of the law.
    DSPARK_DEVICE BlockList(const Law& law, const LawScratch& scratch, int64_t r,
                            ListShared<W>& shared)
        : law_(law),
          scratch_(scratch),
          first_(r * scratch.list_capacity),
          shared_(shared),
          tiles_(num_tiles(law.vocab)) {}

    DSPARK_DEVICE bool covers(float from) const { return from_ <= from; }

    // The listed entries of a tile are x(i), id(i) for i in [begin(tile), begin(tile + 1)): those
    // of one lane of the canonical sum stand together, in index order.
    DSPARK_DEVICE int begin(int tile) const { return shared_.begin[tile]; }
    DSPARK_DEVICE float x(int i) const { return scratch_.list_x[first_ + i]; }
    DSPARK_DEVICE int32_t id(int i) const { return scratch_.list_id[first_ + i]; }

    // A threshold that a sample expects to reach `need`: lower at each attempt, `floor` in the end.
    // The entries from there on are listed if they are few.
    DSPARK_DEVICE float reach_down(Amount kind, double need, float floor, int attempt) {
        if (covers(floor)) return floor;
        if (attempt == 0) next_reach_ = law_.vocab <= scratch_.list_capacity ? kReaches : 0;
        const RowSample sample = sample_row(row_of(law_));
        // The first number that is enough; the last is.
        int high = kReaches;
        for (int low = next_reach_; low < high;) {
            const int middle = (low + high) / 2;
            if (is_enough(judge(sample, reach(middle)), middle, kind, need)) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        next_reach_ = high + kReaches / 8;
        const float wished = high < kReaches ? reach(high) : -kFltMax;
        const float from = wished > floor ? wished : floor;
        const bool are_few = judge(sample, from).count <= 0.75 * scratch_.list_capacity;
        from_ = kInfinity;  // a list that begins higher would answer about neighbours wrongly
        if (are_few || law_.vocab <= scratch_.list_capacity) list(from);
        return from;
    }

  private:
    // Thresholds to choose from: the largest entry less 1.5 to 60 binary orders of weight.
    static constexpr int kReaches = 43;
    DSPARK_DEVICE float reach(int number) const {
        const float orders =
            64.0f * exp2_nonpositive(static_cast<float>(number - kReaches) * 0.125f);
        return law_.maximum - orders * rough_reciprocal(law_.scale);
    }

    // In integers, so that the threads' parts add up in any order.
    DSPARK_DEVICE Estimate judge(const RowSample& sample, float from) {
        constexpr int64_t kHit = int64_t{1} << 48;
        int64_t mine = 0;
        for (float x : sample.x) {
            const float weight = exp2_nonpositive((x - law_.maximum) * law_.scale);
            mine += x >= from ? kHit : static_cast<int64_t>(weight * 0x1p30f);
        }
        sync_block();  // the scratch is free
        const int64_t total =
            static_cast<int64_t>(block_sum<W>(static_cast<uint64_t>(mine), shared_.estimate));
        constexpr double kOfEntry = 1.0 / (kThreads * RowSample::kPerThread);
        const double part = kOfEntry * law_.vocab;
        const double hits = static_cast<double>(total / kHit);
        const double missing = static_cast<double>(total % kHit) * 0x1p-30;
        return {hits, hits * part, missing * part};
    }

    // Whether threshold `number` is expected to reach `need`, with some room.
    DSPARK_DEVICE bool is_enough(const Estimate& estimate, int number, Amount kind,
                                 double need) const {
        if (kind == Amount::kCount) return estimate.hits > 8.0 && estimate.count >= 1.5 * need;
        // Few entries may hold much of the mass; a sample that has met hardly any cannot judge.
        constexpr int kDeep = 24;  // 12 binary orders
        const bool can_judge = estimate.hits >= 32.0 || number >= kDeep;
        return can_judge && estimate.missing <= 0.5 * (law_.total - need);
    }

    // Lists the entries from `from` on; gives up if they are too many. A warp per tile.
    DSPARK_DEVICE void list(float from) {
        constexpr int kWords = kSlots<W> * kChunks / 32;
        from_ = kInfinity;
        int end = 0;
        sync_block();  // the counts are free
        for (int first = 0; first < tiles_; first += kWarps<W>) {
            const int tile = first + warp_index<W>();
            uint32_t hits[kWords] = {};  // bit 16 j + c: entry c of slot j
            int count = 0;
            if (tile < tiles_ && law_.tile_max[tile] >= from) {
                WarpTile<W>(row_of(law_), tile).template visit<1>([&](int j, int c, float x) {
                    if (!(x >= from)) return;
                    hits[j / 2] |= 1u << (j % 2 * kChunks + c);
                    ++count;
                });
            }
            const int up_to_here = warp_inclusive_sum<W>(count);
            if (tile < tiles_ && lane_index<W>() == W - 1) shared_.counts[tile] = up_to_here;
            sync_block();
            int begin = end;
            for (int other = first; other < first + kWarps<W> && other < tiles_; ++other) {
                const int of_other = shared_.counts[other];
                if (other < tile) begin += of_other;
                end += of_other;
            }
            if (end > scratch_.list_capacity) return;
            if (tile < tiles_ && lane_index<W>() == 0) shared_.begin[tile] = begin;
            append(tile, hits, begin + up_to_here - count);
        }
        if (thread_idx() == 0) shared_.begin[tiles_] = end;
        sync_block();
        from_ = from;
    }

    // The words come to the front one by one, so that none is indexed by a variable.
    template <int N>
    DSPARK_DEVICE void append(int tile, uint32_t (&hits)[N], int at) {
        const WarpTile<W> entries(row_of(law_), tile);
        for (int word = 0; word < N; ++word) {
            for (uint32_t bits = hits[0]; bits != 0; bits &= bits - 1) {
                const int bit = lowest_bit(bits);
                const int lane = entries.lane_of_slot(2 * word + bit / kChunks);
                const int32_t id = tile * kTile + bit % kChunks * kLanes + lane;
                scratch_.list_x[first_ + at] = read_entry(row_of(law_), id);
                scratch_.list_id[first_ + at] = id;
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

    const Law& law_;
    const LawScratch& scratch_;
    int64_t first_;  // of the row's part of the lists
    ListShared<W>& shared_;
    int tiles_;
    int next_reach_ = 0;
    float from_ = kInfinity;  // every entry from here on is listed
};

}  // namespace dspark::DSPARK_ISA::sampling
