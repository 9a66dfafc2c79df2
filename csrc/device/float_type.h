// The element types that logits come in.
#pragma once

#include <cstdint>

namespace dspark {

enum class FloatType { kFloat32, kBFloat16, kFloat16 };

struct BFloat16 {
    uint16_t bits;
};
struct Float16 {
    uint16_t bits;
};

}  // namespace dspark
