#include "backends/simt/shadow.h"

#include <algorithm>

#include "backends/simt/ordering.h"
#include "backends/simt/transfer.h"

namespace dspark::emulator {

void Shadow::reset(size_t bytes) {
    bytes_ = bytes;
    const size_t words = (bytes + 3) / 4;
    cells_[0].assign(words, Cell{});
    for (int byte = 1; byte < 4; ++byte) cells_[byte].clear();
    split_.assign(words, 0);
}

// Whether a touch of the same block is neither by the same thread nor ordered by a barrier.
inline bool Shadow::unordered(const Touch& touch, const Access& access) {
    if (is_copy(touch.thread)) {
        return touch.time >= access.since &&
               !transfers_order(touch.time, slot_of_copy(touch.thread), access.thread);
    }
    if (touch.time < access.barrier) return false;
    if (touch.thread >> access.warp_shift != access.thread >> access.warp_shift) {
        return !transfers_order(touch.time, touch.thread >> access.warp_shift, access.thread);
    }
    if (touch.time != access.time) return false;
    return touch.thread != access.thread || touch.several != 0;
}

inline void Shadow::remember_reader(Cell& cell, const Access& access) {
    if (cell.first_read < access.since) cell.first_read = access.time;
    const Touch now = {access.time, access.thread, 0};
    Touch& last = cell.read;
    if (last.time < access.barrier) {
        cell.other_read = {};
        last = now;
        return;
    }
    if (last.thread >> access.warp_shift != access.thread >> access.warp_shift) {
        cell.other_read = last;
        last = now;
    } else if (last.time != access.time) {
        last = now;
    } else if (last.thread != access.thread) {
        last.several = 1;
    }
}

inline Conflict Shadow::touch(Cell& cell, const Access& access) {
    const Touch written = cell.write;
    if (access.must_be_written && !access.store && written.time < access.since) {
        return {Conflict::kUninitialised, false, -1};
    }
    if (written.time >= access.since && written.time < access.block &&
        !happens_before(written.time, written.thread, access.thread)) {
        return {Conflict::kBlocks, true, -1};
    }
    if (unordered(written, access)) return {Conflict::kThreads, true, written.thread};
    if (access.of_product && written.several == 0) {
        return {Conflict::kUnpublished, true, written.thread};
    }
    if (!access.store) {
        remember_reader(cell, access);
        return {};
    }
    if (cell.first_read >= access.since && cell.first_read < access.block) {
        return {Conflict::kBlocks, false, -1};
    }
    for (const Touch& read : {cell.read, cell.other_read}) {
        if (unordered(read, access)) return {Conflict::kThreads, false, read.thread};
    }
    cell.write = {access.time, access.thread, 0};
    if (access.copy_time != 0) cell.write = {access.copy_time, access.copy, 1};
    cell.read = cell.other_read = {};
    return {};
}

void Shadow::publish(size_t offset, size_t bytes, uint16_t thread) {
    for (size_t at = offset; at < offset + bytes; ++at) {
        const int byte = split_[at / 4] != 0 ? static_cast<int>(at % 4) : 0;
        Touch& write = cells_[byte][at / 4].write;
        if (write.thread == thread) write.several = 1;
    }
}

void Shadow::split(size_t word) {
    if (split_[word] != 0) return;
    split_[word] = 1;
    for (int byte = 1; byte < 4; ++byte) {
        if (cells_[byte].empty()) cells_[byte].resize(cells_[0].size());
        cells_[byte][word] = cells_[0][word];
    }
}

Conflict Shadow::check(size_t offset, size_t bytes, const Access& access) {
    if (bytes == 4 && offset % 4 == 0 && split_[offset / 4] == 0) {
        return touch(cells_[0][offset / 4], access);
    }
    const size_t end = offset + bytes;
    while (offset < end) {
        const size_t word = offset / 4;
        const size_t stop = std::min(end, 4 * word + 4);
        const bool whole = stop - offset == 4;
        if (!whole) split(word);
        const size_t cells = split_[word] != 0 ? stop - offset : 1;
        for (size_t i = 0; i < cells; ++i) {
            const Conflict conflict = touch(cells_[(offset + i) % 4][word], access);
            if (conflict.kind != Conflict::kNone) return conflict;
        }
        // first_read may differ from byte to byte; the earliest is kept.
        if (whole && access.store && split_[word] != 0) {
            for (int byte = 1; byte < 4; ++byte) {
                const uint32_t first = cells_[byte][word].first_read;
                uint32_t& kept = cells_[0][word].first_read;
                if (first >= access.since && (kept < access.since || first < kept)) kept = first;
            }
            split_[word] = 0;
        }
        offset = stop;
    }
    return {};
}

}  // namespace dspark::emulator
