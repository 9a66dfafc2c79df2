// A tile shared by the 256 threads of a block, one thread per lane of the canonical sum
// (docs/numerics.md section 3): thread t holds entries t, t + 256, t + 512, ... in index order.
//
// Tiles come in through shared memory, so that loads are 16 bytes wide whatever the dtype, and
// every entry still lands in its lane.
#pragma once

#include "device/lanes.h"
#include "device/tile.h"

namespace dspark::DSPARK_ISA {

static_assert(kThreads == kLanes, "one thread per lane");
constexpr int kEntriesPerThread = kTile / kThreads;

struct TileStage {
    SharedArray<float, kTile + 4> x;  // room to shift a row that is not 16-byte aligned
};

// What one thread holds of a tile: x[c] is entry thread + 256 c.
struct LaneEntries {
    float x[kEntriesPerThread];
};

DSPARK_DEVICE int entry_index(int c) {
    return thread_idx() + c * kThreads;
}

// How a raw element enters the arithmetic. Logits: section 1; `empty` stands past the end.
struct ReadLogit {
    static constexpr float kEmpty = -kInfinity;
    DSPARK_DEVICE static float read(float x) { return read_logit(x); }
};
// Given probabilities: NaN and negative numbers count as 0.
struct ReadProbability {
    static constexpr float kEmpty = 0.0f;
    DSPARK_DEVICE static float read(float x) { return x > 0.0f ? x : 0.0f; }
};

// Of the entries that one thread brought in.
struct TileExtremes {
    float maximum;  // as read
    bool has_nan;   // among the raw elements
};

template <class Reader>
DSPARK_DEVICE float read_tracked(float raw, TileExtremes& extremes) {
    const float x = Reader::read(raw);
    extremes.has_nan = extremes.has_nan || raw != raw;
    extremes.maximum = x > extremes.maximum ? x : extremes.maximum;
    return x;
}

// Four raw elements of a 16-byte load, from the element `first` on.
DSPARK_DEVICE void unpack4(const Bytes16& from, int first, float*, float (&to)[4]) {
    for (int j = 0; j < 4; ++j) to[j] = bit_cast<float>(from.word[first + j]);
}
template <class Half>
DSPARK_DEVICE void unpack4(const Bytes16& from, int first, Half*, float (&to)[4]) {
    for (int j = 0; j < 4; ++j) {
        const uint32_t pair = from.word[(first + j) / 2];
        to[j] = to_float(Half{static_cast<uint16_t>(j % 2 == 0 ? pair : pair >> 16)});
    }
}

// Brings `count` elements into the stage; entry i lies at stage.x[shift + i] after the next
// sync_block. Returns the shift.
template <class Reader, class T>
DSPARK_DEVICE int stage_elements(Global<const T> from, int count, TileStage& stage,
                                 TileExtremes& extremes) {
    constexpr int kPerLoad = 16 / static_cast<int>(sizeof(T));
    constexpr int kLoads = kTile / kPerLoad / kThreads;
    const int misaligned = static_cast<int>(bit_cast<uint64_t>(from) % 16 / sizeof(T));
    const int wanted = misaligned == 0 ? 0 : kPerLoad - misaligned;
    const int head = wanted < count ? wanted : count;
    const int loads = (count - head) / kPerLoad;
    const int shift = (4 - head % 4) % 4;
    const Global<const T> body = from + head;

    Bytes16 loaded[kLoads];
    for (int j = 0; j < kLoads; ++j) {
        const int v = thread_idx() + j * kThreads;
        if (v < loads) loaded[j] = load16(body, int64_t{16} * v);
    }
    for (int j = 0; j < kLoads; ++j) {
        const int v = thread_idx() + j * kThreads;
        if (v >= loads) continue;
        for (int first = 0; first < kPerLoad; first += 4) {
            float raw[4];
            unpack4(loaded[j], first, static_cast<T*>(nullptr), raw);
            for (float& x : raw) x = read_tracked<Reader>(x, extremes);
            stage.x.store4(shift + head + v * kPerLoad + first, raw[0], raw[1], raw[2], raw[3]);
        }
    }
    // What no 16-byte load covers: fewer than 8 elements at each end.
    const int rest = count - loads * kPerLoad;
    if (thread_idx() < rest) {
        const int i = thread_idx() < head ? thread_idx() : thread_idx() + loads * kPerLoad;
        stage.x[shift + i] = read_tracked<Reader>(to_float(from[i]), extremes);
    }
    return shift;
}

template <class Reader>
DSPARK_DEVICE int stage_tile(const Row& row, int tile, TileStage& stage, TileExtremes& extremes) {
    extremes = {-kInfinity, false};
    const int64_t start = static_cast<int64_t>(tile) * kTile;
    const int count = tile_size(row.size, tile);
    switch (row.dtype) {
        case FloatType::kBFloat16:
            return stage_elements<Reader>(global_cast<const BFloat16>(row.data) + start, count,
                                          stage, extremes);
        case FloatType::kFloat16:
            return stage_elements<Reader>(global_cast<const Float16>(row.data) + start, count,
                                          stage, extremes);
        case FloatType::kFloat32:
            break;
    }
    return stage_elements<Reader>(global_cast<const float>(row.data) + start, count, stage,
                                  extremes);
}

// This thread's lane of a staged tile of `count` entries.
template <class Reader>
DSPARK_DEVICE LaneEntries lane_entries(const TileStage& stage, int shift, int count) {
    LaneEntries entries;
    for (int c = 0; c < kEntriesPerThread; ++c) {
        const int i = entry_index(c);
        entries.x[c] = i < count ? static_cast<float>(stage.x[shift + i]) : Reader::kEmpty;
    }
    return entries;
}

// Reads a tile. Called by the whole block; the stage may be used again after the next sync_block.
template <class Reader = ReadLogit>
DSPARK_DEVICE LaneEntries read_tile(const Row& row, int tile, TileStage& stage) {
    TileExtremes extremes;
    const int shift = stage_tile<Reader>(row, tile, stage, extremes);
    sync_block();
    return lane_entries<Reader>(stage, shift, tile_size(row.size, tile));
}

// Sum of a lane in index order.
DSPARK_DEVICE float lane_sum(const LaneEntries& entries) {
    float sum = 0.0f;
    for (float x : entries.x) sum += x;
    return sum;
}

struct LaneSums {
    SharedArray<float, kLanes> lane;
};

// for h = 128, 64, ..., 1: lane[l] += lane[l + h]. Called by the whole block, each thread with its
// lane; the first warp has the result. `sums` may be used again after the next sync_block.
template <int W>
DSPARK_DEVICE float halving_tree(float lane_value, LaneSums& sums) {
    sums.lane[thread_idx()] = lane_value;
    sync_block();
    float total = 0.0f;
    if (thread_idx() < W) {
        float part[kLanes / W];
        for (int j = 0; j < kLanes / W; ++j) part[j] = sums.lane[thread_idx() + j * W];
        for (int half = kLanes / W / 2; half > 0; half /= 2) {
            for (int j = 0; j < half; ++j) part[j] += part[j + half];
        }
        total = part[0];
        for (int half = W / 2; half > 0; half /= 2) total += shuffle_xor<W>(total, half);
    }
    return total;
}

}  // namespace dspark::DSPARK_ISA
