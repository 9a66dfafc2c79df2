// CPU kernels of the mixture-of-experts dispatch; compiled once per instruction set, in namespace
// dspark::DSPARK_ISA.
#include "ops/moe/cpu.h"

#include <algorithm>
#include <cstring>

#include "ops/moe/algorithm.h"
#include "ops/moe/cpu_combine.h"

namespace dspark::DSPARK_ISA {

using namespace moe;

// ---- plan ---------------------------------------------------------------------------------------

void count_slots(const PlanArgs& args, int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
        int64_t* counts = args.cursors + s * args.num_experts;
        std::fill_n(counts, args.num_experts, 0);
        const Segment segment = segment_of(args, s);
        for (int64_t slot = segment.begin; slot < segment.end; ++slot) {
            const int32_t expert = expert_of(args, slot);
            if (expert != kNotHere) ++counts[expert];
        }
    }
}

namespace {

// Turns the counts of an expert in each segment into the first row of each, and returns their sum.
int64_t turn_counts_into_rows(const PlanArgs& args, int64_t expert, int64_t first_row) {
    int64_t row = first_row;
    for (int64_t s = 0; s < args.num_segments; ++s) {
        int64_t& cursor = args.cursors[s * args.num_experts + expert];
        const int64_t count = cursor;
        cursor = row;
        row += count;
    }
    return row - first_row;
}

}  // namespace

void lay_out_experts(const PlanArgs& args) {
    int64_t row = 0;
    int64_t tile = 0;
    for (int64_t expert = 0; expert < args.num_experts; ++expert) {
        const int64_t count = turn_counts_into_rows(args, expert, row);
        const int64_t tiles = tiles_of(args, count);
        for (int64_t i = 0; i < tiles; ++i) {
            write_tile(args, tile + i, static_cast<int32_t>(expert), row, count, i);
        }
        args.counts[expert] = count;
        args.offsets[expert] = row;
        const int64_t end = row + padded_rows(args, count);
        std::fill(args.sorted + row + count, args.sorted + end, no_slot(args));
        row = end;
        tile += tiles;
    }
    args.offsets[args.num_experts] = row;
    args.total[0] = row;
    args.num_tiles[0] = tile;
    std::fill(args.sorted + row, args.sorted + args.capacity, no_slot(args));
    for (; tile < args.tile_capacity; ++tile) write_no_tile(args, tile);
}

void place_slots(const PlanArgs& args, int64_t begin, int64_t end) {
    for (int64_t s = begin; s < end; ++s) {
        int64_t* cursors = args.cursors + s * args.num_experts;
        const Segment segment = segment_of(args, s);
        for (int64_t slot = segment.begin; slot < segment.end; ++slot) {
            const int32_t expert = expert_of(args, slot);
            const int64_t row = expert == kNotHere ? -1 : cursors[expert]++;
            args.inverse[slot] = row;
            if (row >= 0) args.sorted[row] = slot;
        }
    }
}

// ---- rows ---------------------------------------------------------------------------------------

void permute_tokens(const PermuteArgs& args, int64_t begin, int64_t end) {
    const char* x = static_cast<const char*>(args.x);
    char* permuted = static_cast<char*>(args.permuted);
    for (int64_t token = begin; token < end; ++token) {
        for (int64_t j = 0; j < args.rows.slots_per_token; ++j) {
            const int64_t row = row_of_slot(args.rows, token, j, args.rows.capacity);
            if (row < 0) continue;
            memcpy(permuted + row * args.row_bytes, x + token * args.x_stride,
                   static_cast<size_t>(args.row_bytes));
        }
    }
}

void clear_padding(const PermuteArgs& args, int64_t begin, int64_t end) {
    char* permuted = static_cast<char*>(args.permuted);
    for (int64_t row = begin; row < end; ++row) {
        if (token_of_row(args.rows, row) >= 0) continue;
        memset(permuted + row * args.row_bytes, 0, static_cast<size_t>(args.row_bytes));
    }
}

void combine(const CombineArgs& args, int64_t begin, int64_t end) {
    switch (args.dtype) {
        case FloatType::kFloat32:
            return combine_tokens<float>(args, begin, end);
        case FloatType::kBFloat16:
            return combine_tokens<BFloat16>(args, begin, end);
        case FloatType::kFloat16:
            return combine_tokens<Float16>(args, begin, end);
    }
}

int64_t first_bad_row(const PlanRows& rows, int64_t num_rows) {
    const int64_t slots = rows.num_tokens * rows.slots_per_token;
    int64_t most = -1;
    for (int64_t i = 0; i < slots; ++i) most = std::max(most, rows.inverse[i]);
    if (most < num_rows) return -1;
    const auto is_bad = [&](int64_t row) { return row >= num_rows; };
    return std::find_if(rows.inverse, rows.inverse + slots, is_bad) - rows.inverse;
}

}  // namespace dspark::DSPARK_ISA
