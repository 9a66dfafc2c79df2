// Arguments of the formats family: number formats of weights (device/formats.h).
#pragma once

#include <cstdint>

#include "device/float_type.h"

namespace dspark {

// Of codes; kFp4E2M1 packs two into a byte, the first in the low half.
enum class CodeFormat { kFp8E4M3, kFp8E4M3Fnuz, kFp4E2M1, kE8M0 };

struct DecodeArgs {
    const uint8_t* codes;  // [num_codes], contiguous
    float* values;         // [num_codes], twice as many for fp4
    CodeFormat format;
};

struct EncodeArgs {
    const float* values;  // [num_codes], contiguous; twice as many for fp4
    uint8_t* codes;       // [num_codes]
    CodeFormat format;
};

// out = decoded weight * scale of its block, in float32, rounded once to the type of `out`.
struct DequantizeArgs {
    const uint8_t* weight;  // [matrices, rows, columns] codes (half as many bytes for fp4)
    const void* scale;      // [matrices, ceil(rows / block_rows), ceil(columns / block_columns)]
    void* out;              // [matrices, rows, columns]
    int64_t rows;
    int64_t columns;
    int64_t block_rows;
    int64_t block_columns;  // even for fp4
    CodeFormat format;      // not kE8M0
    bool scale_is_e8m0;     // else float32
    FloatType out_type;
};

}  // namespace dspark
