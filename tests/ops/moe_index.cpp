// The CPU kernels of the dispatch, without torch, on memory that is only reserved: sizes past 2^32
// cost a few pages. And with guard words round every array. Prints what failed; test_moe_index.py
// builds it with the address sanitizer and runs it.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "ops/moe/algorithm.h"
#include "ops/moe/cpu.h"
#include "ops/moe/workspace.h"

namespace dspark::DSPARK_ISA {
namespace {

using namespace moe;

int failures = 0;

void expect(bool condition, const char* what) {
    if (condition) return;
    std::printf("wrong: %s\n", what);
    ++failures;
}

// Zeros that take no memory until they are written.
template <class T>
T* reserve(int64_t count) {
    void* memory = mmap(nullptr, static_cast<size_t>(count) * sizeof(T), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        std::printf("cannot reserve %lld bytes\n", static_cast<long long>(count * sizeof(T)));
        std::exit(77);
    }
    return static_cast<T*>(memory);
}

// An array between guard words.
template <class T>
class Guarded {
  public:
    explicit Guarded(int64_t count, T fill = T{}) : data_(count + 2 * kGuard, kWord) {
        for (int64_t i = 0; i < count; ++i) data_[kGuard + i] = fill;
    }
    T* data() { return data_.data() + kGuard; }
    bool is_intact() const {
        for (int64_t i = 0; i < kGuard; ++i) {
            if (data_[i] != kWord || data_[data_.size() - 1 - i] != kWord) return false;
        }
        return true;
    }

  private:
    static constexpr int64_t kGuard = 64;
    static constexpr T kWord = static_cast<T>(0x5A5A5A5A5A5A5A5A);
    std::vector<T> data_;
};

constexpr int64_t kTokens = (int64_t{1} << 32) + 3;
constexpr int64_t kSlotsPerToken = 2;
constexpr int64_t kSlots = kTokens * kSlotsPerToken;

// The last of 2^33 + 6 slots, as the segment that holds them places them.
void place_past_2_to_33() {
    PlanArgs args = {};
    args.num_slots = kSlots;
    args.num_experts = args.num_ids = 2;
    args.alignment = 64;
    args.tile_rows = 128;
    args.capacity = dspark::moe::plan_rows(kSlots, 2, 64);
    args.num_segments = int64_t{1} << 20;
    args.segment_slots = kSlots / args.num_segments + 1;
    const int64_t segment = kSlots / args.segment_slots;
    expect(segment_of(args, segment).end == kSlots, "end of the last segment");
    expect(segment_of(args, segment - 1).end == segment_of(args, segment).begin, "segments meet");
    expect(segment_of(args, args.num_segments - 1).begin == kSlots, "segments past the end");

    auto* ids = reserve<int32_t>(kSlots);
    args.ids = ids;
    args.inverse = reserve<int64_t>(kSlots);
    args.sorted = reserve<int64_t>(args.capacity);
    args.cursors = reserve<int64_t>(args.num_segments * 2);
    ids[kSlots - 1] = 1;
    ids[kSlots - 2] = -1;
    count_slots(args, segment, segment + 1);
    int64_t* cursors = args.cursors + segment * 2;
    const int64_t in_segment = kSlots - segment_of(args, segment).begin;
    expect(cursors[0] == in_segment - 2 && cursors[1] == 1, "counts of the last segment");

    const int64_t first_row = kSlots - in_segment;
    cursors[0] = first_row;
    cursors[1] = args.capacity - 64;
    place_slots(args, segment, segment + 1);
    expect(args.inverse[kSlots - 1] == args.capacity - 64, "row of the last slot");
    expect(args.inverse[kSlots - 2] == -1, "a slot that is not here");
    expect(args.inverse[kSlots - 3] == first_row + in_segment - 3, "row of the slot before");
    expect(args.sorted[args.capacity - 64] == kSlots - 1, "slot of the last row");

    const PlanRows rows = {args.sorted, args.inverse, kTokens, kSlotsPerToken, args.capacity};
    expect(token_of_row(rows, args.capacity - 64) == kTokens - 1, "token of the last row");
    expect(row_of_slot(rows, kTokens - 1, 1, args.capacity) == args.capacity - 64, "row of a slot");
}

void tiles_past_2_to_33() {
    PlanArgs args = {};
    args.tile_rows = 3;
    args.alignment = 5;
    Guarded<int32_t> expert(2), size(2);
    Guarded<int64_t> row(2);
    args.tile_expert = expert.data();
    args.tile_row = row.data();
    args.tile_size = size.data();
    const int64_t count = (int64_t{1} << 33) + 1;
    expect(tiles_of(args, count) == (count + 2) / 3, "number of tiles");
    expect(padded_rows(args, count) % 5 == 0 && padded_rows(args, count) - count < 5, "padding");
    write_tile(args, 1, 7, int64_t{1} << 35, count, tiles_of(args, count) - 1);
    expect(row.data()[1] == (int64_t{1} << 35) + (count - 1) / 3 * 3, "row of the last tile");
    expect(size.data()[1] == (count - 1) % 3 + 1 && expert.data()[1] == 7, "the last tile");
}

// One token whose rows lie beyond 2^33 elements, in and out.
void move_rows_past_2_to_33() {
    constexpr int64_t kWidth = 8;
    constexpr int64_t kStride = 4096;
    constexpr int64_t kCapacity = (int64_t{1} << 30) + 64;
    const int64_t token = kTokens - 1;
    auto* inverse = reserve<int64_t>(kSlots);
    inverse[token * kSlotsPerToken] = kCapacity - 1;
    inverse[token * kSlotsPerToken + 1] = -1;
    const PlanRows rows = {nullptr, inverse, kTokens, kSlotsPerToken, kCapacity};

    auto* x = reserve<float>(kTokens * kWidth);
    auto* permuted = reserve<float>(kCapacity * kWidth);
    for (int64_t i = 0; i < kWidth; ++i) x[token * kWidth + i] = static_cast<float>(i + 1);
    constexpr int64_t kBytes = kWidth * sizeof(float);
    permute_tokens({x, kBytes, rows, kBytes, 16, permuted}, token, token + 1);
    expect(permuted[kCapacity * kWidth - 1] == kWidth, "a far row of x");

    auto* y = reserve<float>(kCapacity * kStride);
    auto* out = reserve<float>(kTokens * kWidth);
    y[(kCapacity - 1) * kStride + kWidth - 1] = 3.0f;
    const float weights[] = {2.0f, 9.0f};
    CombineArgs args = {};
    args.y = {y, kStride};
    args.num_rows = kCapacity;
    args.rows = rows;
    args.weights = weights;
    args.weights_slot_stride = 1;
    args.row_size = kWidth;
    args.out = out;
    combine(args, token, token + 1);
    expect(out[kTokens * kWidth - 1] == 6.0f, "a far row of y");
}

// A whole call on small arrays of which every neighbour is watched.
void stay_within_memory(std::mt19937_64& random, int64_t tokens, int64_t k, int64_t experts) {
    const int64_t slots = tokens * k;
    Guarded<int64_t> ids(slots);
    const int64_t foreign[] = {-1, -2, experts, experts + 1, INT64_MIN, INT64_MAX, 1LL << 32};
    for (int64_t i = 0; i < slots; ++i) {
        const bool is_foreign = random() % 3 == 0;
        ids.data()[i] = is_foreign
                            ? foreign[random() % 7]
                            : static_cast<int64_t>(random() % static_cast<uint64_t>(experts));
    }
    PlanArgs args = {};
    args.ids = ids.data();
    args.is_int64 = true;
    args.num_slots = slots;
    args.num_experts = args.num_ids = experts;
    args.alignment = 1 + static_cast<int64_t>(random() % 5);
    args.tile_rows = 1 + static_cast<int64_t>(random() % 5);
    args.capacity = dspark::moe::plan_rows(slots, experts, args.alignment);
    args.tile_capacity = dspark::moe::plan_tiles(slots, experts, args.tile_rows);
    dspark::moe::cut_segments(args, 3, 4);
    Guarded<int64_t> cursors(args.num_segments * experts), counts(experts), offsets(experts + 1);
    Guarded<int64_t> sorted(args.capacity), inverse(slots), total(1), num_tiles(1);
    Guarded<int64_t> tile_row(args.tile_capacity);
    Guarded<int32_t> tile_expert(args.tile_capacity), tile_size(args.tile_capacity);
    args.cursors = cursors.data();
    args.counts = counts.data();
    args.offsets = offsets.data();
    args.sorted = sorted.data();
    args.inverse = inverse.data();
    args.total = total.data();
    args.tile_expert = tile_expert.data();
    args.tile_row = tile_row.data();
    args.tile_size = tile_size.data();
    args.num_tiles = num_tiles.data();
    count_slots(args, 0, args.num_segments);
    lay_out_experts(args);
    place_slots(args, 0, args.num_segments);
    expect(num_tiles.data()[0] <= args.tile_capacity && total.data()[0] <= args.capacity, "room");

    constexpr int64_t kWidth = 21;
    const PlanRows rows = {args.sorted, args.inverse, tokens, k, args.capacity};
    Guarded<float> x(tokens * kWidth, 1.0f), permuted(args.capacity * kWidth, -1.0f);
    Guarded<float> out(tokens * kWidth, -1.0f), weights(slots, 1.0f);
    permute_tokens({x.data(), kWidth * 4, rows, kWidth * 4, 4, permuted.data()}, 0, tokens);
    clear_padding({x.data(), kWidth * 4, rows, kWidth * 4, 4, permuted.data()}, 0, args.capacity);
    CombineArgs sum = {};
    sum.y = {permuted.data(), kWidth};
    sum.num_rows = args.capacity;
    sum.rows = rows;
    sum.weights = weights.data();
    sum.weights_token_stride = k;
    sum.weights_slot_stride = 1;
    sum.row_size = kWidth;
    sum.out = out.data();
    combine(sum, 0, tokens);
    for (int64_t t = 0; t < tokens; ++t) {
        float here = 0.0f;
        for (int64_t j = 0; j < k; ++j) here += args.inverse[t * k + j] >= 0 ? 1.0f : 0.0f;
        expect(out.data()[t * kWidth] == here && out.data()[(t + 1) * kWidth - 1] == here, "sum");
    }
    const bool is_intact = ids.is_intact() && cursors.is_intact() && counts.is_intact() &&
                           offsets.is_intact() && sorted.is_intact() && inverse.is_intact() &&
                           total.is_intact() && num_tiles.is_intact() && tile_row.is_intact() &&
                           tile_expert.is_intact() && tile_size.is_intact() && x.is_intact() &&
                           permuted.is_intact() && out.is_intact() && weights.is_intact();
    expect(is_intact, "guard words");
}

}  // namespace

int run() {
    tiles_past_2_to_33();
    place_past_2_to_33();
    move_rows_past_2_to_33();
    std::mt19937_64 random(33);
    for (int64_t tokens : {0, 1, 3, 17, 40}) {
        for (int64_t k : {0, 1, 2, 7}) {
            for (int64_t experts : {1, 4, 33}) stay_within_memory(random, tokens, k, experts);
        }
    }
    std::printf("failures: %d\n", failures);
    return failures == 0 ? 0 : 1;
}

}  // namespace dspark::DSPARK_ISA

int main() {
    return dspark::DSPARK_ISA::run();
}
