// Entry points of the formats CPU kernels, one set per instruction set.
#pragma once

#include "backends/cpu/isa.h"
#include "ops/formats/args.h"

// Codes (bytes) begin .. end - 1.
DSPARK_CPU_DECLARE(void decode_codes(const DecodeArgs& args, int64_t begin, int64_t end))
DSPARK_CPU_DECLARE(void encode_codes(const EncodeArgs& args, int64_t begin, int64_t end))
// Rows row_begin .. row_end - 1 of all matrices, counted through.
DSPARK_CPU_DECLARE(void dequantize_rows(const DequantizeArgs& args, int64_t row_begin,
                                        int64_t row_end))
