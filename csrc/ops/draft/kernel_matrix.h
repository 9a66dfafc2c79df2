// The logits of one draft by matrix units: w2 in bfloat16 or float16 and u rounded to its type,
// products summed in float32 (docs/numerics.md section 10). Rows of w2 go from device memory
// straight into the registers they are multiplied from, each once for all requests of a group.
#pragma once

#include "device/matrix.h"
#include "ops/draft/kernel_step.h"

namespace dspark::DSPARK_ISA::draft {

constexpr int kGroupTile = 16;                               // requests of a tile of the product
constexpr int kOwnRows = kPassRows * kGroupTile / kThreads;  // logits of a thread, of one request
static_assert(kOwnRows == 8, "16 bytes of 16-bit logits");
template <int W>
constexpr int kSumStride = MatrixProduct<W, BFloat16>::sum_words(kPassRows);

template <int W>
struct MatrixShared {
    SharedArray<uint32_t, dspark::draft::kMatrixInputWords> inputs;  // u, a tile after the other
    SharedArray<float, kGroupTile * kSumStride<W>> sums;  // of a tile: [request, row of the pass]
};

template <int W>
struct MatrixStepShared {
    TicketShared ticket;
    union {
        ProducerShared<W> producer;
        ProductShared<W> products;
        MatrixShared<W> matrix;
        FillShared fill;
    };
};

// ---- inputs -------------------------------------------------------------------------------------

template <class Half>
constexpr FloatType kTypeOf =
    std::is_same_v<Half, BFloat16> ? FloatType::kBFloat16 : FloatType::kFloat16;

template <class Half>
DSPARK_DEVICE Bytes16 pack_halves(const float (&x)[8]) {
    Bytes16 out;
    for (int w = 0; w < 4; ++w) {
        Half low, high;
        narrow(x[2 * w], &low);
        narrow(x[2 * w + 1], &high);
        out.word[w] = low.bits | static_cast<uint32_t>(high.bits) << 16;
    }
    return out;
}

// Eight entries in float32; of 16-bit types `second` holds nothing.
DSPARK_DEVICE void unpack_entries(FloatType type, const Bytes16& first, const Bytes16& second,
                                  float (&x)[8]) {
    for (int e = 0; e < 8; ++e) {
        x[e] = type == FloatType::kBFloat16 ? piece_entry(first, e, static_cast<BFloat16*>(nullptr))
               : type == FloatType::kFloat16
                   ? piece_entry(first, e, static_cast<Float16*>(nullptr))
                   : bit_cast<float>(e < 4 ? first.word[e] : second.word[e - 4]);
    }
}

// Eight entries of u in the type of w2, from entry j on.
template <class Half>
DSPARK_DEVICE Bytes16 half_inputs(const MarkovStep& step, int64_t b, int j) {
    const InputRow row = input_row(step, b);
    const int rank = static_cast<int>(step.args.rank);
    const Bytes16 first = load_piece(row.data, row.type, j, rank, row.reading);
    if (row.type == kTypeOf<Half>) return first;
    Bytes16 second = {};
    if (row.type == FloatType::kFloat32) {
        second = load_piece(row.data, row.type, j + 4, rank, row.reading);
    }
    float x[8];
    unpack_entries(row.type, first, second, x);
    return pack_halves<Half>(x);
}

template <int W, class Half>
DSPARK_DEVICE void stage_half_inputs(const MarkovStep& step, int64_t first_request,
                                     MatrixShared<W>& shared) {
    using Product = MatrixProduct<W, Half>;
    const int rank = static_cast<int>(step.args.rank);
    const int pieces = (rank + Product::kDepth - 1) / Product::kDepth * (Product::kDepth / 8);
    for (int i = thread_idx(); i < step.matrix.tiles * 8 * pieces; i += kThreads) {
        const int column = i / pieces % 8;
        const int tile = i / pieces / 8;
        const int j = i % pieces * 8;
        const int64_t b = first_request + tile * kGroupTile + column;
        const Bytes16 low = half_inputs<Half>(step, b, j);
        const Bytes16 high = half_inputs<Half>(step, b + 8, j);
        Product::store_columns(low, high, tile * Product::column_words(rank), column, j, rank,
                               shared.inputs);
    }
}

// ---- products -----------------------------------------------------------------------------------

// What a warp multiplies at a time: its rows of a pass over a depth of kSteps * 32.
template <int W, class Half>
struct RowSlice {
    using Product = MatrixProduct<W, Half>;
    static constexpr int kSteps = 8;
    static constexpr int kDepth = kSteps * Product::kDepth;
    static constexpr int kTiles = kPassRows / kWarps<W> / Product::kRows;

    typename Product::Rows rows[kTiles][kSteps];

    DSPARK_DEVICE void load(const HalfMatrix<Half>& w2, int64_t pass_row, int first, int step) {
        for (int t = 0; t < kTiles; ++t) {
            rows[t][step] =
                Product::load_rows(w2, pass_row + warp_row(t), first + step * Product::kDepth);
        }
    }
    DSPARK_DEVICE static int warp_row(int tile) {
        return (warp_index<W>() * kTiles + tile) * Product::kRows;
    }
};

template <int W, class Half, int kTiles>
struct PassSums {
    using Product = MatrixProduct<W, Half>;
    using Slice = RowSlice<W, Half>;

    typename Product::Sums of[Slice::kTiles][kTiles];

    // Adds the products of a slice, which begins with depth `first`. Its registers take the slice
    // from next_first on of the pass next_row, so that as much as can be is always on its way.
    DSPARK_DEVICE void add(Slice& slice, int first, const MatrixShared<W>& shared,
                           const HalfMatrix<Half>& w2, int64_t next_row, int next_first) {
        const int words = Product::column_words(w2.depth);
        for (int s = 0; s < Slice::kSteps; ++s) {
            const int j = first + s * Product::kDepth;
            if (j < w2.depth) {
                typename Product::Columns columns[kTiles];
                for (int c = 0; c < kTiles; ++c) {
                    columns[c] = Product::load_columns(shared.inputs, c * words, j, w2.depth);
                }
                for (int t = 0; t < Slice::kTiles; ++t) {
                    for (int c = 0; c < kTiles; ++c) {
                        Product::multiply(slice.rows[t][s], columns[c], of[t][c]);
                    }
                }
            }
            slice.load(w2, next_row, next_first, s);
        }
    }
    DSPARK_DEVICE void store(int tile, MatrixShared<W>& shared) const {
        for (int t = 0; t < Slice::kTiles; ++t) {
            Product::store_sums(of[t][tile], Slice::warp_row(t), kSumStride<W>, shared.sums);
        }
    }
};

// ---- logits -------------------------------------------------------------------------------------

// The part of the logits that a job has.
struct MatrixJob {
    const MarkovStep& step;
    int64_t first_request;
    int64_t begin_row;
    int64_t end_row;

    DSPARK_DEVICE MatrixJob(const MarkovStep& of, int64_t job)
        : step(of),
          first_request(job % of.matrix.groups * of.matrix.group_size),
          begin_row(job / of.matrix.groups * of.matrix.block_rows) {
        const int64_t rest = of.args.draft_vocab - begin_row;
        end_row = begin_row + (rest < of.matrix.block_rows ? rest : of.matrix.block_rows);
    }
};

// kOwnRows logits of one request: what a thread has of the sums of a tile of the group.
struct OwnLogits {
    const MarkovArgs& args;
    int64_t row;   // the first
    int64_t from;  // its place in the base logits
    int64_t to;    // and in the logits, without d2t
    int count;     // 0: none
    bool is_wide;  // all there, side by side and aligned in both

    DSPARK_DEVICE OwnLogits(const MatrixJob& job, int tile, int64_t pass_row)
        : args(job.step.args), row(pass_row + own_row()) {
        const int64_t b = job.first_request + tile * kGroupTile + own_request();
        from = (b * args.num_positions + job.step.k) * args.draft_vocab + row;
        to = (b * args.num_drafts + job.step.k) * args.vocab + row;
        const int64_t rest = job.end_row - row;
        count = b >= args.batch || rest <= 0 ? 0
                : rest < kOwnRows            ? static_cast<int>(rest)
                                             : kOwnRows;
        const uint64_t places = (bit_cast<uint64_t>(args.base_logits) + bytes(from)) |
                                (bit_cast<uint64_t>(args.logits) + bytes(to));
        is_wide = count == kOwnRows && args.d2t == nullptr && places % 16 == 0;
    }
    DSPARK_DEVICE static int own_request() { return thread_idx() / (kPassRows / kOwnRows); }
    DSPARK_DEVICE static int own_row() { return thread_idx() % (kPassRows / kOwnRows) * kOwnRows; }
    DSPARK_DEVICE int64_t bytes(int64_t entries) const {
        return entries * (args.logits_type == FloatType::kFloat32 ? 4 : 2);
    }

    // The base logits if they are wide, on their way early; of float32 the first half, the other
    // is in the same sector.
    DSPARK_DEVICE Bytes16 load_base() const {
        return is_wide ? load16_once(args.base_logits, bytes(from)) : Bytes16{};
    }
    // Adds the sums to them.
    template <int W>
    DSPARK_DEVICE void write(const Bytes16& base, const MatrixShared<W>& shared) const {
        const int at = own_request() * kSumStride<W> + own_row();
        if (is_wide) return write_wide(base, shared, at);
        for (int e = 0; e < count; ++e) {
            const float x = read_float(args.logits_type, args.base_logits, from + e);
            const int64_t id = target_id(args, row + e);
            if (id < 0) continue;
            store_float(args.logits_type, args.logits, to - row + id, x + shared.sums[at + e]);
        }
    }

  private:
    template <int W>
    DSPARK_DEVICE void write_wide(const Bytes16& base, const MatrixShared<W>& shared,
                                  int at) const {
        Bytes16 second = {};
        if (args.logits_type == FloatType::kFloat32) {
            second = load16_once(args.base_logits, bytes(from) + 16);
        }
        float x[8], sum[8];
        unpack_entries(args.logits_type, base, second, x);
        shared.sums.load4(at, sum[0], sum[1], sum[2], sum[3]);
        shared.sums.load4(at + 4, sum[4], sum[5], sum[6], sum[7]);
        for (int e = 0; e < 8; ++e) x[e] += sum[e];
        const int64_t offset = bytes(to);
        if (args.logits_type == FloatType::kBFloat16) {
            store16(args.logits, offset, pack_halves<BFloat16>(x));
        } else if (args.logits_type == FloatType::kFloat16) {
            store16(args.logits, offset, pack_halves<Float16>(x));
        } else {
            for (int half = 0; half < 2; ++half) {
                Bytes16 words;
                for (int w = 0; w < 4; ++w) words.word[w] = bit_cast<uint32_t>(x[4 * half + w]);
                store16(args.logits, offset + 16 * half, words);
            }
        }
    }
};

// Base and sums of a pass together, from tile kTile on. Tiles are constants, so that all of it
// stays in registers.
template <int kTile, int W, class Sums, int kTiles>
DSPARK_DEVICE void finish_pass(const MatrixJob& job, int64_t pass_row, const Sums& sums,
                               const Bytes16 (&base)[kTiles], MatrixShared<W>& shared) {
    if constexpr (kTile < kTiles) {
        sync_block();  // the sums before have been used
        sums.store(kTile, shared);
        sync_block();
        OwnLogits(job, kTile, pass_row).write(base[kTile], shared);
        finish_pass<kTile + 1>(job, pass_row, sums, base, shared);
    }
}

// The passes of a job whose group has kTiles tiles. `slice`: the first.
template <int W, class Half, int kTiles>
DSPARK_DEVICE void multiply_passes(const MatrixJob& job, const HalfMatrix<Half>& w2,
                                   RowSlice<W, Half>& slice, MatrixShared<W>& shared) {
    using Slice = RowSlice<W, Half>;
    for (int64_t row = job.begin_row; row < job.end_row; row += kPassRows) {
        Bytes16 base[kTiles];
        for (int tile = 0; tile < kTiles; ++tile) {
            base[tile] = OwnLogits(job, tile, row).load_base();
        }
        PassSums<W, Half, kTiles> sums = {};
        for (int first = 0; first < w2.depth; first += Slice::kDepth) {
            const bool is_last = first + Slice::kDepth >= w2.depth;
            sums.add(slice, first, shared, w2, is_last ? row + kPassRows : row,
                     is_last ? 0 : first + Slice::kDepth);
        }
        finish_pass<0>(job, row, sums, base, shared);
    }
}

// Job `number` of the logits of draft k.
template <int W, class Half>
DSPARK_DEVICE void block_matrix_logits(const MarkovStep& step, int64_t number,
                                       MatrixShared<W>& shared) {
    const MarkovArgs& args = step.args;
    const MatrixJob job(step, number);
    const HalfMatrix<Half> w2 = {global_cast<const Half>(args.w2), job.end_row, args.rank,
                                 static_cast<int>(args.rank)};
    RowSlice<W, Half> slice;  // on its way while the inputs are not there yet
    for (int s = 0; s < slice.kSteps; ++s) slice.load(w2, job.begin_row, 0, s);
    if (step.is_ordered) {
        const int64_t left = args.batch - job.first_request;
        const int size = step.matrix.group_size;
        block_await(step.scratch.inputs_ready + job.first_request,
                    left < size ? static_cast<int>(left) : size, static_cast<uint32_t>(step.k + 1));
    }
    stage_half_inputs<W, Half>(step, job.first_request, shared);
    sync_block();
    switch (step.matrix.tiles) {
        case 1:
            return multiply_passes<W, Half, 1>(job, w2, slice, shared);
        case 2:
            return multiply_passes<W, Half, 2>(job, w2, slice, shared);
        default:
            multiply_passes<W, Half, 4>(job, w2, slice, shared);
    }
}

// By matrix units where there are some, else in lanes.
template <int W, class Half>
DSPARK_DEVICE void block_any_logits(const MarkovStep& step, int64_t job,
                                    MatrixStepShared<W>& shared) {
    if constexpr (kHasMatrixUnit<W>) {
        block_matrix_logits<W, Half>(step, job, shared.matrix);
    } else {
        using Products = ExactProducts<W, 8, false>;
        for (int64_t j = job; j < step.lane_jobs; j += step.logits_jobs) {
            block_logits<W, Products, false>(step, j, shared.products);
            sync_block();  // or the next inputs overwrite rows in use
        }
    }
}

// A step whose logits come from matrix units.
template <int W, class Half>
DSPARK_KERNEL(kThreads, 1)
void matrix_step_kernel(MarkovStep step) {
    check_warp_size<W>();
    DSPARK_SHARED(MatrixStepShared<W>, shared);
    block_step<W>(step, shared, [&](int64_t job) { block_any_logits<W, Half>(step, job, shared); });
}

}  // namespace dspark::DSPARK_ISA::draft
