// The tile registers of AMX: eight of 16 rows of 64 bytes, and a product of bf16 tiles. Two forms
// with the same members: AmxTiles is the hardware, EmulatedTiles the same arithmetic in plain code,
// for tests on machines without it.
//
// dot<c, a, b>(): for every row m of a and column n of b, which has 16 pairs k of bf16 numbers by
// 16 columns,
//     even = sum over k of a[m][2k] * b[k][2n],   odd = sum over k of a[m][2k + 1] * b[k][2n + 1]
//     c[m][n] += even + odd
// where sums run upwards from 0 by fused multiply-adds, every step rounds to nearest even, and
// subnormal operands and results count as zero. Source: Intel 64 and IA-32 Architectures Software
// Developer's Manual, volume 2, TDPBF16PS.
#pragma once

#include <cstdint>
#include <cstring>

#include "backends/cpu/simd.h"

#if defined(__AVX512F__)
#define DSPARK_AMX_TARGET __attribute__((target("amx-tile,amx-bf16")))
#else
#define DSPARK_AMX_TARGET
#endif

namespace dspark::DSPARK_ISA::amx {

constexpr int kTileRows = 16;
constexpr int kTileBytes = 64;  // of a row
constexpr int kTileWords = kTileBytes / 4;
constexpr int kTiles = 8;

class EmulatedTiles {
  public:
    template <int kTile>
    void zero() {
        memset(tiles_[kTile], 0, sizeof(tiles_[kTile]));
    }
    template <int kTile>
    void load(const void* from, int64_t stride) {
        for (int row = 0; row < kTileRows; ++row) {
            memcpy(tiles_[kTile][row], static_cast<const char*>(from) + row * stride, kTileBytes);
        }
    }
    template <int kTile>
    void save(void* to, int64_t stride) const {
        for (int row = 0; row < kTileRows; ++row) {
            memcpy(static_cast<char*>(to) + row * stride, tiles_[kTile][row], kTileBytes);
        }
    }
    template <int kC, int kA, int kB>
    void dot() {
        for (int m = 0; m < kTileRows; ++m) {
            float even[kTileWords] = {}, odd[kTileWords] = {};
            for (int k = 0; k < kTileWords; ++k) {
                const uint32_t a = tiles_[kA][m][k];
                for (int n = 0; n < kTileWords; ++n) {
                    const uint32_t b = tiles_[kB][k][n];
                    even[n] = flushed(__builtin_fmaf(low(a), low(b), even[n]));
                    odd[n] = flushed(__builtin_fmaf(high(a), high(b), odd[n]));
                }
            }
            for (int n = 0; n < kTileWords; ++n) {
                const float before = flushed(bit_cast<float>(tiles_[kC][m][n]));
                const float sum = flushed(before + flushed(even[n] + odd[n]));
                tiles_[kC][m][n] = bit_cast<uint32_t>(sum);
            }
        }
    }

  private:
    static float low(uint32_t pair) { return flushed(bit_cast<float>(pair << 16)); }
    static float high(uint32_t pair) { return flushed(bit_cast<float>(pair & 0xFFFF0000u)); }
    static float flushed(float a) {
        const uint32_t bits = bit_cast<uint32_t>(a);
        return (bits & 0x7F800000u) == 0 ? bit_cast<float>(bits & 0x80000000u) : a;
    }

    uint32_t tiles_[kTiles][kTileRows][kTileWords];
};

#if defined(__AVX512F__)

// The intrinsics want a literal for a tile, so that each has a case of its own.
#define DSPARK_FOR_TILE(index, ACTION)     \
    if constexpr ((index) == 0) ACTION(0); \
    if constexpr ((index) == 1) ACTION(1); \
    if constexpr ((index) == 2) ACTION(2); \
    if constexpr ((index) == 3) ACTION(3); \
    if constexpr ((index) == 4) ACTION(4); \
    if constexpr ((index) == 5) ACTION(5); \
    if constexpr ((index) == 6) ACTION(6); \
    if constexpr ((index) == 7) ACTION(7)

// While one lives, this thread's tile registers are in use.
class AmxTiles {
  public:
    DSPARK_AMX_TARGET AmxTiles() {
        alignas(64) Config config = {};
        config.palette = 1;
        for (int tile = 0; tile < kTiles; ++tile) {
            config.row_bytes[tile] = kTileBytes;
            config.rows[tile] = kTileRows;
        }
        _tile_loadconfig(&config);
    }
    DSPARK_AMX_TARGET ~AmxTiles() { _tile_release(); }
    AmxTiles(const AmxTiles&) = delete;
    AmxTiles& operator=(const AmxTiles&) = delete;

    template <int kTile>
    DSPARK_AMX_TARGET void zero() {
#define DSPARK_TILE(i) _tile_zero(i)
        DSPARK_FOR_TILE(kTile, DSPARK_TILE);
#undef DSPARK_TILE
    }
    template <int kTile>
    DSPARK_AMX_TARGET void load(const void* from, int64_t stride) {
        asm volatile("" ::: "memory");  // gcc 12 does not know that the intrinsic reads memory
#define DSPARK_TILE(i) _tile_loadd(i, from, stride)
        DSPARK_FOR_TILE(kTile, DSPARK_TILE);
#undef DSPARK_TILE
    }
    template <int kTile>
    DSPARK_AMX_TARGET void save(void* to, int64_t stride) const {
#define DSPARK_TILE(i) _tile_stored(i, to, stride)
        DSPARK_FOR_TILE(kTile, DSPARK_TILE);
#undef DSPARK_TILE
    }
    // The four products that there are: sums 0 .. 3 of the tiles 4, 5 with 6, 7.
    template <int kC, int kA, int kB>
    DSPARK_AMX_TARGET void dot() {
        static_assert(kC == 2 * (kA - 4) + (kB - 6));
        if constexpr (kC == 0) _tile_dpbf16ps(0, 4, 6);
        if constexpr (kC == 1) _tile_dpbf16ps(1, 4, 7);
        if constexpr (kC == 2) _tile_dpbf16ps(2, 5, 6);
        if constexpr (kC == 3) _tile_dpbf16ps(3, 5, 7);
    }

  private:
    struct Config {
        uint8_t palette;
        uint8_t start_row;
        uint8_t reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    };
    static_assert(sizeof(Config) == 64);
};

#undef DSPARK_FOR_TILE

#endif

}  // namespace dspark::DSPARK_ISA::amx
