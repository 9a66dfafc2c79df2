// CPU kernels of the decoder family; compiled once per instruction set, in namespace dspark::DSPARK_ISA.
//
// Every row is computed by the same sequence of operations wherever it stands and whatever shares the
// call. No loop depends on the vector width for its order of additions.
#include <cmath>
#include <cstdint>
#include <cstring>

#include "ops/decoder/args.h"

namespace dspark::DSPARK_ISA {

namespace {

constexpr int64_t kLanes = 64;

// Sum of squares: lane = index mod 64, lanes in index order, then a halving tree.
inline float sum_of_squares(const float* x, int64_t width) {
    float lanes[kLanes] = {};
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
        for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
    }
    for (int64_t lane = 0; i + lane < width; ++lane) lanes[lane] += x[i + lane] * x[i + lane];
    for (int64_t half = kLanes / 2; half > 0; half /= 2) {
        for (int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    return lanes[0];
}

// 2^z for -125 <= z <= 0: degree-6 minimax polynomial around the nearest integer.
inline float exp2_in_range(float z) {
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    const float n = (z + magic) - magic;
    const float f = z - n;
    float p = 1.5403530e-4f;
    p = p * f + 1.3333558e-3f;
    p = p * f + 9.6181291e-3f;
    p = p * f + 5.5504109e-2f;
    p = p * f + 2.4022651e-1f;
    p = p * f + 6.9314718e-1f;
    p = p * f + 1.0f;
    const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
    float scale;
    std::memcpy(&scale, &bits, sizeof(scale));
    return p * scale;
}

// x * sigmoid(x), by e^-|x| so that nothing overflows.
inline float silu(float x) {
    const float magnitude = x < 0.0f ? -x : x;
    const float z = magnitude * -1.44269504f;
    const float decay = exp2_in_range(z < -125.0f ? -125.0f : z);
    const float numerator = x < 0.0f ? x * decay : x;
    return numerator / (1.0f + decay);
}

// Half-split rotation of one head.
inline void rotate(const float* in, const float* cos, const float* sin, int64_t head_dim, float* out) {
    const int64_t half = head_dim / 2;
    for (int64_t i = 0; i < half; ++i) {
        const float low = in[i];
        const float high = in[i + half];
        out[i] = low * cos[i] - high * sin[i];
        out[i + half] = high * cos[i + half] + low * sin[i + half];
    }
}

}  // namespace

void rms_norm_rows(const RmsNormArgs& args, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
        const float* x = args.x + row * args.width;
        float* out = args.out + row * args.width;
        const float mean = sum_of_squares(x, args.width) / static_cast<float>(args.width);
        const float scale = 1.0f / std::sqrt(mean + args.eps);
        for (int64_t i = 0; i < args.width; ++i) out[i] = args.weight[i] * (x[i] * scale);
    }
}

void silu_mul_rows(const SiluMulArgs& args, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
        const float* gate = args.gate_up + row * 2 * args.width;
        const float* up = gate + args.width;
        float* out = args.out + row * args.width;
        for (int64_t i = 0; i < args.width; ++i) out[i] = silu(gate[i]) * up[i];
    }
}

void rope_store_rows(const RopeStoreArgs& args, int64_t begin, int64_t end) {
    const int64_t dim = args.head_dim;
    const int64_t query_width = args.num_heads * dim;
    const int64_t kv_width = args.num_kv_heads * dim;
    for (int64_t row = begin; row < end; ++row) {
        const float* qkv = args.qkv + row * (query_width + 2 * kv_width);
        const float* cos = args.cos + args.positions[row] * dim;
        const float* sin = args.sin + args.positions[row] * dim;
        for (int64_t head = 0; head < args.num_heads; ++head) {
            rotate(qkv + head * dim, cos, sin, dim, args.query + row * query_width + head * dim);
        }
        const int64_t cell =
            (args.slots[row] * args.cache_length + args.positions[row]) * kv_width;
        const float* key = qkv + query_width;
        for (int64_t head = 0; head < args.num_kv_heads; ++head) {
            rotate(key + head * dim, cos, sin, dim, args.key_cache + cell + head * dim);
        }
        std::memcpy(args.value_cache + cell, key + kv_width, kv_width * sizeof(float));
    }
}

}  // namespace dspark::DSPARK_ISA
