// Kernels of pack, unpack, commit and accumulate_stats: the rules of rows.h, a thread per row.
#pragma once

#include "device/block_reduce.h"
#include "ops/verify/rows.h"

namespace dspark::DSPARK_ISA::verify {

template <int W>
DSPARK_KERNEL(kThreads)
void pack_kernel(PackArgs args) {
    check_warp_size<W>();
    const int64_t row = int64_t{block_idx().x} * kThreads + thread_idx();
    if (row >= args.max_rows) return;
    pack_row(args, row, row_owner(args.layout, row));
    pack_sample_row(args, row, ragged_owner(args.layout, row));
}

// A thread per row and per request.
template <int W>
DSPARK_KERNEL(kThreads)
void commit_kernel(CommitArgs args) {
    check_warp_size<W>();
    const int64_t i = int64_t{block_idx().x} * kThreads + thread_idx();
    if (i < args.layout.batch) commit_request(args, i);
    if (i < args.num_rows) commit_row(args, i, row_owner(args.layout, i));
}

// ---- unpack -------------------------------------------------------------------------------------

// Bytes of a row that one block copies.
constexpr int64_t kPieceBytes = 65536;

struct UnpackPieces {
    UnpackArgs args;
    int64_t row_bytes;
    int64_t pieces;  // of a row
};

// An element repeated to 16 bytes.
DSPARK_DEVICE Bytes16 repeated(Global<const void> element, int64_t bytes) {
    uint64_t low = 0;
    if (bytes == 1) low = global_cast<const uint8_t>(element)[0] * 0x0101010101010101u;
    if (bytes == 2) low = global_cast<const uint16_t>(element)[0] * 0x0001000100010001u;
    if (bytes == 4) low = global_cast<const uint32_t>(element)[0] * 0x0000000100000001u;
    if (bytes >= 8) low = global_cast<const uint64_t>(element)[0];
    const uint64_t high = bytes == 16 ? global_cast<const uint64_t>(element)[1] : low;
    return {{static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
             static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)}};
}

// The units of a piece by a block: copies them, or fills where `from` is null.
template <class T>
DSPARK_DEVICE void copy_units(Global<const void> from, Global<void> to, int64_t begin, int64_t end,
                              Bytes16 fill) {
    const uint64_t word = fill.word[0] | uint64_t{fill.word[1]} << 32;
    for (int64_t i = begin / int64_t{sizeof(T)} + thread_idx(); i < end / int64_t{sizeof(T)};
         i += kThreads) {
        T unit = static_cast<T>(word);
        if (from != nullptr) unit = global_cast<const T>(from)[i];
        global_cast<T>(to)[i] = unit;
    }
}
DSPARK_DEVICE void copy_16(Global<const void> from, Global<void> to, int64_t begin, int64_t end,
                           Bytes16 fill) {
    for (int64_t at = begin + 16 * thread_idx(); at < end; at += 16 * kThreads) {
        store16(to, at, from != nullptr ? load16(from, at) : fill);
    }
}

// One block per entry of the result and piece of its row.
template <int W>
DSPARK_KERNEL(kThreads)
void unpack_kernel(UnpackPieces pieces) {
    check_warp_size<W>();
    const UnpackArgs& args = pieces.args;
    const int64_t entry = block_idx().x / pieces.pieces;
    const int64_t row =
        source_row(args, entry / (args.num_drafts + 1), entry % (args.num_drafts + 1));
    const int64_t begin = block_idx().x % pieces.pieces * kPieceBytes;
    const int64_t left = pieces.row_bytes - begin;
    const int64_t end = begin + (left < kPieceBytes ? left : kPieceBytes);
    Global<const void> from = nullptr;
    if (row >= 0) from = global_cast<const char>(args.rows) + row * pieces.row_bytes;
    const Global<void> to = global_cast<char>(args.block) + entry * pieces.row_bytes;
    const Bytes16 fill = repeated(args.fill, args.element_size);
    if (args.unit == 16) return copy_16(from, to, begin, end, fill);
    if (args.unit == 8) return copy_units<uint64_t>(from, to, begin, end, fill);
    if (args.unit == 4) return copy_units<uint32_t>(from, to, begin, end, fill);
    if (args.unit == 2) return copy_units<uint16_t>(from, to, begin, end, fill);
    copy_units<uint8_t>(from, to, begin, end, fill);
}

// ---- accumulate_stats ---------------------------------------------------------------------------

template <int W>
struct StatsShared {
    BlockReduceScratch<W, uint32_t> earlier;
    BlockReduceScratch<W, uint32_t> later;
};

// One block per request. Of several with the same counter row the first counts for all.
template <int W>
DSPARK_KERNEL(kThreads)
void accumulate_stats_kernel(AccumulateStatsArgs args) {
    check_warp_size<W>();
    DSPARK_SHARED(StatsShared<W>, shared);
    const int64_t b = block_idx().x;
    const int64_t row = counter_row(args, b);
    if (row < 0) return;
    bool earlier = false;
    bool later = false;
    if (args.request_ids != nullptr) {
        for (int64_t other = thread_idx(); other < args.batch; other += kThreads) {
            if (other == b || counter_row(args, other) != row) continue;
            (other < b ? earlier : later) = true;
        }
    }
    if (block_any<W>(earlier, shared.earlier)) return;
    const bool shares = block_any<W>(later, shared.later);
    for (int64_t j = thread_idx(); j <= args.num_drafts; j += kThreads) {
        count_position(args, row, b, j);
        for (int64_t other = b + 1; shares && other < args.batch; ++other) {
            if (counter_row(args, other) == row) count_position(args, row, other, j);
        }
    }
}

}  // namespace dspark::DSPARK_ISA::verify
