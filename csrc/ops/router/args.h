// Arguments of the router kernels: plain pointers and sizes. All arrays but the logits are dense.
#pragma once

#include <cstdint>

#include "device/backend.h"
#include "device/float_type.h"

namespace dspark {

enum class Scoring { kSoftmax, kSigmoid, kSqrtSoftplus };

constexpr int kMostExperts = 4096;
constexpr int kMostChosen = 32;  // k
constexpr int kMostGroups = 64;

// Bits of a row's status, as in docs/numerics.md section 8.
constexpr int32_t kRouteNan = 1;
constexpr int32_t kRouteEmpty = 4;
constexpr int32_t kRouteInvalidId = 16;

// T tokens, E experts. docs/numerics.md section 12.
struct RouteArgs {
    Global<const void> logits;  // [T, E]
    FloatType dtype;
    int64_t row_stride;                // elements between rows of logits
    Global<const float> bias;          // [E], or null
    Global<const void> hash_ids;       // [T] int64 or int32, or null: chosen by score
    bool hash_ids_are_wide;            // int64
    Global<const int32_t> hash_table;  // [hash_rows, k]
    int64_t hash_rows;
    int64_t num_tokens;   // T
    int32_t num_experts;  // E
    int32_t num_chosen;   // k
    int32_t num_groups;   // 1: no groups
    int32_t topk_groups;  // groups that are kept
    Scoring scoring;
    bool renormalize;
    float scale;
    bool has_shared_expert;  // one slot more, of the expert E
    float shared_expert_weight;
    // outputs
    Global<int32_t> ids;     // [T, k or k + 1]
    Global<float> weights;   // [T, k or k + 1]
    Global<int32_t> status;  // [T]
};

}  // namespace dspark
