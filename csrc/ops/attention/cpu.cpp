// CPU kernels of the attention family; compiled once per instruction set, in namespace
// dspark::DSPARK_ISA.
//
// A task is one key/value head of one group of rows. The queries that read this head (all rows of
// the group, every query head mapped to it) are the rows of two panel products: scores against
// transposed tiles of keys, then weighted sums of tiles of values. No step mixes queries, and each
// query walks its own keys in ascending order, so grouping never shows in the result.
#include "ops/attention/cpu.h"

#include <cstring>

#include "backends/cpu/panel.h"

namespace dspark::DSPARK_ISA {
namespace {

constexpr int64_t kTileKeys = kAttentionTile;
constexpr int kSumLanes = 16;
static_assert(kAttentionTile == kPanelWidth);

// One task's sizes and its scratch (attention_scratch_floats), cut into arrays.
struct Task {
    const AttentionArgs& args;
    const AttentionGroup& group;
    const int64_t kv_head;
    const int64_t heads_per_row;  // query heads that read this key/value head
    const int64_t num_queries;    // rows of the group * heads_per_row
    const int64_t score_stride;   // keys of the group, padded to whole tiles
    const int64_t padded_dim;     // head_dim, padded to whole panels
    float* const queries;         // [num_queries, head_dim]
    float* const scores;          // [num_queries, score_stride]: scores, then weights
    float* const totals;          // [num_queries]: sum of the weights
    float* const sums;            // [num_queries, padded_dim]: weighted sums of values
    float* const tile;            // keys [head_dim, kTileKeys] or values [kTileKeys, padded_dim]

    Task(const AttentionArgs& args, const AttentionGroup& group, int64_t kv_head, float* scratch)
        : args(args),
          group(group),
          kv_head(kv_head),
          heads_per_row(args.num_heads / args.num_kv_heads),
          num_queries((group.row_end - group.row_begin) * heads_per_row),
          score_stride(attention_padded(group.key_end - group.key_begin)),
          padded_dim(attention_padded(args.head_dim)),
          queries(scratch),
          scores(queries + num_queries * args.head_dim),
          totals(scores + num_queries * score_stride),
          sums(totals + num_queries),
          tile(sums + num_queries * padded_dim) {}

    int64_t row_of(int64_t query) const { return group.row_begin + query / heads_per_row; }
    // Offset of this query's head in `query` and `out`.
    int64_t offset_of(int64_t query) const {
        const int64_t head = kv_head * heads_per_row + query % heads_per_row;
        return (row_of(query) * args.num_heads + head) * args.head_dim;
    }
    // Row's keys within tile keys [begin, end), relative to the group's first key.
    int64_t clip(int64_t key, int64_t begin, int64_t end) const {
        const int64_t relative = key - group.key_begin;
        return relative < begin ? begin : relative > end ? end : relative;
    }

    template <class Element>
    const Element* cache(const void* data, const CacheStrides& strides) const {
        return static_cast<const Element*>(data) + args.slots[group.row_begin] * strides.slot +
               group.key_begin * strides.position + kv_head * strides.head;
    }
};

inline void set_zero(float* target, int64_t count) {
    std::memset(target, 0, static_cast<size_t>(count) * sizeof(float));
}

// tile[d][j] = element d of key j, for 32 keys; keys beyond `count` repeat the last one.
template <class Element>
void transpose_keys(const Element* keys, int64_t stride, int64_t count, int64_t dim, float* tile) {
    for (int64_t first = 0; first < kTileKeys; first += kLanes) {
        const Element* rows[kLanes];
        for (int l = 0; l < kLanes; ++l) {
            rows[l] = keys + (first + l < count ? first + l : count - 1) * stride;
        }
        int64_t d = 0;
        for (; d + kLanes <= dim; d += kLanes) {
            FloatVector block[kLanes];
            for (int l = 0; l < kLanes; ++l) block[l] = load(rows[l] + d);
            // log2(kLanes) perfect shuffles of the rows transpose the block.
            for (int step = 1; step < kLanes; step *= 2) {
                FloatVector shuffled[kLanes];
                for (int l = 0; l < kLanes / 2; ++l) {
                    shuffled[2 * l] = zip_low(block[l], block[l + kLanes / 2]);
                    shuffled[2 * l + 1] = zip_high(block[l], block[l + kLanes / 2]);
                }
                for (int l = 0; l < kLanes; ++l) block[l] = shuffled[l];
            }
            for (int l = 0; l < kLanes; ++l) store(tile + (d + l) * kTileKeys + first, block[l]);
        }
        for (; d < dim; ++d) {
            for (int l = 0; l < kLanes; ++l) tile[d * kTileKeys + first + l] = to_float(rows[l][d]);
        }
    }
}

// scores[query][j] = sum over d of query[d] * key_j[d], one fma chain in ascending d.
template <class Element>
void compute_scores(const Task& task) {
    const int64_t dim = task.args.head_dim;
    const int64_t stride = task.args.key_strides.position;
    const Element* keys = task.cache<Element>(task.args.key_cache, task.args.key_strides);
    const int64_t count = task.group.key_end - task.group.key_begin;
    for (int64_t begin = 0; begin < count; begin += kTileKeys) {
        const int64_t left = count - begin;
        transpose_keys(keys + begin * stride, stride, left < kTileKeys ? left : kTileKeys, dim,
                       task.tile);
        for_row_groups(0, task.num_queries, [&](auto rows, int64_t query) {
            PanelSums<decltype(rows)::kValue> sums;
            sums.set(0.0f);
            sums.accumulate(task.queries + query * dim, dim, FloatPanel{task.tile, kPanelWidth},
                            dim);
            sums.store_to(task.scores + query * task.score_stride + begin, task.score_stride);
        });
    }
}

// Turns n scores into weights 2^(s * scale - max) and returns their sum: lane = index mod 16, lanes
// in index order, then a halving tree.
float softmax_weights(float* scores, int64_t n, float scale) {
    float largest[kSumLanes];
    for (float& lane : largest) lane = -kInfinity;
    const int64_t whole = n / kSumLanes * kSumLanes;
    for (int64_t j = 0; j < n; ++j) scores[j] *= scale;
    for (int64_t j = 0; j < whole; j += kSumLanes) {
        for (int l = 0; l < kSumLanes; ++l) {
            largest[l] = scores[j + l] > largest[l] ? scores[j + l] : largest[l];
        }
    }
    float max = -kInfinity;
    for (int64_t j = whole; j < n; ++j) max = scores[j] > max ? scores[j] : max;
    for (float lane : largest) max = lane > max ? lane : max;

    float lanes[kSumLanes] = {};
    for (int64_t j = 0; j < n; ++j) scores[j] = exp2_nonpositive(scores[j] - max);
    for (int64_t j = 0; j < whole; j += kSumLanes) {
        for (int l = 0; l < kSumLanes; ++l) lanes[l] += scores[j + l];
    }
    for (int64_t j = whole; j < n; ++j) lanes[j - whole] += scores[j];
    for (int half = kSumLanes / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
    }
    return lanes[0];
}

// Continues the weighted sums of queries [query_begin, query_end) over keys [begin, end); `values`
// is the row of key `begin` in the tile.
void accumulate_values(const Task& task, const float* values, int64_t query_begin,
                       int64_t query_end, int64_t begin, int64_t end) {
    for (int64_t column = 0; column < task.padded_dim; column += kPanelWidth) {
        for_row_groups(query_begin, query_end, [&](auto rows, int64_t query) {
            float* target = task.sums + query * task.padded_dim + column;
            PanelSums<decltype(rows)::kValue> sums;
            sums.load_from(target, task.padded_dim);
            sums.accumulate(task.scores + query * task.score_stride + begin, task.score_stride,
                            FloatPanel{values + column, task.padded_dim}, end - begin);
            sums.store_to(target, task.padded_dim);
        });
    }
}

template <class Element>
inline void widen(const Element* source, int64_t count, float* target) {
    int64_t d = 0;
    for (; d + kLanes <= count; d += kLanes) store(target + d, load(source + d));
    for (; d < count; ++d) target[d] = to_float(source[d]);
}

// sums[query] = sum over its keys of weight * value, one fma chain in ascending key order. Keys
// outside a row's range are not touched at all: a weight of 0 would still let a NaN of the cache
// through.
template <class Element>
void sum_values(const Task& task) {
    const AttentionArgs& args = task.args;
    const int64_t stride = args.value_strides.position;
    const Element* values = task.cache<Element>(args.value_cache, args.value_strides);
    const int64_t count = task.group.key_end - task.group.key_begin;
    for (int64_t tile_begin = 0; tile_begin < count; tile_begin += kTileKeys) {
        const int64_t tile_end = tile_begin + kTileKeys < count ? tile_begin + kTileKeys : count;
        for (int64_t key = tile_begin; key < tile_end; ++key) {
            widen(values + key * stride, args.head_dim,
                  task.tile + (key - tile_begin) * task.padded_dim);
        }
        // Runs of rows with the same keys in this tile go together.
        for (int64_t row = task.group.row_begin; row < task.group.row_end;) {
            const int64_t begin = task.clip(args.key_starts[row], tile_begin, tile_end);
            const int64_t end = task.clip(args.key_ends[row], tile_begin, tile_end);
            const int64_t first = row - task.group.row_begin;
            do {
                ++row;
            } while (row < task.group.row_end &&
                     task.clip(args.key_starts[row], tile_begin, tile_end) == begin &&
                     task.clip(args.key_ends[row], tile_begin, tile_end) == end);
            if (begin >= end) continue;
            accumulate_values(task, task.tile + (begin - tile_begin) * task.padded_dim,
                              first * task.heads_per_row,
                              (row - task.group.row_begin) * task.heads_per_row, begin, end);
        }
    }
}

template <class Element>
void attend(const Task& task) {
    const AttentionArgs& args = task.args;
    const int64_t dim = args.head_dim;
    for (int64_t query = 0; query < task.num_queries; ++query) {
        std::memcpy(task.queries + query * dim, args.query + task.offset_of(query),
                    static_cast<size_t>(dim) * sizeof(float));
    }
    compute_scores<Element>(task);
    for (int64_t query = 0; query < task.num_queries; ++query) {
        const int64_t row = task.row_of(query);
        float* scores =
            task.scores + query * task.score_stride + args.key_starts[row] - task.group.key_begin;
        task.totals[query] =
            softmax_weights(scores, args.key_ends[row] - args.key_starts[row], args.exponent_scale);
    }
    // The padding of both stays zero from here on.
    set_zero(task.sums, task.num_queries * task.padded_dim);
    set_zero(task.tile, kTileKeys * task.padded_dim);
    sum_values<Element>(task);
    for (int64_t query = 0; query < task.num_queries; ++query) {
        const float* sums = task.sums + query * task.padded_dim;
        float* out = args.out + task.offset_of(query);
        for (int64_t d = 0; d < dim; ++d) out[d] = sums[d] / task.totals[query];
    }
}

}  // namespace

void attention(const AttentionArgs& args, int64_t task_begin, int64_t task_end, float* scratch) {
    for (int64_t index = task_begin; index < task_end; ++index) {
        const Task task(args, args.groups[index / args.num_kv_heads], index % args.num_kv_heads,
                        scratch);
        if (args.is_bf16) {
            attend<BFloat16>(task);
        } else {
            attend<float>(task);
        }
    }
}

}  // namespace dspark::DSPARK_ISA
