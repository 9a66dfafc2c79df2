// A tile read by one warp, without a barrier, so that every warp of a block can be on a tile of its
// own (docs/numerics.md section 3).
//
// Each lane of the warp owns kLanes / W of the 256 lanes of the canonical sum, its slots: it reads
// 16 bytes at a time and meets the entries of a slot in index order.
#pragma once

#include "device/lanes.h"
#include "device/tile.h"

namespace dspark::DSPARK_ISA {

template <int W>
constexpr int kSlots = kLanes / W;       // of a lane of the warp
constexpr int kChunks = kTile / kLanes;  // a chunk: kLanes consecutive entries, one for each slot

constexpr int kUnit = 8;  // entries of a lane that are visited together

// Two loads of a lane: one unit of float32, two of 16-bit elements.
struct LoadPair {
    Bytes16 part[2];
};

DSPARK_DEVICE uint32_t element_bits(float x) {
    return bit_cast<uint32_t>(x);
}
template <class Half>
DSPARK_DEVICE uint32_t element_bits(Half x) {
    return x.bits;
}

// What a load has to know of who writes the memory, and of who reads it again.
enum class Reading {
    kConstant,  // nothing writes it during the launch
    kOnce,      // likewise, and see load16_once
    kFresh,     // blocks that this one has awaited wrote it
};

DSPARK_DEVICE Bytes16 load16(Global<const void> p, int64_t byte_offset, Reading reading) {
    if (reading == Reading::kOnce) return load16_once(p, byte_offset);
    if (reading == Reading::kConstant) return load16(p, byte_offset);
    return global_cast<const Bytes16>(global_cast<const char>(p) + byte_offset)[0];
}

// 16 bytes of elements from number `first` on. In one load where they are aligned and lie below
// `count`; past that the elements have the bits `empty`.
template <class T>
DSPARK_DEVICE Bytes16 load_elements(Global<const T> from, int first, int count, uint32_t empty,
                                    bool is_aligned, Reading reading = Reading::kConstant) {
    constexpr int kSize = static_cast<int>(sizeof(T));
    if (is_aligned && first + 16 / kSize <= count) {
        return load16(from, int64_t{first} * kSize, reading);
    }
    Bytes16 bytes;
    for (int w = 0; w < 4; ++w) {
        uint32_t word = 0;
        for (int part = 0; part < 4 / kSize; ++part) {
            const int i = first + (w * 4 / kSize) + part;
            uint32_t bits = empty;
            if (i < count) {
                const T x = from[i];
                bits = element_bits(x);
            }
            word |= bits << part * kSize * 8;
        }
        bytes.word[w] = word;
    }
    return bytes;
}

// The 16-bit elements of a unit.
template <class Half>
DSPARK_DEVICE void unpack_unit(const Bytes16& raw, float (&x)[kUnit]) {
    for (int e = 0; e < kUnit; ++e) {
        const uint32_t pair = raw.word[e / 2];
        x[e] = to_float(Half{static_cast<uint16_t>(e % 2 == 0 ? pair : pair >> 16)});
    }
}

template <int W>
class WarpTile {
  public:
    DSPARK_DEVICE WarpTile(const Row& row, int tile) : dtype_(row.dtype) {
        const int lane = lane_index<W>();
        const int64_t start = static_cast<int64_t>(tile) * kTile;
        count_ = tile_size(row.size, tile);
        if (is_wide()) {
            data_ = global_cast<const float>(row.data) + start;
            lane_begin_ = lane * 4;
            half_stride_ = 4 * W;
        } else {
            data_ = global_cast<const BFloat16>(row.data) + start;
            lane_begin_ = kExchanges ? lane % (W / 2) * kUnit + lane / (W / 2) * 4 : lane * kUnit;
            half_stride_ = kExchanges ? kLanes : 4;
        }
        is_aligned_ = bit_cast<uint64_t>(data_) % 16 == 0;
    }

    // visit(j, c, x) for all entries: x (a logit as it enters the arithmetic) is entry c of slot j.
    // Entries of a slot come in index order; on devices j is a constant after unrolling. Past the
    // end x is -inf. 2 kAhead loads are on their way while one is visited.
    template <int kAhead, class Visit>
    DSPARK_DEVICE void visit(Visit&& visit) const {
        const int units_of_pair = is_wide() ? 1 : 2;
        LoadPair coming[kAhead];
        for (int ahead = 0; ahead < kAhead; ++ahead) coming[ahead] = load(ahead * units_of_pair);
        for (int first = 0; first * kUnitEntries < count_; first += units_of_pair) {
            LoadPair pair = coming[0];
            for (int ahead = 1; ahead < kAhead; ++ahead) coming[ahead - 1] = coming[ahead];
            coming[kAhead - 1] = load(first + kAhead * units_of_pair);
            for (int unit = first; unit < first + units_of_pair; ++unit) {
                float x[kUnit];
                unpack(pair, x);
                pair.part[0] = pair.part[1];
                for (int e = 0; e < kUnit; ++e) {
                    const int j = (unit % kColumns * kUnit + e) % kSlots<W>;
                    visit(j, unit / kColumns * kChunksOfUnit + e / kSlots<W>, read_logit(x[e]));
                }
            }
        }
    }

    // The lane of the canonical sum that slot j of this thread is.
    DSPARK_DEVICE int lane_of_slot(int j) const {
        return j / kUnit * kUnitEntries + lane_begin_ + j % kUnit / 4 * half_stride_ + j % 4;
    }

  private:
    static constexpr int kUnitEntries = W * kUnit;
    static constexpr int kColumns = kUnitEntries < kLanes ? kLanes / kUnitEntries : 1;
    static constexpr int kChunksOfUnit = kUnitEntries > kLanes ? kUnitEntries / kLanes : 1;
    // A load of 16-bit elements spans two chunks: pairs of lanes exchange halves.
    static constexpr bool kExchanges = kChunksOfUnit == 2;
    static_assert(kChunksOfUnit <= 2, "warps of up to 64 lanes");

    DSPARK_DEVICE bool is_wide() const { return dtype_ == FloatType::kFloat32; }

    DSPARK_DEVICE LoadPair load(int unit) const {
        const int begin = unit * kUnitEntries;
        const int lane = lane_index<W>();
        LoadPair pair;
        if (is_wide()) {
            const Global<const float> from = global_cast<const float>(data_);
            const uint32_t empty = bit_cast<uint32_t>(-kInfinity);
            pair.part[0] = load_elements(from, begin + lane * 4, count_, empty, is_aligned_);
            pair.part[1] = load_elements(from, begin + (W + lane) * 4, count_, empty, is_aligned_);
        } else {
            const Global<const BFloat16> from = global_cast<const BFloat16>(data_);
            const uint32_t empty = dtype_ == FloatType::kBFloat16 ? 0xFF80u : 0xFC00u;
            pair.part[0] = load_elements(from, begin + lane * kUnit, count_, empty, is_aligned_);
            pair.part[1] =
                load_elements(from, begin + (W + lane) * kUnit, count_, empty, is_aligned_);
        }
        return pair;
    }

    DSPARK_DEVICE void unpack(const LoadPair& raw, float (&x)[kUnit]) const {
        if (is_wide()) {
            for (int e = 0; e < kUnit; ++e) x[e] = bit_cast<float>(raw.part[e / 4].word[e % 4]);
        } else {
            const Bytes16 mine = kExchanges ? exchange_halves(raw.part[0]) : raw.part[0];
            if (dtype_ == FloatType::kBFloat16) {
                unpack_unit<BFloat16>(mine, x);
            } else {
                unpack_unit<Float16>(mine, x);
            }
        }
    }

    // Lanes l and l + W / 2 hold the same part of two consecutive chunks: afterwards each has half
    // of that part, of the first chunk in words 0 and 1, of the second in words 2 and 3.
    DSPARK_DEVICE static Bytes16 exchange_halves(Bytes16 bytes) {
        const bool is_first = lane_index<W>() < W / 2;
        for (int j = 0; j < 2; ++j) {
            const uint32_t mine = is_first ? bytes.word[j] : bytes.word[2 + j];
            const uint32_t theirs = is_first ? bytes.word[2 + j] : bytes.word[j];
            const uint32_t received = shuffle_xor<W>(theirs, W / 2);
            bytes.word[j] = is_first ? mine : received;
            bytes.word[2 + j] = is_first ? received : mine;
        }
        return bytes;
    }

    Global<const void> data_;
    FloatType dtype_;
    int count_;
    int lane_begin_;   // lane of slot 0
    int half_stride_;  // between the lanes of slots 0 and 4
    bool is_aligned_;
};

// for h = W / 2, ..., 1: v of lane l += v of lane l + h. Every lane returns the sum.
template <int W>
DSPARK_DEVICE float warp_tree(float v) {
    for (int half = W / 2; half > 0; half /= 2) v += shuffle_xor<W>(v, half);
    return v;
}

// The lanes of a canonical sum that one warp takes: `lane` as the warp numbers them, kLanes floats
// from `begin` on. for h = 128, 64, ..., 1: lane[l] += lane[l + h]. The warp has synchronised since
// they were stored; every thread returns the sum.
template <int W, class Lanes>
DSPARK_DEVICE float warp_halving_tree(const Lanes& lanes, int begin) {
    float part[kSlots<W>];
    for (int j = 0; j < kSlots<W>; ++j) part[j] = lanes[begin + lane_index<W>() + j * W];
    for (int half = kSlots<W> / 2; half > 0; half /= 2) {
        for (int j = 0; j < half; ++j) part[j] += part[j + half];
    }
    return warp_tree<W>(part[0]);
}

}  // namespace dspark::DSPARK_ISA
