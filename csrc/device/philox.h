// Counter-based random numbers, docs/numerics.md section 5. A draw is a function of its arguments:
// no state, no dependence on the batch.
#pragma once

#include <cstdint>

#include "device/backend.h"

namespace dspark::DSPARK_ISA {

// Proposal and verifier never share a stream.
enum class Stream : uint32_t { kDraft = 0, kAccept = 1, kResample = 2, kSynthetic = 3 };

struct PhiloxCounter {
    uint32_t word[4];
};

// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011.
DSPARK_DEVICE PhiloxCounter philox4x32(PhiloxCounter counter, uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t{0xD2511F53u} * counter.word[0];
        const uint64_t b = uint64_t{0xCD9E8D57u} * counter.word[2];
        counter = {
            {static_cast<uint32_t>(b >> 32) ^ counter.word[1] ^ key0, static_cast<uint32_t>(b),
             static_cast<uint32_t>(a >> 32) ^ counter.word[3] ^ key1, static_cast<uint32_t>(a)}};
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return counter;
}

// In (0, 1), never 0 or 1. position: absolute index of the token being decided; slot: its index
// inside its draft block (0 for the first draft, 0 for Stream::kResample).
DSPARK_DEVICE double uniform(int64_t seed, int64_t position, Stream stream, int32_t slot) {
    const uint64_t key = static_cast<uint64_t>(seed);
    const uint64_t where = static_cast<uint64_t>(position);
    const PhiloxCounter out =
        philox4x32({{static_cast<uint32_t>(where), static_cast<uint32_t>(where >> 32),
                     static_cast<uint32_t>(stream), static_cast<uint32_t>(slot)}},
                   static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
    const uint64_t bits = (static_cast<uint64_t>(out.word[1]) << 32) | out.word[0];
    return static_cast<double>((bits >> 11) | 1) * 0x1p-53;
}

}  // namespace dspark::DSPARK_ISA
