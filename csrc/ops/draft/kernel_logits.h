// The logits of one draft: base + bias for a range of vocabulary rows and a group of requests, and
// the columns that no draft id maps to.
#pragma once

#include "device/tickets.h"
#include "ops/draft/algorithm.h"
#include "ops/draft/kernel_products.h"
#include "ops/draft/step.h"

namespace dspark::DSPARK_ISA::draft {

// ---- inputs -------------------------------------------------------------------------------------

struct InputRow {
    Global<const void> data;  // null: zeros
    FloatType type;
    Reading reading;
};

DSPARK_DEVICE Global<const void> row_of(FloatType type, Global<const void> data, int64_t row,
                                        int64_t size) {
    if (type == FloatType::kFloat32) return global_cast<const float>(data) + row * size;
    return global_cast<const BFloat16>(data) + row * size;
}

// u of a request at draft k; of no request: zeros. A vanilla head has the embedding itself: that of
// the anchor, or what the draw of the draft before has kept of it.
DSPARK_DEVICE InputRow input_row(const MarkovStep& step, int64_t b) {
    const MarkovArgs& args = step.args;
    if (args.head != MarkovHead::kVanilla) {
        const Global<const void> all = args.bias_input;
        const Global<const void> row = row_of(FloatType::kFloat32, all, b, args.padded_rank);
        return {b < args.batch ? row : nullptr, FloatType::kFloat32, Reading::kFresh};
    }
    if (b >= args.batch) return {nullptr, args.w1_type, Reading::kConstant};
    if (step.k > 0) {
        const int64_t row = b * args.num_drafts + step.k;
        return {row_of(args.w1_type, args.prev_embed, row, args.rank), args.w1_type,
                Reading::kFresh};
    }
    const int64_t token = args.anchor[b];
    if (!has_embedding(args, token)) return {nullptr, args.w1_type, Reading::kConstant};
    return {row_of(args.w1_type, args.w1, token, args.rank), args.w1_type, Reading::kConstant};
}

// Brings the inputs of a group into the arena, from its begin on.
template <int W, bool kNarrow>
DSPARK_DEVICE void stage_inputs(const MarkovStep& step, int64_t first_request,
                                ProductShared<W>& shared) {
    const LogitsPlan& plan = step.plan;
    const FloatType type =
        step.args.head == MarkovHead::kVanilla ? step.args.w1_type : FloatType::kFloat32;
    const int entries = piece_entries(type);
    const int pieces = plan.size / entries;  // of a request
    const int quads = (plan.group_size + 3) / 4;
    for (int i = thread_idx(); i < quads * pieces; i += kThreads) {
        const int quad = i / pieces;
        const int j = i % pieces * entries;
        RowPieces loaded;
        for (int r = 0; r < 4; ++r) {
            const int request = 4 * quad + r;
            const bool is_in = request < plan.group_size;
            const InputRow row = input_row(step, is_in ? first_request + request : step.args.batch);
            loaded.row[r] =
                load_piece(row.data, type, j, static_cast<int>(step.args.rank), row.reading);
        }
        if constexpr (kNarrow) {
            store_narrow_pieces<W>(loaded, quad / 2 * plan.size * 4, quad % 2, j, shared);
        } else {
            store_pieces<W>(loaded, type, quad * plan.size * 4, j, shared);
        }
    }
}

// ---- rows of w2 ---------------------------------------------------------------------------------

// One thread's share of a chunk of the rows of a pass: four rows, 16 bytes of each.
class RowLoader {
  public:
    DSPARK_DEVICE RowLoader(const MarkovArgs& args, const LogitsPlan& plan, int64_t end_row)
        : args_(args), plan_(plan), end_row_(end_row) {}

    // The share of the chunk that begins with this row and entry; loads are on their way.
    DSPARK_DEVICE void load(int64_t first_row, int first, int count) {
        const int entries = piece_entries(args_.w2_type);
        const int pieces = count / entries;
        quad_ = thread_idx() / pieces;
        j_ = thread_idx() % pieces * entries;
        has_share_ = 4 * quad_ < plan_.pass_rows;
        for (int r = 0; r < 4; ++r) {
            const int64_t row = first_row + 4 * quad_ + r;
            const bool is_in = has_share_ && row < end_row_;
            const Global<const void> data =
                is_in ? row_of(args_.w2_type, args_.w2, row, args_.rank) : nullptr;
            pieces_.row[r] = load_piece(data, args_.w2_type, first + j_,
                                        static_cast<int>(args_.rank), Reading::kOnce);
        }
    }
    template <int W>
    DSPARK_DEVICE void store(int begin, ProductShared<W>& shared) const {
        if (!has_share_) return;
        store_pieces<W>(pieces_, args_.w2_type, begin + 4 * quad_ * plan_.chunk, j_, shared);
    }

  private:
    const MarkovArgs& args_;
    const LogitsPlan& plan_;
    int64_t end_row_;
    int quad_;
    int j_;
    bool has_share_;
    RowPieces pieces_;
};

// ---- logits -------------------------------------------------------------------------------------

DSPARK_DEVICE void store_float(FloatType type, Global<void> data, int64_t i, float x) {
    if (type == FloatType::kFloat32) {
        global_cast<float>(data)[i] = x;
    } else if (type == FloatType::kBFloat16) {
        BFloat16 rounded;
        narrow(x, &rounded);
        global_cast<BFloat16>(data)[i] = rounded;
    } else {
        Float16 rounded;
        narrow(x, &rounded);
        global_cast<Float16>(data)[i] = rounded;
    }
}

// base + bias for the rows of a pass, from shared.bias.
template <int W>
DSPARK_DEVICE void write_logits(const MarkovStep& step, int64_t first_request, int64_t first_row,
                                int64_t end_row, const ProductShared<W>& shared) {
    const MarkovArgs& args = step.args;
    const int pass_rows = step.plan.pass_rows;
    for (int i = thread_idx(); i < step.plan.group_size * pass_rows; i += kThreads) {
        const int64_t b = first_request + i / pass_rows;
        const int64_t row = first_row + i % pass_rows;
        if (b >= args.batch || row >= end_row) continue;
        const int64_t from = (b * args.num_positions + step.k) * args.draft_vocab + row;
        const float base = read_float(args.logits_type, args.base_logits, from);
        const int64_t id = target_id(args, row);
        if (id < 0) continue;
        const int64_t to = (b * args.num_drafts + step.k) * args.vocab + id;
        store_float(args.logits_type, args.logits, to, base + shared.bias[i]);
    }
}

// Job `job` of the logits of draft k, with its products in lanes.
template <int W, class Products, bool kNarrow>
DSPARK_DEVICE void block_logits(const MarkovStep& step, int64_t job, ProductShared<W>& shared) {
    const LogitsPlan& plan = step.plan;
    const int64_t first_request = job % plan.groups * plan.group_size;
    const int64_t begin_row = job / plan.groups * plan.block_rows;
    const int64_t rest = step.args.draft_vocab - begin_row;
    const int64_t end_row = begin_row + (rest < plan.block_rows ? rest : plan.block_rows);
    const int rows_at = (plan.group_size + 3) / 4 * 4 * plan.size / (kNarrow ? 2 : 1);

    RowLoader loader(step.args, plan, end_row);
    loader.load(begin_row, 0, plan.chunk);  // while the inputs are not there yet
    if (step.is_ordered) {
        const int64_t left = step.args.batch - first_request;
        const int count = left < plan.group_size ? static_cast<int>(left) : plan.group_size;
        block_await(step.scratch.inputs_ready + first_request, count,
                    static_cast<uint32_t>(step.k + 1));
    }
    stage_inputs<W, kNarrow>(step, first_request, shared);

    Products products(plan);
    int64_t row = begin_row;
    int first = 0;
    while (row < end_row) {
        const int count = plan.size - first < plan.chunk ? plan.size - first : plan.chunk;
        const bool is_last = first + count == plan.size;
        sync_block();  // the rows before have been used
        loader.template store<W>(rows_at, shared);
        sync_block();
        const int64_t next_row = is_last ? row + plan.pass_rows : row;
        const int next = is_last ? 0 : first + count;
        if (next_row < end_row) {
            const int left = plan.size - next;
            loader.load(next_row, next, left < plan.chunk ? left : plan.chunk);
        }
        products.add(shared, rows_at, first, count);
        if (is_last) {
            products.store(shared);
            products.clear();
            sync_block();
            write_logits<W>(step, first_request, row, end_row, shared);
        }
        row = next_row;
        first = next;
    }
}

// ---- columns without a draft id -----------------------------------------------------------------

struct FillShared {
    SharedArray<uint8_t, kTile> has_id;
};

// -inf into the columns of one tile that no draft id maps to, for up to kFillRows rows of logits,
// whatever their draft: nobody else touches these columns.
DSPARK_DEVICE void block_fill(const MarkovStep& step, int64_t job, FillShared& shared) {
    const MarkovArgs& args = step.args;
    const int64_t begin = job % args.tiles * kTile;
    const int count = tile_size(args.vocab, static_cast<int>(job % args.tiles));
    const int64_t first_row = job / args.tiles * kFillRows;
    const int64_t rest = args.batch * args.num_drafts - first_row;
    const int rows = static_cast<int>(rest < kFillRows ? rest : kFillRows);
    for (int i = thread_idx(); i < kTile; i += kThreads) shared.has_id[i] = 0;
    sync_block();
    for (int64_t id = thread_idx(); id < args.draft_vocab; id += kThreads) {
        const int64_t column = target_id(args, id) - begin;
        if (column >= 0 && column < count) shared.has_id[column] = 1;
    }
    sync_block();
    for (int row = 0; row < rows; ++row) {
        const int64_t to = (first_row + row) * args.vocab + begin;
        for (int i = thread_idx(); i < count; i += kThreads) {
            const uint8_t has_id = shared.has_id[i];
            if (has_id == 0) store_float(args.logits_type, args.logits, to + i, -kInfinity);
        }
    }
}

}  // namespace dspark::DSPARK_ISA::draft
