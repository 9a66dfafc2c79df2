// Wide matrix products of csrc/device/matrix_wide.h against plain loops, and the emulator's wide
// and scaled instructions against the published layouts. Only warps of 64 have them; elsewhere the
// cases only say so.
#include "device/formats.h"
#include "matrix_cases.h"

namespace dspark::DSPARK_ISA {
namespace {

// Rows straight from device memory; the two tiles of columns are one.
template <int W, class Half>
DSPARK_KERNEL(kThreads)
void multiply_wide(ProductArgs<Half> args) {
    check_warp_size<W>();
    DSPARK_SHARED(ProductShared<W>, shared);
    using Product = WideProduct<Half>;
    if constexpr (kHasWideMatrixUnit<W>) {
        const HalfMatrix<Half> rows = {args.rows, kRows, kDepth, kDepth};
        stage_columns(HalfMatrix<Half>{args.columns, kColumns, kDepth, kDepth}, shared);
        sync_block();
        const int row = warp_index<W>() * 32;
        typename Product::Sums sums = {};
        for (int j = 0; j < kDepth; j += Product::kDepth) {
            typename Product::Rows a;
            for (int i = 0; i < Product::kPieces; ++i) {
                a.piece[i] = rows.piece(row + Product::piece_row(i), j + Product::piece_depth(i));
            }
            Product::multiply(a, Product::load_columns(shared.columns, 0, j, kDepth), sums);
        }
        for (int i = 0; i < Product::kSums; ++i) {
            const int r = row + Product::sum_row(i), c = Product::sum_column(i);
            if (r < kRows && c < kColumns) args.sums[r * kColumns + c] = sums.of[i / 4][i % 4];
        }
    }
}

struct ScaledArgs {
    Global<const uint32_t> left;    // [64, 8]
    Global<const uint32_t> right;   // [64, kWords]: of fp4 4, of e4m3 8
    Global<const uint32_t> scales;  // [64, 2] left, right: bytes 0 and 2 are those that count
    Global<float> sums;             // [64, 16]
};

template <int W, int kWords>
DSPARK_KERNEL(kThreads)
void one_scaled_instruction(ScaledArgs args) {
    check_warp_size<W>();
    if constexpr (kMayHaveScaledMatrixUnit<W>) {
        if (warp_index<W>() != 0) return;
        uint32_t left[8], right[kWords];
        float sums[4][4];
        for (int w = 0; w < 8; ++w) left[w] = args.left[thread_idx() * 8 + w];
        for (int w = 0; w < kWords; ++w) right[w] = args.right[thread_idx() * kWords + w];
        for (int i = 0; i < 16; ++i) sums[i / 4][i % 4] = args.sums[thread_idx() * 16 + i];
        scaled_matrix_instruction<2>(left, args.scales[thread_idx() * 2], right,
                                     args.scales[thread_idx() * 2 + 1], sums);
        for (int i = 0; i < 16; ++i) args.sums[thread_idx() * 16 + i] = sums[i / 4][i % 4];
    }
}

struct WideArgs {
    Global<const uint32_t> left;   // [64, 4]
    Global<const uint32_t> right;  // [64, 4]
    Global<float> sums;            // [64, 16]
};

template <int W, class Half>
DSPARK_KERNEL(kThreads)
void one_wide_instruction(WideArgs args) {
    check_warp_size<W>();
    if constexpr (kHasWideMatrixUnit<W>) {
        if (warp_index<W>() != 0) return;
        uint32_t left[4], right[4];
        float sums[4][4];
        for (int w = 0; w < 4; ++w) left[w] = args.left[thread_idx() * 4 + w];
        for (int w = 0; w < 4; ++w) right[w] = args.right[thread_idx() * 4 + w];
        for (int i = 0; i < 16; ++i) sums[i / 4][i % 4] = args.sums[thread_idx() * 16 + i];
        wide_matrix_instruction<Half>(left, right, sums);
        for (int i = 0; i < 16; ++i) args.sums[thread_idx() * 16 + i] = sums[i / 4][i % 4];
    }
}

}  // namespace
}  // namespace dspark::DSPARK_ISA

namespace dspark::planted {
namespace {

// The sum in the order that csrc/device/matrix_wide.h and the emulator state: four instructions of
// depth 8 a step.
template <class Half>
float wide_sum(const Half* row, const Half* column) {
    float sum = 0.0f;
    for (int k = 0; k < (kDepth + 31) / 32 * 32; ++k) {
        const int instruction = k / 8 % 4, lane = k % 8 / 4;
        const int j = k / 32 * 32 + 8 * (instruction / 2 * 2 + lane) + instruction % 2 * 4 + k % 4;
        if (j < kDepth) sum += to_float(row[j]) * to_float(column[j]);
    }
    return sum;
}

template <int W, class Half>
Outcome run_wide() {
    return run_product(multiply_wide<W, Half>, kHasWideMatrixUnit<W>, wide_sum<Half>);
}

// Of v_mfma_f32_32x32x8, of which a word of the vocabulary is two: the second takes places 4 .. 7.
Place wide_place(int i, int k) {
    return {32 * (k % 8 / 4) + i, k / 8 * 4 + k % 4};
}
Place wide_sum_place(int i, int j) {
    return {32 * (i % 8 / 4) + j, i / 8 * 4 + i % 4};
}

template <class Half>
Outcome run_wide_instruction(void (*kernel)(WideArgs)) {
    DeviceVector<uint32_t> left("left", 64 * 4, emulator::kReadOnly);
    DeviceVector<uint32_t> right("right", 64 * 4, emulator::kReadOnly);
    DeviceVector<float> sums("sums", 64 * 16);
    float left_matrix[32][16], right_matrix[32][16];
    const auto put = [](uint32_t* words, Place at, float value) {
        words[at.lane * 4 + at.place / 2] |= uint32_t{half_of<Half>(value).bits}
                                             << (16 * (at.place % 2));
    };
    for (int k = 0; k < 16; ++k) {
        for (int i = 0; i < 32; ++i) {
            left_matrix[i][k] = static_cast<float>((i * 7 + k * 11) % 32 - 13);
            right_matrix[i][k] = static_cast<float>((i * 5 + k * 3) % 16 - 7);
            put(left.data(), wide_place(i, k), left_matrix[i][k]);
            put(right.data(), wide_place(i, k), right_matrix[i][k]);
        }
    }
    for (int i = 0; i < 64 * 16; ++i) sums[i] = static_cast<float>(i) / 4.0f;
    const int code = launch("instruction", kernel, {1, 1, 1}, kBlock, nullptr,
                            WideArgs{left.data(), right.data(), sums.data()});
    return {code, all_of(32 * 32, [&](int i) {
                const Place at = wide_sum_place(i / 32, i % 32);
                float wanted = static_cast<float>(at.lane * 16 + at.place) / 4.0f;
                for (int k = 0; k < 16; ++k) {
                    wanted += left_matrix[i / 32][k] * right_matrix[i % 32][k];
                }
                return sums[at.lane * 16 + at.place] == wanted;
            })};
}

// Of v_mfma_scale_f32_32x32x64: the entries of depth k, of a side of e4m3 and of one of e2m1.
Place e4m3_place(int i, int k) {
    return {32 * (k / 16 % 2) + i, k / 32 * 16 + k % 16};
}
Place e2m1_place(int i, int k) {
    return {32 * (k / 32) + i, k % 32};
}

// Codes of -6, -5, ... and of 0, 0.5, ... (e2m1) or -4, -3.5, ... (e4m3) with scales of 2^-2 ..
// 2^4, all of which float32 holds; the bytes of scales that do not count are those of NaN.
template <int W, int kWords>
Outcome run_scaled_instruction(void (*kernel)(ScaledArgs)) {
    DeviceVector<uint32_t> left("left", 64 * 8, emulator::kReadOnly);
    DeviceVector<uint32_t> right("right", 64 * kWords, emulator::kReadOnly);
    DeviceVector<uint32_t> scales("scales", 64 * 2, emulator::kReadOnly);
    DeviceVector<float> sums("sums", 64 * 16);
    float left_matrix[32][64], right_matrix[32][64];
    const auto scale_of = [](int line, int half, int side) { return (line + 3 * half + side) % 7; };
    for (int i = 0; i < 32; ++i) {
        for (int k = 0; k < 64; ++k) {
            left_matrix[i][k] = static_cast<float>((i * 5 + k * 3) % 13 - 6);
            Fp8E4M3 narrowed;
            narrow(left_matrix[i][k], &narrowed);
            const Place a = e4m3_place(i, k);
            left[a.lane * 8 + a.place / 4] |= uint32_t{narrowed.bits} << 8 * (a.place % 4);
            if (kWords == 4) {
                const uint32_t code = static_cast<uint32_t>((i * 7 + k * 11) % 8);  // not negative
                right_matrix[i][k] = to_float(Fp4E2M1{static_cast<uint8_t>(code)});
                const Place b = e2m1_place(i, k);
                right[b.lane * 4 + b.place / 8] |= code << 4 * (b.place % 8);
            } else {
                right_matrix[i][k] = static_cast<float>((i * 7 + k * 11) % 17 - 8) / 2.0f;
                narrow(right_matrix[i][k], &narrowed);
                const Place b = e4m3_place(i, k);
                right[b.lane * 8 + b.place / 4] |= uint32_t{narrowed.bits} << 8 * (b.place % 4);
            }
        }
    }
    for (int lane = 0; lane < 64; ++lane) {
        const int of_left = 125 + scale_of(lane % 32, lane / 32, 0);
        const int of_right = 125 + scale_of(lane % 32, lane / 32, 1);
        scales[lane * 2] = 0xFFFFFF00u | static_cast<uint32_t>(of_left);
        scales[lane * 2 + 1] = 0xFF00FFFFu | static_cast<uint32_t>(of_right) << 16;
    }
    for (int i = 0; i < 64 * 16; ++i) sums[i] = static_cast<float>(i) / 4.0f;
    const ScaledArgs args = {left.data(), right.data(), scales.data(), sums.data()};
    const int code = launch("instruction", kernel, {1, 1, 1}, kBlock, nullptr, args);
    if (!kMayHaveScaledMatrixUnit<W>) return {code, true};
    return {code, all_of(32 * 32, [&](int entry) {
                const int i = entry / 32, j = entry % 32;
                const Place at = wide_sum_place(i, j);
                float wanted = static_cast<float>(at.lane * 16 + at.place) / 4.0f;
                for (int k = 0; k < 64; ++k) {
                    const int exponent = scale_of(i, k / 32, 0) + scale_of(j, k / 32, 1) - 4;
                    wanted += std::ldexp(left_matrix[i][k] * right_matrix[j][k], exponent);
                }
                return sums[at.lane * 16 + at.place] == wanted;
            })};
}

template <int W, class Half>
Outcome run_wide_instruction_if() {
    if constexpr (kHasWideMatrixUnit<W>) {
        return run_wide_instruction<Half>(one_wide_instruction<W, Half>);
    }
    return {0, W != 64};
}

DSPARK_MATRIX(ScaledFp4Word, "matrix_scaled_layout_fp4",
              (run_scaled_instruction<W, 4>(one_scaled_instruction<W, 4>)))
DSPARK_MATRIX(ScaledFp8Word, "matrix_scaled_layout_fp8",
              (run_scaled_instruction<W, 8>(one_scaled_instruction<W, 8>)))
DSPARK_MATRIX(WideBrain, "matrix_wide_bfloat16", (run_wide<W, BFloat16>()))
DSPARK_MATRIX(WideHalf, "matrix_wide_float16", (run_wide<W, Float16>()))
DSPARK_MATRIX(WideBrainWord, "matrix_wide_layout_bfloat16",
              (run_wide_instruction_if<W, BFloat16>()))
DSPARK_MATRIX(WideHalfWord, "matrix_wide_layout_float16", (run_wide_instruction_if<W, Float16>()))

}  // namespace

std::vector<Case> wide_matrix_cases() {
    return {make_case<WideBrain>(),    make_case<WideHalf>(),      make_case<WideBrainWord>(),
            make_case<WideHalfWord>(), make_case<ScaledFp4Word>(), make_case<ScaledFp8Word>()};
}

}  // namespace dspark::planted
