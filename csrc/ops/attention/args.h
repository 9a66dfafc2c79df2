// Arguments of the attention kernels.
#pragma once

#include <cstdint>

namespace dspark {

// Consecutive rows of one call that attend to the same cache slot and share the reads of its keys.
struct AttentionGroup {
    int64_t row_begin;
    int64_t row_end;
    int64_t key_begin;  // union of the rows' key ranges, not empty
    int64_t key_end;
};

// Where element 0 of [slot, position, head] stands, in elements; the head's elements are
// contiguous.
struct CacheStrides {
    int64_t slot;
    int64_t position;
    int64_t head;
};

struct AttentionArgs {
    const float* query;         // [num_rows, num_heads, head_dim], contiguous
    const void* key_cache;      // [num_slots, capacity, num_kv_heads, head_dim], fp32 or bf16
    const void* value_cache;    // as key_cache
    const int32_t* slots;       // [num_rows]
    const int32_t* key_starts;  // [num_rows], first key attended
    const int32_t* key_ends;    // [num_rows], one past the last key attended
    float* out;                 // [num_rows, num_heads, head_dim], contiguous, zero on entry
    const AttentionGroup* groups;
    CacheStrides key_strides;
    CacheStrides value_strides;
    int64_t num_heads;
    int64_t num_kv_heads;
    int64_t head_dim;
    float exponent_scale;  // scale * log2(e): weights are 2^(exponent_scale * (score - largest
                           // score))
    bool is_bf16;
};

// Keys are processed in tiles; keys and head_dim are padded to whole ones.
inline constexpr int64_t kAttentionTile = 32;
inline constexpr int64_t attention_padded(int64_t size) {
    return (size + kAttentionTile - 1) / kAttentionTile * kAttentionTile;
}

// Scratch of one task: per query its vector, its scores, their total and its output; one tile.
inline int64_t attention_scratch_floats(const AttentionArgs& args, const AttentionGroup& group) {
    const int64_t queries =
        (group.row_end - group.row_begin) * (args.num_heads / args.num_kv_heads);
    const int64_t padded_keys = attention_padded(group.key_end - group.key_begin);
    const int64_t padded_dim = attention_padded(args.head_dim);
    return queries * (args.head_dim + padded_keys + 1 + padded_dim) + kAttentionTile * padded_dim;
}

}  // namespace dspark
