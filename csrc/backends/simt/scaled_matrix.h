// Matrix products of narrow codes with scales, in the device vocabulary of the host SIMT emulator,
// and what the names mean on every backend. Part of backend.h.
//
// An instruction of warps of 64 multiplies 32 lines of e4m3 with 32 of e4m3 or of e2m1 (fp4) over a
// depth of 64, each 32 of the depth times a scale of the line on either side, and adds the products
// to float32 sums. With l the lane,
//
//     | e4m3   | word w: line l % 32, depth 32 (w / 4) + 16 (l / 32) + 4 (w % 4) and the next three
//     | e2m1   | word w: line l % 32, depth 32 (l / 32) + 8 w and the next seven
//     | scales | of either side: line l % 32, of the depths from 32 (l / 32) on
//     | sums   | as of a wide instruction, matrix.h
//
// where the element of the smallest depth is the lowest of its word. Scales are e8m0, one byte of a
// word that may hold those of other depths as well.
#pragma once

#include <cstdint>

#include "backends/simt/emulator.h"

namespace dspark::DSPARK_ISA {

// Whether code for hardware with warps of W that has such an instruction is compiled, and whether
// the hardware does; both constants save in the emulator.
template <int W>
constexpr bool kMayHaveScaledMatrixUnit = W == 64;
template <int W>
DSPARK_DEVICE bool has_scaled_matrix_unit() {
    return emulator::has_scaled_matrix_unit();
}

// One such instruction, with byte 0 of the left scales and byte kRight of the right ones; the right
// side is e4m3 if it has 8 words, e2m1 if it has 4. All lanes of the warp must reach the same call.
// Products of 32 of the depth are summed before they are scaled; the order and the rounding are the
// hardware's.
template <int kRight, int kWords>
DSPARK_DEVICE void scaled_matrix_instruction(const uint32_t (&left)[8], uint32_t left_scales,
                                             const uint32_t (&right)[kWords], uint32_t right_scales,
                                             float (&sums)[4][4],
                                             const char* file = __builtin_FILE(),
                                             int line = __builtin_LINE()) {
    static_assert(kWords == 4 || kWords == 8);
    uint32_t left_words[9], right_words[kWords + 1];
    for (int w = 0; w < 8; ++w) left_words[w] = left[w];
    for (int w = 0; w < kWords; ++w) right_words[w] = right[w];
    left_words[8] = left_scales & 0xFFu;
    right_words[kWords] = (right_scales >> 8 * kRight) & 0xFFu;
    emulator::scaled_matrix_operation({left_words, right_words, sums[0]}, kWords == 4, file, line);
}

// The e4m3 codes nearest to two numbers of at most 448, ties to the even one, in the lower half of
// the word; and what codes 0 and 1 of a word are.
DSPARK_DEVICE uint32_t narrow_pair(float low, float high) {
    return emulator::narrow_e4m3(low) | emulator::narrow_e4m3(high) << 8;
}
DSPARK_DEVICE void widen_pair(uint32_t codes, float* low, float* high) {
    *low = emulator::widen_e4m3(codes & 0xFFu);
    *high = emulator::widen_e4m3((codes >> 8) & 0xFFu);
}

}  // namespace dspark::DSPARK_ISA
