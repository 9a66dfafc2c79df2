// Products of rows of x with two panels of 16 rows of weights, whose columns come in pairs: a
// vector of 16 words holds two columns of a panel, the even one in the low halves.
//
// Every sum is one chain over the columns of a block, from 0:
//     fma, dots   acc = fma(x[2i + 1], w[2i + 1], acc); acc = fma(x[2i], w[2i], acc), i upwards
//     tiles       acc += (the even columns of 32) + (the odd ones), 32 columns at a time (amx.h)
// so it depends on its own row and weights alone. fma and dots give the same bits: the product of
// two bf16 numbers is exact in float32. Dots and tiles take subnormals for zero, and so does fma
// under FlushSubnormals.
#pragma once

#include "backends/cpu/amx.h"
#include "backends/cpu/panel.h"

namespace dspark::DSPARK_ISA::pairs {

constexpr int kPanelWeights = 16;
constexpr int kPanels = 2;
constexpr int kSums = kPanels * kPanelWeights;  // of a row
constexpr int kTilePairs = amx::kTileWords;

// Some columns of two panels.
struct PairChunk {
    const uint32_t* panel[kPanels];  // [pairs][kPanelWeights] words
    int pairs;                       // a multiple of kTilePairs
    // With scales, a block's sums begin at 0 and are added times its scale: sum = fma(block's sum,
    // scale, sum). Without, the chains continue those in `sums`.
    const float* scales;        // [blocks][kSums], or null
    int block_pairs;            // a multiple of kTilePairs; the last block may have fewer
    const char* next[kPanels];  // next_bytes of each are fetched while the rows meet these
    int64_t next_bytes;         // 0: none
};

template <class X>
struct Rows {
    const X* x;  // [count][stride], stride columns of numbers or pairs
    int64_t stride;
    float* sums;  // [count][kSums]
    int64_t count;

    Rows from(int64_t row) const {
        return {x + row * stride, stride, sums + row * kSums, count - row};
    }
};

// Fetches part `part` of `parts` of what a chunk names as next: evenly, so that memory is busy for
// as long as rows meet the chunk.
class Fetch {
  public:
    Fetch(const PairChunk& chunk, int64_t part, int64_t parts) {
        const bool has_next = chunk.next_bytes != 0;
        const int64_t begin = chunk.next_bytes * part / parts;
        left_ = has_next ? chunk.next[0] + begin : reinterpret_cast<const char*>(chunk.panel[0]);
        right_ = has_next ? chunk.next[1] + begin : left_;
        step_ = chunk.next_bytes / (parts * chunk.pairs);
    }
    // Once for every pair of the chunk.
    DSPARK_DEVICE void advance() {
        __builtin_prefetch(left_);
        __builtin_prefetch(right_);
        left_ += step_;
        right_ += step_;
    }

  private:
    const char* left_;
    const char* right_;
    int64_t step_;
};

// add(first, end) for the pairs of every block of a chunk; scale_sums(block) behind it.
template <class Add>
DSPARK_DEVICE void for_blocks(const PairChunk& chunk, const Add& add) {
    int block = 0;
    for (int first = 0; first < chunk.pairs; first += chunk.block_pairs, ++block) {
        const int end = first + chunk.block_pairs;
        add(first, end < chunk.pairs ? end : chunk.pairs,
            chunk.scales == nullptr ? nullptr : chunk.scales + block * kSums);
    }
}

// ---- fused multiply-adds ------------------------------------------------------------------------

template <class Half, int kRows>
void add_fma(const Rows<float>& rows, const PairChunk& chunk, Fetch fetch) {
    constexpr int kVectors = kPanelWeights / kLanes;
    constexpr int kAll = kPanels * kVectors;
    for_blocks(chunk, [&](int first, int end, const float* scales) {
        FloatVector sums[kRows][kAll];
        for (int r = 0; r < kRows; ++r) {
            for (int v = 0; v < kAll; ++v) {
                sums[r][v] = scales != nullptr ? FloatVector(0.0f)
                                               : load(rows.sums + r * kSums + v * kLanes);
            }
        }
        const auto add = [&](const float* x, const FloatVector(&weights)[kAll]) {
            for (int r = 0; r < kRows; ++r) {
                const FloatVector value = FloatVector(x[r * rows.stride]);
                for (int v = 0; v < kAll; ++v) sums[r][v] = fma(value, weights[v], sums[r][v]);
            }
        };
        for (int i = first; i < end; ++i) {
            fetch.advance();
            FloatVector weights[kAll];
            const auto words = [&](int v) {
                const uint32_t* panel = chunk.panel[v / kVectors] + i * kPanelWeights;
                return reinterpret_cast<const Half*>(panel + v % kVectors * kLanes);
            };
            for (int v = 0; v < kAll; ++v) weights[v] = load_high(words(v));
            add(rows.x + 2 * i + 1, weights);
            for (int v = 0; v < kAll; ++v) weights[v] = load_low(words(v));
            add(rows.x + 2 * i, weights);
        }
        for (int r = 0; r < kRows; ++r) {
            for (int v = 0; v < kAll; ++v) {
                float* total = rows.sums + r * kSums + v * kLanes;
                if (scales != nullptr) {
                    sums[r][v] = fma(sums[r][v], load(scales + v * kLanes), load(total));
                }
                store(total, sums[r][v]);
            }
        }
    });
}

// ---- dot products of pairs ----------------------------------------------------------------------

#if defined(__AVX512F__)

template <int kRows, bool kFetch>
__attribute__((target("avx512bf16"))) void add_dots(const Rows<uint32_t>& rows,
                                                    const PairChunk& chunk, Fetch fetch) {
    const float* scales = chunk.scales;
    for (int first = 0; first < chunk.pairs; first += chunk.block_pairs) {
        const int limit = first + chunk.block_pairs;
        const int end = limit < chunk.pairs ? limit : chunk.pairs;
        const uint32_t* left = chunk.panel[0] + first * kPanelWeights;
        const uint32_t* right = chunk.panel[1] + first * kPanelWeights;
        const uint32_t* x = rows.x + first;
        __m512 sums[kRows][kPanels];
        for (int r = 0; r < kRows; ++r) {
            for (int p = 0; p < kPanels; ++p) {
                sums[r][p] = scales != nullptr
                                 ? _mm512_setzero_ps()
                                 : _mm512_loadu_ps(rows.sums + r * kSums + p * kPanelWeights);
            }
        }
        for (int i = first; i < end; ++i) {
            if (kFetch) fetch.advance();
            const auto a = (__m512bh)_mm512_loadu_si512(left);
            const auto b = (__m512bh)_mm512_loadu_si512(right);
            for (int r = 0; r < kRows; ++r) {
                const auto pair = (__m512bh)_mm512_set1_epi32(static_cast<int>(x[r * rows.stride]));
                sums[r][0] = _mm512_dpbf16_ps(sums[r][0], pair, a);
                sums[r][1] = _mm512_dpbf16_ps(sums[r][1], pair, b);
            }
            left += kPanelWeights;
            right += kPanelWeights;
            ++x;
        }
        for (int r = 0; r < kRows; ++r) {
            for (int p = 0; p < kPanels; ++p) {
                float* total = rows.sums + r * kSums + p * kPanelWeights;
                if (scales != nullptr) {
                    sums[r][p] =
                        _mm512_fmadd_ps(sums[r][p], _mm512_loadu_ps(scales + p * kPanelWeights),
                                        _mm512_loadu_ps(total));
                }
                _mm512_storeu_ps(total, sums[r][p]);
            }
        }
        if (scales != nullptr) scales += kSums;
    }
}

#endif

// ---- products of tiles --------------------------------------------------------------------------

// Two tiles of rows, 0 .. 15 and 16 .. 31, or one. Rows past `count` up to a whole tile exist; what
// they hold is for nobody.
template <int kRowTiles, class Tiles>
DSPARK_AMX_TARGET void add_tiles(Tiles& tiles, const Rows<uint32_t>& rows, const PairChunk& chunk,
                                 Fetch fetch) {
    constexpr int64_t kSumBytes = kSums * sizeof(float);
    constexpr int kRowsHere = kRowTiles * amx::kTileRows;
    const int64_t x_bytes = rows.stride * 4;
    float block_sums[kRowsHere * kSums];
    const float* scales = chunk.scales;
    for (int first = 0; first < chunk.pairs; first += chunk.block_pairs) {
        const int limit = first + chunk.block_pairs;
        const int end = limit < chunk.pairs ? limit : chunk.pairs;
        float* sums = scales != nullptr ? block_sums : rows.sums;
        if (scales != nullptr) {
            tiles.template zero<0>();
            tiles.template zero<1>();
            if constexpr (kRowTiles == 2) {
                tiles.template zero<2>();
                tiles.template zero<3>();
            }
        } else {
            tiles.template load<0>(sums, kSumBytes);
            tiles.template load<1>(sums + 16, kSumBytes);
            if constexpr (kRowTiles == 2) {
                tiles.template load<2>(sums + 16 * kSums, kSumBytes);
                tiles.template load<3>(sums + 16 * kSums + 16, kSumBytes);
            }
        }
        for (int i = first; i < end; i += kTilePairs) {
            for (int pair = 0; pair < kTilePairs; ++pair) fetch.advance();
            tiles.template load<6>(chunk.panel[0] + i * kPanelWeights, amx::kTileBytes);
            tiles.template load<7>(chunk.panel[1] + i * kPanelWeights, amx::kTileBytes);
            tiles.template load<4>(rows.x + i, x_bytes);
            tiles.template dot<0, 4, 6>();
            tiles.template dot<1, 4, 7>();
            if constexpr (kRowTiles == 2) {
                tiles.template load<5>(rows.x + 16 * rows.stride + i, x_bytes);
                tiles.template dot<2, 5, 6>();
                tiles.template dot<3, 5, 7>();
            }
        }
        tiles.template save<0>(sums, kSumBytes);
        tiles.template save<1>(sums + 16, kSumBytes);
        if constexpr (kRowTiles == 2) {
            tiles.template save<2>(sums + 16 * kSums, kSumBytes);
            tiles.template save<3>(sums + 16 * kSums + 16, kSumBytes);
        }
        if (scales == nullptr) continue;
        for (int i = 0; i < kRowsHere * kSums; i += kLanes) {
            const FloatVector scale = load(scales + i % kSums);
            store(rows.sums + i, fma(load(sums + i), scale, load(rows.sums + i)));
        }
        scales += kSums;
    }
}

// ---- all rows -----------------------------------------------------------------------------------

// add(RowCount<n>, first row, what to fetch) for groups of rows.
template <class Add>
void for_fetching_groups(int64_t rows, const PairChunk& chunk, const Add& add) {
    const int64_t parts = (rows + kMaxPanelRows - 1) / kMaxPanelRows;
    int64_t part = 0;
    for_row_groups(0, rows, [&](auto count, int64_t row) {
        add(count, row, Fetch(chunk, part, parts));
        ++part;
    });
}

template <class Half>
void multiply_fma(const Rows<float>& rows, const PairChunk& chunk) {
    for_fetching_groups(rows.count, chunk, [&](auto count, int64_t row, const Fetch& fetch) {
        add_fma<Half, decltype(count)::kValue>(rows.from(row), chunk, fetch);
    });
}

#if defined(__AVX512F__)
inline void multiply_dots(const Rows<uint32_t>& rows, const PairChunk& chunk) {
    for_fetching_groups(rows.count, chunk, [&](auto count, int64_t row, const Fetch& fetch) {
        constexpr int kRows = decltype(count)::kValue;
        if (chunk.next_bytes != 0) {
            add_dots<kRows, true>(rows.from(row), chunk, fetch);
        } else {
            add_dots<kRows, false>(rows.from(row), chunk, fetch);
        }
    });
}
#endif

template <class Tiles>
void multiply_tiles(Tiles& tiles, const Rows<uint32_t>& rows, const PairChunk& chunk) {
    constexpr int64_t kRowsHere = 2 * amx::kTileRows;
    const int64_t parts = (rows.count + kRowsHere - 1) / kRowsHere;
    for (int64_t part = 0; part < parts; ++part) {
        const int64_t row = part * kRowsHere;
        const Fetch fetch(chunk, part, parts);
        if (rows.count - row > amx::kTileRows) {
            add_tiles<2>(tiles, rows.from(row), chunk, fetch);
        } else {
            add_tiles<1>(tiles, rows.from(row), chunk, fetch);
        }
    }
}

}  // namespace dspark::DSPARK_ISA::pairs
