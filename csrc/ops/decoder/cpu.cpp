// CPU kernels of the decoder family; compiled once per instruction set, in namespace
// dspark::DSPARK_ISA.
//
// Every row is computed by the same sequence of operations wherever it stands and whatever shares
// the call. No loop depends on the vector width for its order of additions.
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

inline void rms_norm(const float* x, const float* weight, int64_t width, float eps, float* out) {
    const float mean = sum_of_squares(x, width) / static_cast<float>(width);
    const float scale = 1.0f / std::sqrt(mean + eps);
    for (int64_t i = 0; i < width; ++i) out[i] = weight[i] * (x[i] * scale);
}

// Half-split rotation of one head, in place.
inline void rotate(const float* cos, const float* sin, int64_t head_dim, float* head) {
    const int64_t half = head_dim / 2;
    for (int64_t i = 0; i < half; ++i) {
        const float low = head[i];
        const float high = head[i + half];
        head[i] = low * cos[i] - high * sin[i];
        head[i + half] = high * cos[i + half] + low * sin[i + half];
    }
}

// Copies heads [num_heads, head_dim] to `out`, normed where `norm` is given, and rotates them
// there.
inline void norm_rotate(const RopeStoreArgs& args, const float* heads, int64_t num_heads,
                        int64_t position, const float* norm, float* out) {
    const int64_t dim = args.head_dim;
    for (int64_t h = 0; h < num_heads; ++h) {
        if (norm != nullptr) {
            rms_norm(heads + h * dim, norm, dim, args.eps, out + h * dim);
        } else {
            std::memcpy(out + h * dim, heads + h * dim, dim * sizeof(float));
        }
        rotate(args.cos + position * dim, args.sin + position * dim, dim, out + h * dim);
    }
}

// DeepSeek-V4 routing of one row: scores sqrt(softplus), the top_k by score + bias (ties: lower
// id), their scores scaled to sum to `scaling`; 0 for the others.
inline void route(const RoutedSiluMulArgs& args, const float* logits, float* weights) {
    constexpr float kSmallestSum = 1e-20f;
    float total = 0.0f;
    for (int64_t e = 0; e < args.num_experts; ++e) weights[e] = -1.0f;  // -1: not chosen
    for (int64_t rank = 0; rank < args.top_k; ++rank) {
        int64_t best = -1;
        float best_score = 0.0f, best_biased = 0.0f;
        for (int64_t e = 0; e < args.num_experts; ++e) {
            if (weights[e] >= 0.0f) continue;
            const float x = logits[e];
            const float softplus = (x > 0.0f ? x : 0.0f) + std::log1p(std::exp(x > 0.0f ? -x : x));
            const float score = std::sqrt(softplus);
            const float biased = score + args.router_bias[e];
            if (best < 0 || biased > best_biased) {
                best = e, best_score = score, best_biased = biased;
            }
        }
        weights[best] = best_score;
        total += best_score;
    }
    for (int64_t e = 0; e < args.num_experts; ++e) {
        weights[e] = weights[e] < 0.0f ? 0.0f : weights[e] / (total + kSmallestSum) * args.scaling;
    }
}

// The arithmetic of a step is too long for a processor to look far ahead by itself.
inline void silu_mul(const float* gate, const float* up, int64_t width, float* __restrict out) {
    constexpr int64_t kStep = 64, kAhead = 512;
    constexpr int64_t kLine = 16;  // floats of a cache line
    int64_t i = 0;
    for (; i + kStep <= width; i += kStep) {
        for (int64_t line = 0; line < kStep; line += kLine) {
            __builtin_prefetch(gate + i + line + kAhead);
            __builtin_prefetch(up + i + line + kAhead);
        }
        for (int64_t j = i; j < i + kStep; ++j) out[j] = silu(gate[j]) * up[j];
    }
    for (; i < width; ++i) out[i] = silu(gate[i]) * up[i];
}

inline float clamped_silu_mul(float gate, float up, float limit) {
    up = up < -limit ? -limit : up > limit ? limit : up;
    return silu(gate > limit ? limit : gate) * up;
}

}  // namespace

void rms_norm_rows(const RmsNormArgs& args, int64_t begin, int64_t end) {
    const int64_t width = args.width;
    for (int64_t row = begin; row < end; ++row) {
        rms_norm(args.x + row * width, args.weight, width, args.eps, args.out + row * width);
    }
}

void silu_mul_rows(const SiluMulArgs& args, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
        const float* gate = args.gate_up + row * 2 * args.width;
        const float* up = gate + args.width;
        silu_mul(gate, up, args.width, args.out + row * args.width);
    }
}

void routed_silu_mul_rows(const RoutedSiluMulArgs& args, int64_t begin, int64_t end) {
    float weights[kMaxExperts];
    for (int64_t row = begin; row < end; ++row) {
        const float* gate = args.gate_up + row * 2 * args.width;
        const float* up = gate + args.width;
        float* out = args.out + row * args.width;
        route(args, args.router_logits + row * args.num_experts, weights);
        int64_t i = 0;
        for (int64_t e = 0; e < args.num_experts; ++e) {
            const float weight = weights[e];
            for (const int64_t stop = i + args.expert_size; i < stop; ++i) {
                out[i] =
                    weight == 0.0f ? 0.0f : clamped_silu_mul(gate[i], up[i], args.limit) * weight;
            }
        }
        for (; i < args.width; ++i) out[i] = clamped_silu_mul(gate[i], up[i], args.limit);
    }
}

void rope_store_rows(const RopeStoreArgs& args, int64_t begin, int64_t end) {
    const int64_t query_width = args.num_heads * args.head_dim;
    const int64_t kv_width = args.num_kv_heads * args.head_dim;
    for (int64_t row = begin; row < end; ++row) {
        const float* query = args.qkv + row * (query_width + 2 * kv_width);
        const float* key = query + query_width;
        const float* value = key + kv_width;
        const int64_t position = args.positions[row];
        const int64_t cell = (args.slots[row] * args.cache_length + position) * kv_width;
        norm_rotate(args, query, args.num_heads, position, args.query_norm,
                    args.query + row * query_width);
        norm_rotate(args, key, args.num_kv_heads, position, args.key_norm, args.key_cache + cell);
        std::memcpy(args.value_cache + cell, value, kv_width * sizeof(float));
    }
}

}  // namespace dspark::DSPARK_ISA
