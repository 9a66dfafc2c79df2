// The dispatch to experts on the CPU with hostile ids, expert maps and plans.
#include "fuzzed.h"
#include "ops/moe/cpu.h"
#include "ops/moe/workspace.h"

namespace {

using namespace dspark;
using namespace fuzzed;

// plan, as the operator allocates and runs it; then it is permuted by and combined.
void fuzz_plan(FuzzedDataProvider& in) {
    const int64_t tokens = in.ConsumeIntegralInRange<int64_t>(0, 9);
    const int64_t k = in.ConsumeIntegralInRange<int64_t>(0, 4);
    PlanArgs args = {};
    args.num_experts = in.ConsumeIntegralInRange<int64_t>(1, 6);
    args.num_ids = in.ConsumeBool() ? in.ConsumeIntegralInRange<int64_t>(0, 9) : args.num_experts;
    const auto wide = numbers<int64_t>(in, tokens * k, -1, args.num_ids);
    const auto narrow = numbers<int32_t>(in, tokens * k, -1, static_cast<int32_t>(args.num_ids));
    const auto map = numbers<int32_t>(in, args.num_ids, -1, static_cast<int32_t>(args.num_experts));
    args.is_int64 = in.ConsumeBool();
    if (args.is_int64) {
        args.ids = wide.data.get();
    } else {
        args.ids = narrow.data.get();
    }
    if (args.num_ids != args.num_experts) args.expert_map = map;
    args.num_slots = tokens * k;
    args.alignment = in.ConsumeIntegralInRange<int64_t>(1, 9);
    args.tile_rows = in.ConsumeIntegralInRange<int64_t>(0, 5);
    args.capacity = moe::plan_rows(args.num_slots, args.num_experts, args.alignment);
    args.tile_capacity = moe::plan_tiles(args.num_slots, args.num_experts, args.tile_rows);
    args.num_segments = in.ConsumeIntegralInRange<int64_t>(1, 3);
    args.segment_slots = args.num_slots / args.num_segments + 1;
    const Array<int64_t> cursors(args.num_segments * args.num_experts), counts(args.num_experts),
        offsets(args.num_experts + 1), sorted(args.capacity), inverse(args.num_slots), total(1),
        tile_row(args.tile_capacity), num_tiles(1);
    const Array<int32_t> tile_expert(args.tile_capacity), tile_size(args.tile_capacity);
    args.cursors = cursors;
    args.counts = counts;
    args.offsets = offsets;
    args.sorted = sorted;
    args.inverse = inverse;
    args.total = total;
    args.tile_expert = tile_expert;
    args.tile_row = tile_row;
    args.tile_size = tile_size;
    args.num_tiles = num_tiles;
    baseline::count_slots(args, 0, args.num_segments);
    baseline::lay_out_experts(args);
    baseline::place_slots(args, 0, args.num_segments);
    int64_t here = 0, tiled = 0;
    for (int64_t slot = 0; slot < args.num_slots; ++slot) {
        const int64_t row = inverse[slot];
        require(row >= -1 && row < args.capacity, "a row that is not");
        if (row < 0) continue;
        require(sorted[row] == slot, "sorted is not the inverse of inverse");
        ++here;
    }
    for (int64_t i = 0; i < args.tile_capacity; ++i) tiled += tile_size[i];
    require(args.tile_rows == 0 || tiled == here, "tiles miss a row");
}

PlanRows hostile_rows(FuzzedDataProvider& in, const Array<int64_t>& sorted,
                      const Array<int64_t>& inverse, int64_t tokens, int64_t k) {
    const int64_t slots = tokens * k;
    for (int64_t i = 0; i < sorted.count; ++i) sorted[i] = number<int64_t>(in, -1, slots);
    for (int64_t i = 0; i < slots; ++i) inverse[i] = number<int64_t>(in, -1, sorted.count);
    return {sorted, inverse, tokens, k, sorted.count};
}

void fuzz_permute(FuzzedDataProvider& in) {
    const int64_t tokens = in.ConsumeIntegralInRange<int64_t>(0, 5);
    const int64_t k = in.ConsumeIntegralInRange<int64_t>(0, 3);
    const int64_t bytes = in.ConsumeIntegralInRange<int64_t>(0, 40);
    const Array<int64_t> sorted(in.ConsumeIntegralInRange<int64_t>(0, 20)), inverse(tokens * k);
    PermuteArgs args = {};
    args.rows = hostile_rows(in, sorted, inverse, tokens, k);
    const Array<uint8_t> x(tokens * bytes), out(sorted.count * bytes);
    args.x = x.data.get();
    args.x_stride = args.row_bytes = bytes;
    args.unit = 1;
    args.permuted = out.data.get();
    baseline::permute_tokens(args, 0, tokens);
    baseline::clear_padding(args, 0, sorted.count);
}

void fuzz_combine(FuzzedDataProvider& in) {
    const int64_t tokens = in.ConsumeIntegralInRange<int64_t>(0, 5);
    const int64_t k = in.ConsumeIntegralInRange<int64_t>(0, 3);
    const int64_t width = in.ConsumeIntegralInRange<int64_t>(0, 40);
    const Array<int64_t> sorted(in.ConsumeIntegralInRange<int64_t>(0, 20)), inverse(tokens * k);
    CombineArgs args = {};
    args.rows = hostile_rows(in, sorted, inverse, tokens, k);
    args.num_rows = sorted.count;
    const auto y = floats(in, sorted.count * width), weights = floats(in, tokens * k),
               shared = floats(in, tokens * width);
    const Array<float> out(tokens * width);
    args.y = {y.data.get(), width};
    args.weights = weights.data.get();
    args.weights_dtype = args.dtype = FloatType::kFloat32;
    args.weights_token_stride = k;
    args.weights_slot_stride = 1;
    if (in.ConsumeBool()) args.shared = {shared.data.get(), width};
    args.row_size = width;
    args.out = out.data.get();
    baseline::combine(args, 0, tokens);
    const int64_t bad = baseline::first_bad_row(args.rows, args.num_rows);
    require(bad < 0 || inverse[bad] >= args.num_rows, "a row that is good");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    FuzzedDataProvider in(data, size);
    switch (in.ConsumeIntegralInRange<int>(0, 2)) {
        case 0:
            fuzz_plan(in);
            break;
        case 1:
            fuzz_permute(in);
            break;
        default:
            fuzz_combine(in);
    }
    return 0;
}
