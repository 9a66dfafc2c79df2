// Arguments of the decoder kernels: plain pointers and sizes.
#pragma once

#include <cstdint>

namespace dspark {

constexpr int64_t kMaxExperts = 256;  // of the dense form; more call for a grouped product

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

// One dense network of all experts: columns of expert e are [e * expert_size, (e + 1) *
// expert_size), those past the last expert are always on.
struct RoutedSiluMulArgs {
    const float* gate_up;        // [rows, 2 * width]: gate, then up
    const float* router_logits;  // [rows, num_experts]
    const float* router_bias;    // [num_experts]: added for the choice only
    float* out;                  // [rows, width]
    int64_t width;
    int64_t num_experts;
    int64_t expert_size;
    int64_t top_k;
    float scaling;
    float limit;
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
    const float* query_norm;   // [head_dim] or null: RMSNorm of each query head before the rotation
    const float* key_norm;     // [head_dim] or null: the same for keys
    float eps;                 // of both norms
    int64_t num_heads;
    int64_t num_kv_heads;
    int64_t head_dim;
    int64_t cache_length;
};

}  // namespace dspark
