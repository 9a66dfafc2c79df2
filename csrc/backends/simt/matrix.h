// The matrix unit in the device vocabulary of the host SIMT emulator, and what its names mean on
// every backend. Part of backend.h; kernels use csrc/device/matrix.h, which is built on it.
//
// A matrix instruction multiplies 16 rows by 8 columns (warps of 32) or 16 columns (warps of 64)
// over a depth of 16, all held in the registers of the lanes of a warp, and adds the product to
// float32 sums. Which lane holds what is the hardware's choice; with l the lane,
//
//     |         | warps of 32                               | warps of 64
//     | rows    | word w: row l / 4 + 8 (w % 2), depth      | word w: row l % 16, depth
//     |         |   2 (l % 4) + 8 (w / 2) and the next one  |   4 (l / 16) + 2 w and the next one
//     | columns | word w: column l / 4, depth               | word w: column l % 16, depth
//     |         |   2 (l % 4) + 8 w and the next one        |   4 (l / 16) + 2 w and the next one
//     | sums    | entry i: row l / 4 + 8 (i / 2),           | entry i: row 4 (l / 16) + i,
//     |         |   column 2 (l % 4) + i % 2                |   column l % 16
//
// where the element of the smaller depth is the low half of its word.
#pragma once

#include <cstdint>
#include <type_traits>

#include "backends/simt/emulator.h"
#include "device/float_type.h"

namespace dspark::DSPARK_ISA {

// Whether the hardware this code is compiled for has such an instruction. Not known on the host: it
// may not decide what is launched.
template <int W>
constexpr bool kHasMatrixUnit = W == 32 || W == 64;

// Words that the rows of one instruction take in each lane. The columns take 2, the sums 4.
template <int W>
constexpr int kMatrixRowWords = 128 / W;

// One matrix instruction. All lanes of the warp must reach the same call. A sum depends on its row,
// its column and what it was before, never on where they stand. Products are exact; the order and
// the rounding of their sum are the hardware's. The emulator adds them in the order of their depth,
// each addition rounded to nearest.
template <int W, class Half>
DSPARK_DEVICE void matrix_instruction(const uint32_t (&rows)[kMatrixRowWords<W>],
                                      const uint32_t (&columns)[2], float (&sums)[4],
                                      const char* file = __builtin_FILE(),
                                      int line = __builtin_LINE()) {
    static_assert(kHasMatrixUnit<W>, "warps of this size have no matrix unit");
    constexpr bool kBrain = std::is_same_v<Half, BFloat16>;
    static_assert(kBrain || std::is_same_v<Half, Float16>);
    emulator::matrix_operation(kBrain ? FloatType::kBFloat16 : FloatType::kFloat16, W,
                               {rows, columns, sums}, file, line);
}

}  // namespace dspark::DSPARK_ISA
