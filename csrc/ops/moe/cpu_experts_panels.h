// Weights of experts as the matrix path of the CPU reads them: two panels of 16 rows of an expert,
// some columns at a time, as vectors of pairs.
#pragma once

#include "backends/cpu/pair_panels.h"
#include "backends/cpu/pair_products.h"
#include "ops/moe/algorithm_experts.h"
#include "ops/moe/cpu_experts_pairs.h"

namespace dspark::DSPARK_ISA::experts {

using dspark::experts::kPairBlock;
using dspark::experts::kPairChunk;
using dspark::experts::kPairRows;
using dspark::experts::kPairWeights;
using dspark::experts::padded_pair_columns;

static_assert(kPairWeights == pairs::kSums && pairs::kPanels == 2);

// What the kernels of a thread share.
struct Scratch {
    char* x;          // [K in chunks][rows][columns of the chunk]
    float* sums;      // [kPairRows][kSums]
    float* partial;   // the same, of a block that is longer than a chunk
    uint32_t* pairs;  // [kPanels][kPairChunk / 2][16]
    uint32_t* words;  // [kPairChunk / 2][16] of one panel, before codes are pairs
    float* scales;    // [kPairChunk / kPairBlock][kSums]

    Scratch(const ExpertWeights& weight, char* memory) {
        const auto take = [&memory](int64_t floats) {
            float* taken = reinterpret_cast<float*>(memory);
            memory += floats * 4;
            return taken;
        };
        x = reinterpret_cast<char*>(take(kPairRows * padded_pair_columns(weight)));
        sums = take(kPairRows * kPairWeights);
        partial = take(kPairRows * kPairWeights);
        pairs = reinterpret_cast<uint32_t*>(take(kPairChunk / 2 * kPairWeights));
        words = reinterpret_cast<uint32_t*>(take(kPairChunk / 2 * kPairWeights / 2));
        scales = take(kPairChunk / kPairBlock * kPairWeights);
    }
};

// ---- columns ------------------------------------------------------------------------------------

// How far ahead of its use a panel is fetched that no row comes back to.
constexpr int64_t kColumnsAhead = 128;

// Some columns of two panels, or with is_next of the next two.
struct ColumnRange {
    int64_t begin;
    int64_t end;
    bool is_next;
};

// How K is cut: into chunks of whole blocks of scales, or of parts of one block; or, where panels
// are multiplied where they lie and by all rows at once, into the last kColumnsAhead and all
// others.
struct Columns {
    int64_t padded;
    int64_t block;  // columns that share a scale; 0: none do
    int64_t chunk;  // columns of a chunk, where no block ends before
    bool is_stream;

    Columns(const ExpertWeights& weight, bool rows_meet_once)
        : padded(padded_pair_columns(weight)), block(weight.block_columns), chunk(kPairChunk) {
        if (block > 0 && block <= chunk) chunk = chunk / block * block;
        is_stream = rows_meet_once && weight.layout == WeightLayout::kPairs && block == 0;
    }
    bool has_long_blocks() const { return block > kPairChunk; }
    int64_t end_of(int64_t begin) const {
        if (is_stream)
            return begin == 0 && padded > kColumnsAhead ? padded - kColumnsAhead : padded;
        int64_t end = moe::smaller(begin + chunk, padded);
        if (has_long_blocks()) end = moe::smaller(end, (begin / block + 1) * block);
        return end;
    }
    // What is fetched during a chunk: the next one, or in a stream as many columns.
    ColumnRange fetched_during(int64_t begin, int64_t end) const {
        if (end == padded) return {0, is_stream ? end - begin : end_of(0), true};
        if (is_stream) return {begin + kColumnsAhead, padded, false};
        return {end, end_of(end), false};
    }
};

// ---- weights ------------------------------------------------------------------------------------

// Which two panels.
struct PanelPlace {
    int64_t expert;  // -1: none
    int64_t index;
};

// Two panels of an expert's weights. Row j of the 32 is row row[j] of the weights before they were
// prepared, or -1: none; only filled in where rows or scales are read by it.
struct PanelPair {
    PanelPlace place;
    PanelPlace next;  // that are read behind these
    int64_t row[pairs::kSums];
    bool in_turns;  // gates and ups, else all gates are in the first panel
};

inline PanelPair panel_pair(const GroupedGemmArgs& args, PanelPlace place, PanelPlace next) {
    PanelPair out = {place, next, {}, false};
    const int64_t index = place.index;
    const int64_t num_rows = args.weight.rows;
    const bool has_gates = args.activation != Activation::kNone;
    out.in_turns = has_gates && args.weight.layout == WeightLayout::kPairs;
    if (args.weight.layout == WeightLayout::kPairs && args.weight.scale == nullptr) return out;
    for (int64_t j = 0; j < pairs::kSums; ++j) {
        if (!has_gates) {
            out.row[j] = index * pairs::kSums + j;
        } else {
            const int part = static_cast<int>(out.in_turns ? j % 2 : j / pairs::kPanelWeights);
            const int64_t within = out.in_turns ? j / 2 : j % pairs::kPanelWeights;
            const int64_t n = index * pairs::kPanelWeights + within;
            out.row[j] =
                n < num_rows / 2 ? weight_row(args.activation, num_rows, n, part) : num_rows;
        }
        if (out.row[j] >= num_rows) out.row[j] = -1;
    }
    return out;
}

// Reads chunks of panels as pairs.
struct PanelReader {
    const ExpertWeights& weight;
    const PanelPair& panels;
    const Scratch& scratch;
    int bits;  // of a weight
    // Of the layout kPairs: the panels and the next two.
    const char* packed[pairs::kPanels];
    const char* packed_next[pairs::kPanels];
    // Of rows: bytes from these weights to the next two panels' of the same columns.
    int64_t rows_behind;

    PanelReader(const GroupedGemmArgs& args, const PanelPair& pair, const Scratch& memory)
        : weight(args.weight), panels(pair), scratch(memory) {
        bits = weight.format == WeightFormat::kMxFp4 ? 4 : has_codes() ? 8 : 16;
        if (weight.layout == WeightLayout::kPairs) {
            for (int p = 0; p < pairs::kPanels; ++p) {
                packed[p] = packed_panel(panels.place, p);
                packed_next[p] = packed_panel(has_next() ? panels.next : panels.place, p);
            }
        } else {
            const bool in_halves = args.activation == Activation::kSwiglu;
            rows_behind = weight.row_bytes * (in_halves ? pairs::kPanelWeights : pairs::kSums);
        }
    }

    bool has_codes() const { return weight.scale != nullptr; }
    int64_t bytes_of(int64_t columns) const { return columns * bits / 8; }

    bool has_next() const { return panels.next.expert >= 0; }
    const char* packed_panel(PanelPlace place, int p) const {
        const int64_t count = moe::ceil_div(weight.rows, pairs::kPanelWeights);
        const int64_t panel = moe::smaller(2 * place.index + p, count - 1);
        return static_cast<const char*>(weight.data) + (place.expert * count + panel) *
                                                           pairs::kPanelWeights *
                                                           bytes_of(padded_pair_columns(weight));
    }

    // Columns begin .. end - 1; `next` are fetched meanwhile.
    void read(int64_t begin, int64_t end, ColumnRange next, pairs::PairChunk& chunk) const {
        chunk.pairs = static_cast<int>((end - begin) / 2);
        const bool is_packed = weight.layout == WeightLayout::kPairs;
        const int64_t row_bytes = is_packed ? pairs::kPanelWeights : 1;
        if (is_packed && (!next.is_next || has_next())) {
            for (int p = 0; p < pairs::kPanels; ++p) {
                const char* panel = next.is_next ? packed_next[p] : packed[p];
                chunk.next[p] = panel + row_bytes * bytes_of(next.begin);
            }
            chunk.next_bytes = row_bytes * bytes_of(next.end - next.begin);
        }
        const int64_t fetch = bytes_of(next.begin - begin) + (next.is_next ? rows_behind : 0);
        for (int p = 0; p < pairs::kPanels; ++p) {
            uint32_t* own = scratch.pairs + p * (kPairChunk / 2) * pairs::kPanelWeights;
            const uint32_t* words = nullptr;
            if (is_packed) {
                words = reinterpret_cast<const uint32_t*>(packed[p] + row_bytes * bytes_of(begin));
            } else {
                uint32_t* packed_here = has_codes() ? scratch.words : own;
                pack(p, begin, end, fetch, packed_here);
                words = packed_here;
            }
            chunk.panel[p] = words;
            if (has_codes()) {
                unpack(words, static_cast<int>(bytes_of(end - begin) / 4), chunk.next[p], own);
                chunk.panel[p] = own;
            }
        }
        if (weight.format == WeightFormat::kMxFp4) chunk.next_bytes = 0;  // unpack() fetches
    }

    void pack(int p, int64_t begin, int64_t end, int64_t fetch, uint32_t* out) const {
        const char* rows[pairs::kPanelRows];
        for (int r = 0; r < pairs::kPanelRows; ++r) {
            const int64_t row = panels.row[p * pairs::kPanelRows + r];
            const int64_t at = (panels.place.expert * weight.rows + row) * weight.row_bytes;
            rows[r] =
                row < 0 ? nullptr : static_cast<const char*>(weight.data) + at + bytes_of(begin);
        }
        pairs::pack_rows(rows, weight.row_bytes - bytes_of(begin),
                         static_cast<int>(bytes_of(end - begin) / 4), fetch, out);
    }

    // mxfp4 fetches the words from `next` on, if it is known.
    void unpack(const uint32_t* words, int count, const char* next, uint32_t* out) const {
        const auto bytes = [&](auto codes) {
            using Codes = decltype(codes);
#if defined(__AVX512F__)
            if (cpu::has_byte_lookups()) return Codes::look_up(words, count, out);
#endif
            Codes::unpack(words, count, out);
        };
        switch (weight.format) {
            case WeightFormat::kFp8E4M3:
                return bytes(pairs::ByteCodes<Fp8E4M3>{});
            case WeightFormat::kFp8E4M3Fnuz:
                return bytes(pairs::ByteCodes<Fp8E4M3Fnuz>{});
            default:
                if (next == nullptr) next = reinterpret_cast<const char*>(words);
                return pairs::HalfByteCodes::unpack(words, count, next, out);
        }
    }

    // The scales of the rows for the blocks first .. first + count - 1 of columns: [count][kSums].
    void read_scales(int64_t first, int64_t count, float* out) const {
        for (int j = 0; j < pairs::kSums; ++j) {
            const int64_t row = panels.row[j] < 0 ? 0 : panels.row[j];
            const int64_t scales = first_scale(weight, panels.place.expert, row);
            for (int64_t b = 0; b < count; ++b) {
                out[b * pairs::kSums + j] = scale_at(weight, scales, first + b);
            }
        }
    }
};

}  // namespace dspark::DSPARK_ISA::experts
