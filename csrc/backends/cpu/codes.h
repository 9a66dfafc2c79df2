// Weights from codes and scales on the CPU. The loops are plain, so that the compiler turns them
// into vectors.
#pragma once

#include "device/formats.h"
#include "device/narrow.h"

namespace dspark::DSPARK_ISA::codes {

// Weights are unpacked to one code a byte, this many at a time: a fixed number makes vectors.
constexpr int kChunk = 32;

// Codes of one byte each.
template <class Code_>
struct CodeBytes {
    using Code = Code_;
    static constexpr int64_t kPerByte = 1;
    DSPARK_DEVICE static Code at(const uint8_t* codes, int64_t i) { return {codes[i]}; }
    DSPARK_DEVICE static const uint8_t* unpack(const uint8_t* codes, uint8_t*) { return codes; }
};

// And two in a byte.
struct CodePairs {
    using Code = Fp4E2M1;
    static constexpr int64_t kPerByte = 2;
    DSPARK_DEVICE static Code at(const uint8_t* codes, int64_t i) {
        return i % 2 == 0 ? low_half(codes[i / 2]) : high_half(codes[i / 2]);
    }
    DSPARK_DEVICE static const uint8_t* unpack(const uint8_t* codes, uint8_t* each) {
        for (int i = 0; i < kChunk / 2; ++i) {
            each[2 * i] = low_half(codes[i]).bits;
            each[2 * i + 1] = high_half(codes[i]).bits;
        }
        return each;
    }
};

// A run of `count` weights that share a scale.
template <class Codes, class Out>
DSPARK_DEVICE void scale_run(const uint8_t* codes, float scale, Out* out, int64_t count) {
    using Code = typename Codes::Code;
    uint8_t each[kChunk];
    int64_t done = 0;
    for (; done + kChunk <= count; done += kChunk) {
        const uint8_t* chunk = Codes::unpack(codes + done / Codes::kPerByte, each);
        for (int i = 0; i < kChunk; ++i) {
            narrow(to_float(Code{chunk[i]}) * scale, &out[done + i]);
        }
    }
    for (; done < count; ++done) narrow(to_float(Codes::at(codes, done)) * scale, &out[done]);
}

}  // namespace dspark::DSPARK_ISA::codes
