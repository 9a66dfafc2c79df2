// Matrix products of csrc/device/matrix.h against plain loops, and the emulator's matrix
// instruction against the published layouts. Warps of 4 have no matrix unit; there the cases only
// say so.
#include "matrix_cases.h"

namespace dspark::DSPARK_ISA {
namespace {

// Rows straight from device memory or through shared memory; sums to device memory straight from
// the lanes or through shared memory.
template <int W, class Half, bool kShared, int kLanesIn>
DSPARK_KERNEL(kThreads)
void multiply_matrices(ProductArgs<Half> args) {
    check_warp_size<W>();
    DSPARK_SHARED(ProductShared<W>, shared);
    using Product = MatrixProduct<W, Half>;
    if constexpr (kHasMatrixUnit<W>) {
        const HalfMatrix<Half> rows = {args.rows, kRows, kDepth, kDepth};
        stage_rows(rows, shared);
        stage_columns(HalfMatrix<Half>{args.columns, kColumns, kDepth, kDepth}, shared);
        sync_block();
        if (lane_index<W>() >= kLanesIn) return;
        for (int tile = 0; tile < kColumnTiles; ++tile) {
            for (int row = warp_index<W>() * 16; row < kRowLines; row += kWarps<W> * 16) {
                typename Product::Sums sums = {};
                for (int j = 0; j < kDepth; j += Product::kDepth) {
                    const auto a = kShared ? Product::load_rows(shared.rows, row,
                                                                Product::row_words(kDepth), j)
                                           : Product::load_rows(rows, row, j);
                    const auto b = Product::load_columns(
                        shared.columns, tile * Product::column_words(kDepth), j, kDepth);
                    Product::multiply(a, b, sums);
                }
                if (kShared) {
                    Product::store_sums(sums, row, Product::sum_words(kRowLines), shared.sums);
                }
                for (int i = 0; i < Product::kSums && !kShared; ++i) {
                    const int r = row + Product::sum_row(i);
                    const int c = tile * 16 + Product::sum_column(i);
                    if (r < kRows && c < kColumns) {
                        args.sums[r * kColumns + c] = sums.of[i / 4][i % 4];
                    }
                }
            }
            if (!kShared) continue;
            sync_block();
            for (int i = thread_idx(); i < kRowLines * 16; i += kThreads) {
                const int r = i % kRowLines, c = tile * 16 + i / kRowLines;
                const float sum = shared.sums[i / kRowLines * Product::sum_words(kRowLines) + r];
                if (r < kRows && c < kColumns) args.sums[r * kColumns + c] = sum;
            }
            sync_block();
        }
    }
}

template <int W>
struct InstructionArgs {
    Global<const uint32_t> left;   // [W, kMatrixLeftWords]
    Global<const uint32_t> right;  // [W, 2]
    Global<float> sums;            // [W, 4]
};

// One instruction by the first warp.
template <int W, class Half>
DSPARK_KERNEL(kThreads)
void one_instruction(InstructionArgs<W> args) {
    check_warp_size<W>();
    if constexpr (kHasMatrixUnit<W>) {
        if (warp_index<W>() != 0) return;
        constexpr int kWords = kMatrixLeftWords<W>;
        uint32_t left[kWords], right[2];
        float sums[4];
        for (int w = 0; w < kWords; ++w) left[w] = args.left[thread_idx() * kWords + w];
        for (int w = 0; w < 2; ++w) right[w] = args.right[thread_idx() * 2 + w];
        for (int i = 0; i < 4; ++i) sums[i] = args.sums[thread_idx() * 4 + i];
        matrix_instruction<W, Half>(left, right, sums);
        for (int i = 0; i < 4; ++i) args.sums[thread_idx() * 4 + i] = sums[i];
    }
}

}  // namespace
}  // namespace dspark::DSPARK_ISA

namespace dspark::planted {
namespace {

// The sum in the order that csrc/device/matrix.h and the emulator state for warps of W.
template <class Half>
float ordered_sum(const Half* row, const Half* column, int warp_size) {
    float sum = 0.0f;
    for (int step = 0; step < kDepth; step += 32) {
        for (int half = 0; half < 2; ++half) {
            for (int k = 0; k < 16; ++k) {
                // Of the instruction's depth k: the lane that holds it, and where in its piece.
                const int lane = warp_size == 64 ? k / 4 : k % 8 / 2;
                const int within = warp_size == 64 ? k % 4 : k / 8 * 2 + k % 2;
                const int j = step + 8 * lane + 4 * half + within;
                if (j < kDepth) sum += to_float(row[j]) * to_float(column[j]);
            }
        }
    }
    return sum;
}

// The lane that holds an entry, and at which place of its registers: from the tables of the makers,
// read the other way round than the emulator does.
Place left_place(int i, int k, int warp_size) {
    if (warp_size == 64) return {16 * (k / 4) + i, k % 4};
    return {i % 8 * 4 + k % 8 / 2, k / 8 * 4 + i / 8 * 2 + k % 2};
}
Place right_place(int i, int k, int warp_size) {
    if (warp_size == 64) return {16 * (k / 4) + i, k % 4};
    return {i * 4 + k % 8 / 2, k / 8 * 2 + k % 2};
}
Place sum_place(int i, int j, int warp_size) {
    if (warp_size == 64) return {16 * (i / 4) + j, i % 4};
    return {i % 8 * 4 + j / 2, i / 8 * 2 + j % 2};
}

template <int W, class Half>
Outcome run_instruction() {
    constexpr int kWords = kMatrixLeftWords<W>;
    constexpr int kRight = W == 64 ? 16 : 8;
    DeviceVector<uint32_t> left("left", W * kWords, emulator::kReadOnly);
    DeviceVector<uint32_t> right("right", W * 2, emulator::kReadOnly);
    DeviceVector<float> sums("sums", W * 4);
    const auto put = [](uint32_t* words, Place at, int words_per_lane, float value) {
        uint32_t& word = words[at.lane * words_per_lane + at.place / 2];
        word |= uint32_t{half_of<Half>(value).bits} << (16 * (at.place % 2));
    };
    float left_matrix[16][16], right_matrix[16][16];
    for (int k = 0; k < 16; ++k) {
        for (int r = 0; r < 16; ++r) {
            left_matrix[r][k] = static_cast<float>((r * 7 + k * 11) % 32 - 13);
            put(left.data(), left_place(r, k, W), kWords, left_matrix[r][k]);
        }
        for (int c = 0; c < kRight; ++c) {
            right_matrix[c][k] = static_cast<float>((c * 5 + k * 3) % 16 - 7);
            put(right.data(), right_place(c, k, W), 2, right_matrix[c][k]);
        }
    }
    for (int i = 0; i < W * 4; ++i) sums[i] = static_cast<float>(i) / 4.0f;
    const InstructionArgs<W> args = {left.data(), right.data(), sums.data()};
    const int code =
        launch("instruction", one_instruction<W, Half>, {1, 1, 1}, kBlock, nullptr, args);
    return {code, all_of(16 * kRight, [&](int i) {
                const Place at = sum_place(i / kRight, i % kRight, W);
                float wanted = static_cast<float>(at.lane * 4 + at.place) / 4.0f;
                for (int k = 0; k < 16; ++k) {
                    wanted += left_matrix[i / kRight][k] * right_matrix[i % kRight][k];
                }
                return sums[at.lane * 4 + at.place] == wanted;
            })};
}

template <int W, class Half, bool kShared, int kLanesIn>
Outcome run_multiply() {
    return run_product(
        multiply_matrices<W, Half, kShared, kLanesIn>, kHasMatrixUnit<W>,
        [](const Half* row, const Half* column) { return ordered_sum(row, column, W); });
}
// Nothing to run where there is no matrix unit; what tells that there is none is the case's result.
template <int W, class Half>
Outcome run_instruction_if() {
    if constexpr (kHasMatrixUnit<W>) return run_instruction<W, Half>();
    return {0, W == 4};
}

DSPARK_MATRIX(Brain, "matrix_bfloat16", (run_multiply<W, BFloat16, false, W>()))
DSPARK_MATRIX(BrainShared, "matrix_bfloat16_shared", (run_multiply<W, BFloat16, true, W>()))
DSPARK_MATRIX(Half, "matrix_float16", (run_multiply<W, Float16, false, W>()))
DSPARK_MATRIX(HalfShared, "matrix_float16_shared", (run_multiply<W, Float16, true, W>()))
DSPARK_MATRIX(HalfWarp, "matrix_half_warp", (run_multiply<W, BFloat16, false, W / 2>()))
DSPARK_MATRIX(BrainWord, "matrix_layout_bfloat16", (run_instruction_if<W, BFloat16>()))
DSPARK_MATRIX(HalfWord, "matrix_layout_float16", (run_instruction_if<W, Float16>()))

}  // namespace

std::vector<Case> matrix_cases() {
    return {make_case<Brain>(),      make_case<BrainShared>(), make_case<Half>(),
            make_case<HalfShared>(), make_case<HalfWarp>(),    make_case<BrainWord>(),
            make_case<HalfWord>()};
}

}  // namespace dspark::planted
