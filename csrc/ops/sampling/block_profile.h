// How the entries of a row are spread: counted by row_statistics while it has a tile on chip, and
// from that a guess where a cut lies. A guess decides what is read next, never what comes out.
#pragma once

#include "device/block_law.h"
#include "ops/sampling/filter.h"

namespace dspark::DSPARK_ISA::sampling {

// The profile of a tile counts its entries of positive weight by the binary orders that this lies
// below the largest: 8 bins of one order, then [8, 10), [10, 14), [14, 22) and the rest.
constexpr int kProfileBins = 12;
constexpr int kCountersPerWord = 4;  // of 16 bits
constexpr int kProfileWords = kProfileBins / kCountersPerWord;

DSPARK_DEVICE int profile_bin(int order) {
    const int fine = order < 0 ? 0 : order < 8 ? order : 8;
    return fine + (order >= 10 ? 1 : 0) + (order >= 14 ? 1 : 0) + (order >= 22 ? 1 : 0);
}

constexpr float kDeepest = 38.0f;  // where guesses let the last bin end
DSPARK_DEVICE constexpr float bin_width(int bin) {
    return bin < 8 ? 1.0f : static_cast<float>(2 << (bin - 8));
}
DSPARK_DEVICE constexpr float bin_centre(int bin) {
    return bin < 8 ? static_cast<float>(bin) + 0.5f : 6.0f + 1.5f * bin_width(bin);
}

template <int W>
struct ProfileShared {
    SharedArray<uint64_t, kProfileWords * kWarps<W>> words;  // of each warp
};

// Counts the entries of a tile by their weights. Complete after the next sync_block.
template <int W>
DSPARK_DEVICE void count_profile(const LaneEntries& weights, ProfileShared<W>& shared) {
    constexpr int kBits = 5;  // 16 entries of a thread may meet in one bin
    uint64_t mine = 0;
    for (int c = 0; c < kEntriesPerThread; ++c) {
        const int order = 126 - static_cast<int>(bit_cast<uint32_t>(weights.x[c]) >> 23);
        const uint64_t one = weights.x[c] > 0.0f ? 1 : 0;
        mine += one << (kBits * profile_bin(order));
    }
    for (int word = 0; word < kProfileWords; ++word) {
        uint64_t wide = 0;
        for (int i = 0; i < kCountersPerWord; ++i) {
            wide |= (mine >> (kBits * (word * kCountersPerWord + i)) & 31) << 16 * i;
        }
        wide = warp_sum<W>(wide);
        if (lane_index<W>() == 0) shared.words[warp_index<W>() * kProfileWords + word] = wide;
    }
}

template <int W>
DSPARK_DEVICE void store_profile(const ProfileShared<W>& shared, Global<uint64_t> profile) {
    if (thread_idx() >= kProfileWords) return;
    uint64_t sum = 0;
    for (int warp = 0; warp < kWarps<W>; ++warp) {
        sum += shared.words[warp * kProfileWords + thread_idx()];
    }
    profile[thread_idx()] = sum;
}

// ---- guesses ------------------------------------------------------------------------------------

constexpr int kProfileStage = 1024;  // floats, of some tiles at a time

template <int W>
struct GuessShared {
    BlockScanScratch<W, int64_t> count;
    BlockScanScratch<W, int64_t> mass;
    SharedArray<float, 1> rank;
    SharedArray<float, 2> depth;
    SharedArray<double, 2> amount;
};

// Where the amount is expected to reach what is asked for, and the amounts expected at its ends.
struct Guess {
    Window window;
    double at_low;
    double at_high;
};

// How the entries of a bin are taken to lie in it: all at its end, so that the number down to any
// depth is not below what is said; or along a line.
enum class Spread { kLowest, kLine };

// A staged tile: of each bin the number of entries, or their density over the orders below the
// maximum of the tile as at[bin] + slope[bin] * depth; then how far below M that lies.
constexpr int kStagedTile = 2 * kProfileBins + 1;

// A line keeps the number of entries of its bin and is as steep as the bins beside it suggest.
template <class Stage>
DSPARK_DEVICE void stage_profile(Spread spread, Global<const uint64_t> profile, Stage& stage,
                                 int at) {
    float density[kProfileBins];
    for (int word = 0; word < kProfileWords; ++word) {
        const uint64_t counters = profile[word];
        for (int i = 0; i < kCountersPerWord; ++i) {
            const int bin = word * kCountersPerWord + i;
            const float count = static_cast<float>(static_cast<int>(counters >> 16 * i & 0xFFFF));
            density[bin] = count * (1.0f / bin_width(bin));
        }
    }
    for (int bin = 0; bin < kProfileBins; ++bin) {
        const int left = bin > 0 ? bin - 1 : 0;
        const int right = bin + 1 < kProfileBins ? bin + 1 : bin;
        const float slope =
            (density[right] - density[left]) * (1.0f / (bin_centre(right) - bin_centre(left)));
        const float most = density[bin] * (2.0f / bin_width(bin));  // down to 0 at an end
        const float limited = slope > most ? most : slope < -most ? -most : slope;
        stage[at + bin] = spread == Spread::kLine ? density[bin] - limited * bin_centre(bin)
                                                  : density[bin] * bin_width(bin);
        stage[at + kProfileBins + bin] = limited;
    }
}

// Thread i: about how many entries lie i to i + 1 quarters of a binary order below the largest.
template <class Stage>
DSPARK_DEVICE float entries_in_quarter(Spread spread, const Law& law,
                                       Global<const uint64_t> profiles, Stage& stage) {
    constexpr int kTiles = kProfileStage / kStagedTile;
    const float middle = 0.25f * static_cast<float>(thread_idx()) + 0.125f;
    float entries = 0.0f;
    for (int first = 0; first < num_tiles(law.vocab); first += kTiles) {
        const int rest = num_tiles(law.vocab) - first;
        const int tiles = rest < kTiles ? rest : kTiles;
        sync_block();  // the stage is free
        if (thread_idx() < tiles) {
            const int at = thread_idx() * kStagedTile;
            const float maximum = law.tile_max[first + thread_idx()];
            if (maximum > -kInfinity) {  // else it has no profile
                stage_profile(spread, profiles + (first + thread_idx()) * kProfileWords, stage, at);
            }
            stage[at + 2 * kProfileBins] = (law.maximum - maximum) * law.scale;
        }
        sync_block();
        for (int at = 0; at < tiles * kStagedTile; at += kStagedTile) {
            const float depth = middle - stage[at + 2 * kProfileBins];
            if (!(depth >= 0.0f && depth < kDeepest)) continue;
            const int bin = profile_bin(static_cast<int>(depth));
            if (spread == Spread::kLine) {
                entries += 0.25f * (stage[at + bin] + stage[at + kProfileBins + bin] * depth);
            } else if (profile_bin(static_cast<int>(depth + 0.25f)) != bin) {
                entries += stage[at + bin];  // which ends at most 3/8 below the quarter's begin
            }
        }
    }
    return entries > 0.0f ? entries : 0.0f;
}

// What a thread's quarter holds of something, and all before it.
struct Part {
    float begin;
    float end;
    bool is_last;

    // Of the parts, exactly one holds v >= 0.
    DSPARK_DEVICE bool holds(float v) const { return begin <= v && (v < end || is_last); }
    DSPARK_DEVICE float fraction(float v) const {
        return v < end ? (v - begin) * rough_reciprocal(end - begin) : 1.0f;
    }
    DSPARK_DEVICE float at(float fraction) const { return begin + (end - begin) * fraction; }
};

template <int W>
DSPARK_DEVICE Part part_of(int64_t mine, BlockScanScratch<W, int64_t>& scratch, float& total) {
    const BlockScan<int64_t> scan = block_exclusive_sum<W>(mine, scratch);
    total = static_cast<float>(scan.total);
    return {static_cast<float>(scan.before), static_cast<float>(scan.before + mine),
            thread_idx() == kThreads - 1};
}

// Guesses a window of about `room` entries: all down to a little below the cut, if that fits, else
// those around it. `total` is the mass of the whole row. Called by the whole block.
template <int W, class Stage>
DSPARK_DEVICE Guess guess_window(Amount kind, double need, float room, double total, const Law& law,
                                 Global<const uint64_t> profiles, Stage& stage,
                                 GuessShared<W>& shared) {
    constexpr float kOfEntry = 256.0f;  // the unit of counts
    const bool is_count = kind == Amount::kCount;
    const bool is_sure = is_count && static_cast<float>(need) < 0.3f * room;
    const float entries =
        entries_in_quarter(is_sure ? Spread::kLowest : Spread::kLine, law, profiles, stage);
    const float weight = exp2_nonpositive(-0.25f * (static_cast<float>(thread_idx()) + 0.5f));
    float all = 0.0f;
    const Part counted = part_of<W>(static_cast<int64_t>(entries * kOfEntry), shared.count, all);
    const Part weighed =
        part_of<W>(static_cast<int64_t>(entries * weight * 0x1p36f), shared.mass, all);
    const Part asked = is_count ? counted : weighed;
    const float whole = is_count ? 1.0f : static_cast<float>(total);
    if (is_count) all = kOfEntry;

    const float wished = static_cast<float>(need) * all * rough_reciprocal(whole);
    const float wanted = wished > 0.0f ? wished : 0.0f;
    if (asked.holds(wanted)) {
        shared.rank[0] = counted.at(asked.fraction(wanted)) * (1.0f / kOfEntry);
    }
    sync_block();
    const float rank = shared.rank[0];
    const bool is_top = rank < 0.9f * room;
    float end = is_sure ? rank : is_top ? Min()(1.25f * rank + 64.0f, room) : rank + 0.45f * room;
    for (int side = 0; side < 2; ++side) {
        const float sought = end * kOfEntry;
        if (counted.holds(sought)) {
            const float fraction = counted.fraction(sought);
            const float quarters = static_cast<float>(thread_idx()) + (is_sure ? 2.0f : fraction);
            shared.depth[side] = sought < counted.end ? 0.25f * quarters : kInfinity;
            shared.amount[side] = static_cast<double>(asked.at(fraction) * rough_reciprocal(all)) *
                                  static_cast<double>(whole);
        }
        end = Max()(rank - 0.45f * room, 0.0f);
    }
    sync_block();
    const float order = rough_reciprocal(law.scale);
    return {{law.maximum - shared.depth[0] * order,
             is_top ? kInfinity : law.maximum - shared.depth[1] * order},
            shared.amount[0],
            is_top ? 0.0 : static_cast<double>(shared.amount[1])};
}

}  // namespace dspark::DSPARK_ISA::sampling
