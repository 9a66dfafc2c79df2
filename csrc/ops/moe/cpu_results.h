// How the CPU kernels of the expert layer store what they have computed.
#pragma once

#include "backends/cpu/simd.h"
#include "device/narrow.h"
#include "ops/moe/args_experts.h"

namespace dspark::DSPARK_ISA::experts {

#if defined(__AVX512F__)

// narrow() of the first count / 16 * 16 values, of which it returns the number.
inline int64_t narrow_vectors(const float* values, int64_t count, BFloat16* out) {
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        const __m512i bits = _mm512_loadu_si512(values + i);
        const __m512i high = _mm512_maskz_srli_epi32(0xFFFF, bits, 16);
        const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
        const __m512i rounded =
            _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
        const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7FFFFFFF));
        const __mmask16 is_nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7F800000));
        const __m512i kept =
            _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
        const __m512i halves = _mm512_maskz_srli_epi32(0xFFFF, kept, 16);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i),
                            _mm512_maskz_cvtepi32_epi16(0xFFFF, halves));
    }
    return i;
}

#endif

template <class T>
inline int64_t narrow_vectors(const float*, int64_t, T*) {
    return 0;
}

// Rounds `count` floats to the type of the result, from entry `at` on.
inline void store_results(const GroupedGemmArgs& args, const float* values, int64_t count,
                          int64_t at) {
    const auto round = [&](auto* out) {
        out += at;
        for (int64_t i = narrow_vectors(values, count, out); i < count; ++i) {
            narrow(values[i], &out[i]);
        }
    };
    switch (args.out_dtype) {
        case FloatType::kFloat32:
            return round(static_cast<float*>(args.out));
        case FloatType::kBFloat16:
            return round(static_cast<BFloat16*>(args.out));
        case FloatType::kFloat16:
            return round(static_cast<Float16*>(args.out));
    }
}

}  // namespace dspark::DSPARK_ISA::experts
