// The rules of the rows of a pass: whose they are, what is fed to them, which are kept. Every
// backend runs this text. The CPU kernels refuse data out of range (checks.h); on a device, which
// cannot, what is written here says what comes of them.
#pragma once

#include "device/backend.h"
#include "ops/verify/args.h"

namespace dspark::DSPARK_ISA::verify {

// Rows of request b, 0 if it does not exist or its starts fall.
DSPARK_DEVICE int64_t rows_of(const RowLayout& layout, int64_t b) {
    const int64_t begin = layout.query_start_loc[b];
    const int64_t end = layout.query_start_loc[b + 1];
    const int64_t most = layout.rows_per_request;
    const int64_t rows = end > begin ? end - begin : 0;
    return most > 0 && rows > most ? most : rows;
}

DSPARK_DEVICE int64_t first_row(const RowLayout& layout, int64_t b) {
    if (layout.rows_per_request > 0) return b * layout.rows_per_request;
    return layout.query_start_loc[b];
}

// Row number `offset` of a request; request -1: a padding row.
struct RowOwner {
    int64_t request;
    int64_t offset;
};

// If a row belongs to anybody in the ragged order, it is to `request`, the last that starts at or
// before it; -1: none does.
DSPARK_DEVICE RowOwner ragged_row_of(const RowLayout& layout, int64_t request, int64_t row) {
    if (request < 0) return {-1, 0};
    const int64_t offset = row - layout.query_start_loc[request];
    return offset < rows_of(layout, request) ? RowOwner{request, offset} : RowOwner{-1, 0};
}

DSPARK_DEVICE RowOwner ragged_owner(const RowLayout& layout, int64_t row) {
    int64_t low = -1;
    int64_t high = layout.batch;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (layout.query_start_loc[middle] <= row) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return ragged_row_of(layout, low, row);
}

// Where every request has its own rows, padding behind them.
DSPARK_DEVICE RowOwner padded_owner(const RowLayout& layout, int64_t row) {
    const int64_t b = row / layout.rows_per_request;
    if (b >= layout.batch) return {-1, 0};
    const int64_t offset = row % layout.rows_per_request;
    return offset < rows_of(layout, b) ? RowOwner{b, offset} : RowOwner{-1, 0};
}

DSPARK_DEVICE RowOwner row_owner(const RowLayout& layout, int64_t row) {
    return layout.rows_per_request == 0 ? ragged_owner(layout, row) : padded_owner(layout, row);
}

// ---- pack ---------------------------------------------------------------------------------------

// -1 for a position without a block.
DSPARK_DEVICE int64_t slot_of(const PackArgs& args, int64_t request, int64_t position) {
    if (args.block_table == nullptr) return position;
    const int64_t column = position / args.block_size;
    if (column >= args.num_blocks) return -1;
    const int64_t block = args.block_table[request * args.num_blocks + column];
    return block < 0 ? -1 : block * args.block_size + position % args.block_size;
}

// Fills one row of the pass. A negative id is fed as 0; a negative position as 0, and nowhere
// stored; more rows than K + 1 are padding.
DSPARK_DEVICE void pack_row(const PackArgs& args, int64_t row, RowOwner owner) {
    int64_t id = 0;
    int64_t position = 0;
    int64_t slot = -1;
    int64_t request = -1;
    if (owner.request >= 0 && owner.offset <= args.num_drafts) {
        request = owner.request;
        id = owner.offset == 0 ? args.anchor[request]
                               : args.draft_token_ids[request * args.num_drafts + owner.offset - 1];
        position = args.seq_lens[request] + owner.offset;
        if (id < 0) id = 0;
        if (position < 0) {
            position = 0;
        } else {
            slot = slot_of(args, request, position);
        }
    }
    args.input_ids[row] = id;
    args.positions[row] = position;
    args.request_ids[row] = static_cast<int32_t>(request);
    args.slot_mapping[row] = slot;
}

// sample_rows[row]: where the row of the ragged order, whose owner is given, lies in the pass; 0
// past the end.
DSPARK_DEVICE void pack_sample_row(const PackArgs& args, int64_t row, RowOwner owner) {
    const int64_t in_pass =
        owner.request < 0 ? 0 : first_row(args.layout, owner.request) + owner.offset;
    args.sample_rows[row] = in_pass < args.max_rows ? in_pass : 0;
}

// ---- unpack -------------------------------------------------------------------------------------

// The row of the pass that entry (request, offset) of the block comes from; -1: the fill value.
DSPARK_DEVICE int64_t source_row(const UnpackArgs& args, int64_t request, int64_t offset) {
    if (offset >= rows_of(args.layout, request)) return -1;
    const int64_t row = first_row(args.layout, request) + offset;
    return row >= 0 && row < args.num_rows ? row : -1;
}

// ---- commit -------------------------------------------------------------------------------------

// Rows of a request that stay: its anchor and the accepted drafts.
DSPARK_DEVICE int64_t kept_rows(const CommitArgs& args, int64_t b) {
    const int64_t rows = rows_of(args.layout, b);
    const int64_t emitted = args.num_emitted[b];
    return emitted < 0 ? 0 : emitted < rows ? emitted : rows;
}

DSPARK_DEVICE void commit_request(const CommitArgs& args, int64_t b) {
    const int64_t kept = kept_rows(args, b);
    args.new_seq_lens[b] = args.seq_lens[b] + kept;
    args.anchor[b] = args.last_token[b];
    args.num_rejected[b] = static_cast<int32_t>(rows_of(args.layout, b) - kept);
}

DSPARK_DEVICE void commit_row(const CommitArgs& args, int64_t row, RowOwner owner) {
    args.row_kept[row] = owner.request >= 0 && owner.offset < kept_rows(args, owner.request);
}

// ---- accumulate_stats ---------------------------------------------------------------------------

// The counter row of request b; -1: it is not counted, or its data contradict each other.
DSPARK_DEVICE int64_t counter_row(const AccumulateStatsArgs& args, int64_t b) {
    const int64_t row = args.request_ids == nullptr ? b : int64_t{args.request_ids[b]};
    const int64_t length = args.verify_lens[b];
    const int64_t accepted = args.num_accepted[b];
    const bool is_valid = row < args.num_requests && length >= 0 && length <= args.num_drafts &&
                          accepted >= 0 && accepted <= length;
    return is_valid && row >= 0 ? row : -1;
}

// What request b adds to the counters of a position, 0 .. K; the last has the histogram only.
DSPARK_DEVICE void count_position(const AccumulateStatsArgs& args, int64_t row, int64_t b,
                                  int64_t position) {
    const int64_t accepted = args.num_accepted[b];
    if (position < args.verify_lens[b]) {
        args.verified[row * args.num_drafts + position] += 1;
        if (position <= accepted) args.reached[row * args.num_drafts + position] += 1;
    }
    if (position == accepted) args.histogram[row * (args.num_drafts + 1) + position] += 1;
}

}  // namespace dspark::DSPARK_ISA::verify
