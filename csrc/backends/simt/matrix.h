// The matrix unit in the device vocabulary of the host SIMT emulator, and what its names mean on
// every backend. Part of backend.h; kernels use csrc/device/matrix.h, which is built on it.
//
// A matrix instruction multiplies 16 lines of a left matrix with 8 (warps of 32) or 16 (warps of
// 64) of a right one over a depth of 16, all held in the registers of the lanes of a warp, and adds
// the products to float32 sums. Which lane holds what is the hardware's choice; with l the lane,
//
//     |       | warps of 32                                   | warps of 64
//     | left  | word w: line l / 4 + 8 (w % 2), depth         | word w: line l % 16, depth
//     |       |   2 (l % 4) + 8 (w / 2) and the next one      |   4 (l / 16) + 2 w and the next one
//     | right | word w: line l / 4, depth                     | word w: line l % 16, depth
//     |       |   2 (l % 4) + 8 w and the next one            |   4 (l / 16) + 2 w and the next one
//     | sums  | entry i: left l / 4 + 8 (i / 2),              | entry i: left 4 (l / 16) + i,
//     |       |   right 2 (l % 4) + i % 2                     |   right l % 16
//
// where the element of the smaller depth is the low half of its word.
//
// A wide one, in warps of 64, multiplies 32 lines with 32 over a depth of 16:
//
//     | left, right | word w: line l % 32, depth 8 (l / 32) + 2 w and the next one
//     | sums        | entry [i][j]: left 8 i + 4 (l / 32) + j, right l % 32
//
// Some hardware does so in two instructions, of the first and of the last two words of all lanes.
#pragma once

#include <cstdint>
#include <type_traits>

#include "backends/simt/emulator.h"
#include "device/float_type.h"

namespace dspark::DSPARK_ISA {

// Whether the hardware this code is compiled for has such an instruction. Not known on the host.
template <int W>
constexpr bool kHasMatrixUnit = W == 32 || W == 64;
// Whether some hardware with warps of W has one: what the host may decide by, the same for every
// device. Warps of 4 stand for hardware of such a kind that happens to have none.
template <int W>
constexpr bool kCanHaveMatrixUnit = true;

// Words that the left matrix takes in each lane. The right one takes 2, the sums 4.
template <int W>
constexpr int kMatrixLeftWords = 128 / W;

// One matrix instruction. All lanes of the warp must reach the same call. A sum depends on its
// two lines and what it was before, never on where they stand. Products are exact; the order and
// the rounding of their sum are the hardware's. The emulator adds them in the order of their depth,
// each addition rounded to nearest.
template <int W, class Half>
DSPARK_DEVICE void matrix_instruction(const uint32_t (&left)[kMatrixLeftWords<W>],
                                      const uint32_t (&right)[2], float (&sums)[4],
                                      const char* file = __builtin_FILE(),
                                      int line = __builtin_LINE()) {
    static_assert(kHasMatrixUnit<W>, "warps of this size have no matrix unit");
    constexpr bool kBrain = std::is_same_v<Half, BFloat16>;
    static_assert(kBrain || std::is_same_v<Half, Float16>);
    emulator::matrix_operation(kBrain ? FloatType::kBFloat16 : FloatType::kFloat16, W,
                               {left, right, sums}, file, line);
}

// Whether the hardware has a wide one, and whether some hardware with warps of W does.
template <int W>
constexpr bool kHasWideMatrixUnit = W == 64;
template <int W>
constexpr bool kCanHaveWideMatrixUnit = W == 64;

// One wide matrix instruction, of warps of 64. The emulator does it in two.
template <class Half>
DSPARK_DEVICE void wide_matrix_instruction(const uint32_t (&left)[4], const uint32_t (&right)[4],
                                           float (&sums)[4][4], const char* file = __builtin_FILE(),
                                           int line = __builtin_LINE()) {
    constexpr bool kBrain = std::is_same_v<Half, BFloat16>;
    static_assert(kBrain || std::is_same_v<Half, Float16>);
    emulator::wide_matrix_operation(kBrain ? FloatType::kBFloat16 : FloatType::kFloat16,
                                    {left, right, sums[0]}, file, line);
}

// ---- operands -----------------------------------------------------------------------------------
// What operands are made with, in one lane.

// Byte i of the result is byte number (selector >> 4 i) mod 16, below 8, of `low` (0 .. 3) and
// `high` (4 .. 7). The upper half of the selector is 0.
DSPARK_DEVICE uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
    const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
    uint32_t out = 0;
    for (int i = 0; i < 4; ++i) {
        const uint32_t number = (selector >> 4 * i) & 15u;
        if (number > 7) emulator::trap();
        out |= static_cast<uint32_t>((bytes >> 8 * number) & 0xFFu) << 8 * i;
    }
    return out;
}

// The products of the lower and of the upper halves of two words, which Half holds exactly.
template <class Half>
DSPARK_DEVICE uint32_t multiply_pair(uint32_t a, uint32_t b) {
    constexpr bool kBrain = std::is_same_v<Half, BFloat16>;
    return emulator::multiply_halves(kBrain ? FloatType::kBFloat16 : FloatType::kFloat16, a, b);
}

}  // namespace dspark::DSPARK_ISA
