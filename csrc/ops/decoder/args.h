// Arguments of the decoder kernels: plain pointers and sizes.
#pragma once

#include <cstdint>

namespace dspark {

struct RmsNormArgs {
    const float* x;       // [rows, width]
    const float* weight;  // [width]
    float* out;           // [rows, width]
    int64_t width;
    float eps;
};

struct SiluMulArgs {
    const float* gate_up;  // [rows, 2 * width]: gate, then up
    float* out;            // [rows, width]
    int64_t width;
};

struct RopeStoreArgs {
    const float* qkv;          // [rows, num_heads + 2 * num_kv_heads, head_dim]
    const float* cos;          // [table_length, head_dim]
    const float* sin;          // [table_length, head_dim]
    const int64_t* positions;  // [rows]
    const int32_t* slots;      // [rows]
    float* query;              // [rows, num_heads, head_dim]
    float* key_cache;          // [slots, length, num_kv_heads, head_dim]
    float* value_cache;        // as key_cache
    int64_t num_heads;
    int64_t num_kv_heads;
    int64_t head_dim;
    int64_t cache_length;
};

}  // namespace dspark
