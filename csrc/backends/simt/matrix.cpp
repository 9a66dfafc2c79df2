// Matrix instructions, from the register layouts that their makers publish.
#include "backends/simt/machine.h"
#include "device/dtype.h"
#include "device/narrow.h"

namespace dspark::emulator {
namespace {

constexpr int kLeft = 16;
constexpr int kDepth = 16;
constexpr int kMaxRight = 16;

struct Matrices {
    float left[kLeft][kDepth];
    float right[kMaxRight][kDepth];
    float sums[kLeft][kMaxRight];
};

// Element i of a lane's registers, two to a word.
float element(const uint32_t* words, int i, FloatType type) {
    const uint16_t bits = static_cast<uint16_t>(words[i / 2] >> (16 * (i % 2)));
    return type == FloatType::kBFloat16 ? simt::to_float(BFloat16{bits})
                                        : simt::to_float(Float16{bits});
}

// mma.m16n8k16, "Parallel Thread Execution ISA", section on its matrix fragments.
struct LayoutOf32 {
    static constexpr int kLeftElements = 8;
    static constexpr int kRight = 8;

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
    static constexpr int kLeftElements = 4;
    static constexpr int kRight = 16;

    static int left(int lane, int) { return lane % 16; }
    static int left_depth(int lane, int i) { return 4 * (lane / 16) + i; }
    static int right(int lane, int) { return lane % 16; }
    static int right_depth(int lane, int i) { return 4 * (lane / 16) + i; }
    static int sum_left(int lane, int i) { return 4 * (lane / 16) + i; }
    static int sum_right(int lane, int) { return lane % 16; }
};

template <class Layout>
void gather(const MatrixRegisters& registers, FloatType type, int lane, Matrices& m) {
    for (int i = 0; i < Layout::kLeftElements; ++i) {
        m.left[Layout::left(lane, i)][Layout::left_depth(lane, i)] =
            element(registers.left, i, type);
    }
    for (int i = 0; i < 4; ++i) {
        m.right[Layout::right(lane, i)][Layout::right_depth(lane, i)] =
            element(registers.right, i, type);
        m.sums[Layout::sum_left(lane, i)][Layout::sum_right(lane, i)] = registers.sums[i];
    }
}

template <class Layout>
void multiply(const Thread* lanes, int warp_size) {
    const auto type = static_cast<FloatType>(lanes[0].argument);
    Matrices m;
    for (int lane = 0; lane < warp_size; ++lane) {
        gather<Layout>(*lanes[lane].registers, type, lane, m);
    }
    for (int i = 0; i < kLeft; ++i) {
        for (int j = 0; j < Layout::kRight; ++j) {
            for (int k = 0; k < kDepth; ++k) {
                m.sums[i][j] += m.left[i][k] * m.right[j][k];
            }
        }
    }
    for (int lane = 0; lane < warp_size; ++lane) {
        for (int i = 0; i < 4; ++i) {
            lanes[lane].registers->sums[i] =
                m.sums[Layout::sum_left(lane, i)][Layout::sum_right(lane, i)];
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

void multiply_matrices(const Thread* lanes, int warp_size) {
    if (warp_size == 32) {
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

}  // namespace dspark::emulator
