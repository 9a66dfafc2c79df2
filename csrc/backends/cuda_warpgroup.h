// Warpgroups for nvcc: bulk copies, mbarriers and wgmma of sm_90a. What each name means is written
// once, at the host emulator (csrc/backends/simt/warpgroup.h). Part of cuda.h.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/float_type.h"

namespace dspark::DSPARK_ISA {

#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
template <int W>
constexpr bool kHasWarpgroups = false;
#else
template <int W>
constexpr bool kHasWarpgroups = W == 32;
#endif

template <int W>
constexpr bool kCanHaveWarpgroups = W == 32;

constexpr int kWarpgroupThreads = 128;

DSPARK_DEVICE uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---- barriers -----------------------------------------------------------------------------------

struct TransferBarrier {
    uint64_t state;
};

// The fence makes it visible to the copies, which see memory by another proxy than threads do.
DSPARK_DEVICE void init_barrier(TransferBarrier& barrier, int arrivals) {
    asm volatile(
        "mbarrier.init.shared::cta.b64 [%0], %1;\n\t"
        "fence.mbarrier_init.release.cluster;\n\t"
        "fence.proxy.async.shared::cta;" ::"r"(shared_address(&barrier)),
        "r"(arrivals)
        : "memory");
}
template <int W>
DSPARK_DEVICE void arrive(TransferBarrier& barrier) {
    __syncwarp();
    if (threadIdx.x % W == 0) {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier))
                     : "memory");
    }
}
DSPARK_DEVICE void arrive_and_expect(TransferBarrier& barrier, int bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
        "r"(bytes)
        : "memory");
}
DSPARK_DEVICE void await_phase(TransferBarrier& barrier, int parity) {
    uint32_t has_ended;
    do {
        asm volatile(
            "{\n\t"
            ".reg .pred p;\n\t"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, p;\n\t"
            "}"
            : "=r"(has_ended)
            : "r"(shared_address(&barrier)), "r"(parity)
            : "memory");
    } while (has_ended == 0);
}
template <class T, int N>
DSPARK_DEVICE void copy_bulk(SharedArray<T, N>& to, int first, Global<const void> from,
                             int64_t byte_offset, int bytes, TransferBarrier& barrier) {
    static_assert(16 % sizeof(T) == 0);
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(&to.element[first])),
        "l"(static_cast<const char*>(from) + byte_offset), "r"(bytes), "r"(shared_address(&barrier))
        : "memory");
}
DSPARK_DEVICE void publish_operands() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- products -----------------------------------------------------------------------------------

// A matrix descriptor without swizzle: address, stride of depths and stride of lines in units of
// 16 bytes, at bits 0, 16 and 32.
struct Operand {
    uint64_t descriptor;
};
template <int N>
DSPARK_DEVICE Operand operand_at(const SharedArray<uint32_t, N>& words, int first, int depth_stride,
                                 int line_stride) {
    const uint32_t address = shared_address(&words.element[first]);
    return {static_cast<uint64_t>((address & 0x3FFFFu) >> 4) |
            static_cast<uint64_t>(depth_stride >> 4) << 16 |
            static_cast<uint64_t>(line_stride >> 4) << 32};
}

DSPARK_DEVICE void begin_products() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
DSPARK_DEVICE void end_batch() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kBatches>
DSPARK_DEVICE void await_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kBatches) : "memory");
}
template <int N>
DSPARK_DEVICE void take_sums(float (&sums)[N]) {
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

#define DSPARK_SUM8(s, i)                                                                       \
    "+f"(s[i]), "+f"(s[i + 1]), "+f"(s[i + 2]), "+f"(s[i + 3]), "+f"(s[i + 4]), "+f"(s[i + 5]), \
        "+f"(s[i + 6]), "+f"(s[i + 7])
#define DSPARK_TEXT8(a, b, c, d, e, f, g, h) \
    "%" #a ", %" #b ", %" #c ", %" #d ", %" #e ", %" #f ", %" #g ", %" #h
#define DSPARK_TEXT_16 DSPARK_TEXT8(0, 1, 2, 3, 4, 5, 6, 7)
#define DSPARK_TEXT_32 DSPARK_TEXT_16 ", " DSPARK_TEXT8(8, 9, 10, 11, 12, 13, 14, 15)
#define DSPARK_TEXT_48 DSPARK_TEXT_32 ", " DSPARK_TEXT8(16, 17, 18, 19, 20, 21, 22, 23)
#define DSPARK_TEXT_64 DSPARK_TEXT_48 ", " DSPARK_TEXT8(24, 25, 26, 27, 28, 29, 30, 31)
#define DSPARK_SUMS_16(s) DSPARK_SUM8(s, 0)
#define DSPARK_SUMS_32(s) DSPARK_SUMS_16(s), DSPARK_SUM8(s, 8)
#define DSPARK_SUMS_48(s) DSPARK_SUMS_32(s), DSPARK_SUM8(s, 16)
#define DSPARK_SUMS_64(s) DSPARK_SUMS_48(s), DSPARK_SUM8(s, 24)

// `of`, `left`, `right` and `flag` are the numbers of the operands behind the sums.
#define DSPARK_WGMMA(columns, type, left, right, flag, transposed)        \
    "{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %" flag                         \
    ", 0;\n\t"                                                            \
    "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type \
    " {" DSPARK_TEXT_##columns "}, " left ", %" right ", p, 1, 1, " transposed ";\n\t}"
#define DSPARK_FROM_SHARED(columns, type, left, right, flag)                    \
    asm volatile(DSPARK_WGMMA(columns, type, "%" left, right, flag, "0, 0")     \
                 : DSPARK_SUMS_##columns(sums)                                  \
                 : "l"(left_operand.descriptor), "l"(right_operand.descriptor), \
                   "r"(static_cast<int>(accumulate)))
#define DSPARK_FROM_WORDS(columns, type, a, b, c, d, right, flag)                                  \
    asm volatile(DSPARK_WGMMA(columns, type, "{%" a ", %" b ", %" c ", %" d "}", right, flag, "0") \
                 : DSPARK_SUMS_##columns(sums)                                                     \
                 : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]),                         \
                   "l"(right_operand.descriptor), "r"(static_cast<int>(accumulate)))

template <class Half, int kColumns>
DSPARK_DEVICE void multiply_group(const Operand& left_operand, const Operand& right_operand,
                                  bool accumulate, float (&sums)[kColumns / 2]) {
    static_assert(kColumns == 16 || kColumns == 32 || kColumns == 48 || kColumns == 64);
    constexpr bool kBrain = std::is_same_v<Half, BFloat16>;
    if constexpr (kColumns == 16 && kBrain) {
        DSPARK_FROM_SHARED(16, "bf16", "8", "9", "10");
    } else if constexpr (kColumns == 16) {
        DSPARK_FROM_SHARED(16, "f16", "8", "9", "10");
    } else if constexpr (kColumns == 32 && kBrain) {
        DSPARK_FROM_SHARED(32, "bf16", "16", "17", "18");
    } else if constexpr (kColumns == 32) {
        DSPARK_FROM_SHARED(32, "f16", "16", "17", "18");
    } else if constexpr (kColumns == 48 && kBrain) {
        DSPARK_FROM_SHARED(48, "bf16", "24", "25", "26");
    } else if constexpr (kColumns == 48) {
        DSPARK_FROM_SHARED(48, "f16", "24", "25", "26");
    } else if constexpr (kBrain) {
        DSPARK_FROM_SHARED(64, "bf16", "32", "33", "34");
    } else {
        DSPARK_FROM_SHARED(64, "f16", "32", "33", "34");
    }
}

template <class Half, int kColumns>
DSPARK_DEVICE void multiply_group(const uint32_t (&left)[4], const Operand& right_operand,
                                  bool accumulate, float (&sums)[kColumns / 2]) {
    static_assert(kColumns == 16 || kColumns == 32 || kColumns == 48 || kColumns == 64);
    constexpr bool kBrain = std::is_same_v<Half, BFloat16>;
    if constexpr (kColumns == 16 && kBrain) {
        DSPARK_FROM_WORDS(16, "bf16", "8", "9", "10", "11", "12", "13");
    } else if constexpr (kColumns == 16) {
        DSPARK_FROM_WORDS(16, "f16", "8", "9", "10", "11", "12", "13");
    } else if constexpr (kColumns == 32 && kBrain) {
        DSPARK_FROM_WORDS(32, "bf16", "16", "17", "18", "19", "20", "21");
    } else if constexpr (kColumns == 32) {
        DSPARK_FROM_WORDS(32, "f16", "16", "17", "18", "19", "20", "21");
    } else if constexpr (kColumns == 48 && kBrain) {
        DSPARK_FROM_WORDS(48, "bf16", "24", "25", "26", "27", "28", "29");
    } else if constexpr (kColumns == 48) {
        DSPARK_FROM_WORDS(48, "f16", "24", "25", "26", "27", "28", "29");
    } else if constexpr (kBrain) {
        DSPARK_FROM_WORDS(64, "bf16", "32", "33", "34", "35", "36", "37");
    } else {
        DSPARK_FROM_WORDS(64, "f16", "32", "33", "34", "35", "36", "37");
    }
}

#undef DSPARK_FROM_WORDS
#undef DSPARK_FROM_SHARED
#undef DSPARK_WGMMA
#undef DSPARK_SUMS_64
#undef DSPARK_SUMS_48
#undef DSPARK_SUMS_32
#undef DSPARK_SUMS_16
#undef DSPARK_TEXT_64
#undef DSPARK_TEXT_48
#undef DSPARK_TEXT_32
#undef DSPARK_TEXT_16
#undef DSPARK_TEXT8
#undef DSPARK_SUM8

// ---- host ---------------------------------------------------------------------------------------

// DSPARK_CUDA_WARPGROUPS: the build has code for sm_90a.
inline bool has_warpgroups() {
#ifdef DSPARK_CUDA_WARPGROUPS
    int device = 0, major = 0, minor = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) ==
               cudaSuccess &&
           major == 9 && minor == 0;
#else
    return false;
#endif
}

}  // namespace dspark::DSPARK_ISA
