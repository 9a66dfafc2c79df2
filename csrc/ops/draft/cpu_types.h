// Arrays of the draft family as what they are.
#pragma once

#include "backends/cpu/simd.h"

namespace dspark::DSPARK_ISA::draft {

// Calls visit(const T*) with the array as what it is.
template <class Visit>
inline void with_type(FloatType type, const void* data, const Visit& visit) {
    switch (type) {
        case FloatType::kFloat32:
            return visit(static_cast<const float*>(data));
        case FloatType::kBFloat16:
            return visit(static_cast<const BFloat16*>(data));
        case FloatType::kFloat16:
            return visit(static_cast<const Float16*>(data));
    }
}

// to[i] = from[i] in float32 for i < size, then zeros up to `padded`.
template <class T>
inline void widen(const T* from, int64_t size, float* to, int64_t padded) {
    int64_t i = 0;
    for (; i + FloatVector::kWidth <= size; i += FloatVector::kWidth) store(to + i, load(from + i));
    for (; i < size; ++i) to[i] = to_float(from[i]);
    for (; i < padded; ++i) to[i] = 0.0f;
}

// `count` rows of `size` entries, `stride` apart, into rows of `padded` floats.
template <class T>
inline void widen_rows(const T* from, int64_t stride, int count, int64_t size, float* to,
                       int64_t padded) {
    for (int r = 0; r < count; ++r) widen(from + r * stride, size, to + r * padded, padded);
}

}  // namespace dspark::DSPARK_ISA::draft
