// Matrix instructions, from the register layouts that their makers publish.
#include "backends/simt/machine.h"
#include "device/dtype.h"
#include "device/formats.h"
#include "device/narrow.h"

namespace dspark::emulator {
namespace {

// Added to the type of the operands in the argument of a warp operation.
constexpr int kWide = 8;
constexpr int kScaled = 16;  // with e2m1 on the right; and one more with e4m3

constexpr int kDepth = 16;
constexpr int kMaxLines = 32;

struct Matrices {
    float left[kMaxLines][kDepth];
    float right[kMaxLines][kDepth];
    float sums[kMaxLines][kMaxLines];
};

// Element i of a lane's registers, two to a word.
float element(const uint32_t* words, int i, FloatType type) {
    const uint16_t bits = static_cast<uint16_t>(words[i / 2] >> (16 * (i % 2)));
    return type == FloatType::kBFloat16 ? simt::to_float(BFloat16{bits})
                                        : simt::to_float(Float16{bits});
}

// mma.m16n8k16, "Parallel Thread Execution ISA", section on its matrix fragments.
struct LayoutOf32 {
    static constexpr int kLeft = 16;
    static constexpr int kRight = 8;
    static constexpr int kLeftElements = 8;
    static constexpr int kRightElements = 4;
    static constexpr int kSums = 4;

    static int group(int lane) { return lane >> 2; }
    static int member(int lane) { return lane % 4; }
    static int left(int lane, int i) {
        return (0 <= i && i < 2) || (4 <= i && i < 6) ? group(lane) : group(lane) + 8;
    }
    static int left_depth(int lane, int i) {
        return i < 4 ? member(lane) * 2 + (i & 1) : member(lane) * 2 + (i & 1) + 8;
    }
    static int right(int lane, int) { return group(lane); }
    static int right_depth(int lane, int i) {
        return i < 2 ? member(lane) * 2 + (i & 1) : member(lane) * 2 + (i & 1) + 8;
    }
    static int sum_left(int lane, int i) { return i < 2 ? group(lane) : group(lane) + 8; }
    static int sum_right(int lane, int i) { return member(lane) * 2 + (i & 1); }
};

// v_mfma_f32_16x16x16, as AMD's matrix instruction calculator gives it: A[i][k] on the left,
// B[k][j] on the right, D[i][j].
struct LayoutOf64 {
    static constexpr int kLeft = 16;
    static constexpr int kRight = 16;
    static constexpr int kLeftElements = 4;
    static constexpr int kRightElements = 4;
    static constexpr int kSums = 4;

    static int left(int lane, int) { return lane % 16; }
    static int left_depth(int lane, int i) { return 4 * (lane / 16) + i; }
    static int right(int lane, int) { return lane % 16; }
    static int right_depth(int lane, int i) { return 4 * (lane / 16) + i; }
    static int sum_left(int lane, int i) { return 4 * (lane / 16) + i; }
    static int sum_right(int lane, int) { return lane % 16; }
};

// v_mfma_f32_32x32x8 of the same source, twice: elements 4 .. 7 are the operands of the second.
struct WideLayout {
    static constexpr int kLeft = 32;
    static constexpr int kRight = 32;
    static constexpr int kLeftElements = 8;
    static constexpr int kRightElements = 8;
    static constexpr int kSums = 16;

    static int left(int lane, int) { return lane % 32; }
    static int left_depth(int lane, int i) { return 8 * (i / 4) + 4 * (lane / 32) + i % 4; }
    static int right(int lane, int) { return lane % 32; }
    static int right_depth(int lane, int i) { return 8 * (i / 4) + 4 * (lane / 32) + i % 4; }
    static int sum_left(int lane, int i) { return 8 * (i / 4) + 4 * (lane / 32) + i % 4; }
    static int sum_right(int lane, int) { return lane % 32; }
};

template <class Layout>
void gather(const MatrixRegisters& registers, FloatType type, int lane, Matrices& m) {
    for (int i = 0; i < Layout::kLeftElements; ++i) {
        m.left[Layout::left(lane, i)][Layout::left_depth(lane, i)] =
            element(registers.left, i, type);
    }
    for (int i = 0; i < Layout::kRightElements; ++i) {
        m.right[Layout::right(lane, i)][Layout::right_depth(lane, i)] =
            element(registers.right, i, type);
    }
    for (int i = 0; i < Layout::kSums; ++i) {
        m.sums[Layout::sum_left(lane, i)][Layout::sum_right(lane, i)] = registers.sums[i];
    }
}

template <class Layout>
void multiply(const Thread* lanes, int warp_size) {
    const auto type = static_cast<FloatType>(lanes[0].argument % kWide);
    Matrices m;
    for (int lane = 0; lane < warp_size; ++lane) {
        gather<Layout>(*lanes[lane].registers, type, lane, m);
    }
    for (int i = 0; i < Layout::kLeft; ++i) {
        for (int j = 0; j < Layout::kRight; ++j) {
            for (int k = 0; k < kDepth; ++k) {
                m.sums[i][j] += m.left[i][k] * m.right[j][k];
            }
        }
    }
    for (int lane = 0; lane < warp_size; ++lane) {
        for (int i = 0; i < Layout::kSums; ++i) {
            lanes[lane].registers->sums[i] =
                m.sums[Layout::sum_left(lane, i)][Layout::sum_right(lane, i)];
        }
    }
}

// v_mfma_scale_f32_32x32x64_f8f6f4 with e4m3 on the left and e2m1 or e4m3 on the right, as the same
// source gives it: of codes of 8 bits a lane holds two runs of 16 of the depth, of those of 4 bits
// one of 32; its scales are those of the depths 32 (lane / 32) and on.
struct ScaledSide {
    float code[32][64];
    double scale[32][2];

    // What a lane has: codes, and behind them a scale.
    void gather(const uint32_t* words, bool is_fp4, int lane) {
        const int line = lane % 32, half = lane / 32;
        for (int i = 0; i < 32; ++i) {
            const uint32_t eight = words[i / 4] >> 8 * (i % 4);
            const uint32_t four = words[i / 8] >> 4 * (i % 8) & 15u;
            if (is_fp4) {
                code[line][32 * half + i] =
                    simt::to_float(simt::Fp4E2M1{static_cast<uint8_t>(four)});
            } else {
                code[line][i / 16 * 32 + 16 * half + i % 16] =
                    simt::to_float(simt::Fp8E4M3{static_cast<uint8_t>(eight)});
            }
        }
        scale[line][half] = simt::to_float(simt::E8M0{static_cast<uint8_t>(words[is_fp4 ? 4 : 8])});
    }
};

void multiply_scaled(const Thread* lanes) {
    ScaledSide left, right;
    const bool is_right_fp4 = lanes[0].argument == kScaled;
    for (int lane = 0; lane < 64; ++lane) {
        left.gather(lanes[lane].registers->left, false, lane);
        right.gather(lanes[lane].registers->right, is_right_fp4, lane);
    }
    for (int lane = 0; lane < 64; ++lane) {
        for (int i = 0; i < 16; ++i) {
            const int a = WideLayout::sum_left(lane, i), b = WideLayout::sum_right(lane, i);
            float& sum = lanes[lane].registers->sums[i];
            for (int half = 0; half < 2; ++half) {
                float part = 0.0f;
                for (int k = 32 * half; k < 32 * half + 32; ++k)
                    part += left.code[a][k] * right.code[b][k];
                sum += static_cast<float>(part * left.scale[a][half] * right.scale[b][half]);
            }
        }
    }
}

uint16_t product(BFloat16 a, BFloat16 b) {
    BFloat16 out;
    simt::narrow(simt::to_float(a) * simt::to_float(b), &out);
    return out.bits;
}
uint16_t product(Float16 a, Float16 b) {
    Float16 out;
    simt::narrow(simt::to_float(a) * simt::to_float(b), &out);
    return out.bits;
}

template <class Half>
uint32_t products(uint32_t a, uint32_t b) {
    const auto half = [](uint32_t word, int i) {
        return Half{static_cast<uint16_t>(word >> 16 * i)};
    };
    return product(half(a, 0), half(b, 0)) | static_cast<uint32_t>(product(half(a, 1), half(b, 1)))
                                                 << 16;
}

}  // namespace

uint32_t multiply_halves(FloatType type, uint32_t a, uint32_t b) {
    return type == FloatType::kBFloat16 ? products<BFloat16>(a, b) : products<Float16>(a, b);
}

uint32_t narrow_e4m3(float value) {
    simt::Fp8E4M3 code;
    simt::narrow(value, &code);
    return code.bits;
}
float widen_e4m3(uint32_t code) {
    return simt::to_float(simt::Fp8E4M3{static_cast<uint8_t>(code)});
}

void multiply_matrices(const Thread* lanes, int warp_size) {
    if (lanes[0].argument >= kScaled) {
        multiply_scaled(lanes);
    } else if (lanes[0].argument >= kWide) {
        multiply<WideLayout>(lanes, warp_size);
    } else if (warp_size == 32) {
        multiply<LayoutOf32>(lanes, warp_size);
    } else {
        multiply<LayoutOf64>(lanes, warp_size);
    }
}

void matrix_operation(FloatType type, int warp_size, const MatrixRegisters& registers,
                      const char* file, int line) {
    current->registers = &registers;
    warp_operation(Operation::kMatrix, warp_size, 0, static_cast<int>(type), file, line);
}

void scaled_matrix_operation(const MatrixRegisters& registers, bool is_right_fp4, const char* file,
                             int line) {
    current->registers = &registers;
    warp_operation(Operation::kMatrix, 64, 0, kScaled + (is_right_fp4 ? 0 : 1), file, line);
}

void wide_matrix_operation(FloatType type, const MatrixRegisters& registers, const char* file,
                           int line) {
    current->registers = &registers;
    warp_operation(Operation::kMatrix, 64, 0, kWide + static_cast<int>(type), file, line);
}

}  // namespace dspark::emulator
