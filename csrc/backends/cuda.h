// The device vocabulary for nvcc. What each name means is written once, at the host emulator
// (csrc/backends/simt/backend.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#define DSPARK_DEVICE __device__ __forceinline__
#define DSPARK_HOST_DEVICE __host__ __device__ __forceinline__
// Two blocks, 128 registers, unless the kernel says otherwise: left alone, ptxas weighs registers
// against occupancy, down to spills.
#define DSPARK_KERNEL(...) __global__ DSPARK_LAUNCH_BOUNDS(__VA_ARGS__, 2, )
#define DSPARK_LAUNCH_BOUNDS(threads, blocks, ...) __launch_bounds__(threads, blocks)
#define DSPARK_UNROLL _Pragma("unroll")
#define DSPARK_SHARED(Type, name) __shared__ Type name
#define DSPARK_LARGE_SHARED(Type, name)                                          \
    extern __shared__ __align__(128) unsigned char dspark_large_shared_memory[]; \
    Type& name = *reinterpret_cast<Type*>(dspark_large_shared_memory)

#include "backends/gpu_common.h"

namespace dspark::DSPARK_ISA {

DSPARK_DEVICE int thread_idx() {
    return static_cast<int>(threadIdx.x);
}
DSPARK_DEVICE Dim3 block_idx() {
    return {static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y),
            static_cast<int>(blockIdx.z)};
}
DSPARK_DEVICE Dim3 grid_dim() {
    return {static_cast<int>(gridDim.x), static_cast<int>(gridDim.y), static_cast<int>(gridDim.z)};
}

DSPARK_DEVICE void trap() {
    __trap();
}
// Whether W is the warp size this code is compiled for. Kernels of another W are never launched.
template <int W>
DSPARK_DEVICE constexpr bool is_hardware_warp() {
    return W == 32;
}
// The first statement of every kernel. For a foreign W the compiler drops all that follows.
template <int W>
DSPARK_DEVICE void check_warp_size() {
    if (!is_hardware_warp<W>()) {
        trap();
        __builtin_unreachable();
    }
}

constexpr uint32_t kWholeWarp = 0xFFFFFFFFu;

// A value of 4 or 8 bytes as the integer type the shuffle instructions take.
template <class T>
using ShuffleWord = std::conditional_t<sizeof(T) == 8, unsigned long long, unsigned int>;
template <class To, class From>
DSPARK_DEVICE To shuffle_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "shuffles move 4 or 8 bytes");
    To to;
    __builtin_memcpy(&to, &from, sizeof(to));
    return to;
}
template <int W, class T>
DSPARK_DEVICE T shuffle(T v, int source_lane) {
    return shuffle_bits<T>(__shfl_sync(kWholeWarp, shuffle_bits<ShuffleWord<T>>(v), source_lane));
}
template <int W, class T>
DSPARK_DEVICE T shuffle_xor(T v, int mask) {
    return shuffle_bits<T>(__shfl_xor_sync(kWholeWarp, shuffle_bits<ShuffleWord<T>>(v), mask));
}
template <int W, class T>
DSPARK_DEVICE T shuffle_up(T v, int delta) {
    return shuffle_bits<T>(__shfl_up_sync(kWholeWarp, shuffle_bits<ShuffleWord<T>>(v), delta));
}
template <int W, class T>
DSPARK_DEVICE T shuffle_down(T v, int delta) {
    return shuffle_bits<T>(__shfl_down_sync(kWholeWarp, shuffle_bits<ShuffleWord<T>>(v), delta));
}
template <int W>
DSPARK_DEVICE uint64_t ballot(bool condition) {
    return __ballot_sync(kWholeWarp, condition);
}
template <int W>
DSPARK_DEVICE void sync_warp() {
    __syncwarp();
}
DSPARK_DEVICE void sync_block() {
    __syncthreads();
}

DSPARK_DEVICE uint32_t take_ticket(Global<uint32_t> counter) {
    uint32_t ticket;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(ticket)
                 : "l"(counter)
                 : "memory");
    return ticket;
}
// A release after a barrier covers what the whole block has stored.
DSPARK_DEVICE void drain_stores() {}
DSPARK_DEVICE void publish(Global<uint32_t> flag, uint32_t value) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
DSPARK_DEVICE void await(Global<const uint32_t> flag, uint32_t value) {
    uint32_t found;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(found) : "l"(flag) : "memory");
    } while (found < value);
}

// Past the first-level cache, through the read-only path: what is read once displaces nothing.
DSPARK_DEVICE Bytes16 load16(Global<const void> p, int64_t byte_offset) {
    Bytes16 out;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(out.word[0]), "=r"(out.word[1]), "=r"(out.word[2]), "=r"(out.word[3])
        : "l"(static_cast<const char*>(p) + byte_offset));
    return out;
}
// Marked to leave the second-level cache first as well, so that results stay there which the next
// launch reads; by instructions that begin with sm_80.
DSPARK_DEVICE Bytes16 load16_once(Global<const void> p, int64_t byte_offset) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
    return load16(p, byte_offset);
#else
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    Bytes16 out;
    asm("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
        : "=r"(out.word[0]), "=r"(out.word[1]), "=r"(out.word[2]), "=r"(out.word[3])
        : "l"(static_cast<const char*>(p) + byte_offset), "l"(policy));
    return out;
#endif
}
DSPARK_DEVICE void store16(Global<void> p, int64_t byte_offset, Bytes16 value) {
    *reinterpret_cast<uint4*>(static_cast<char*>(p) + byte_offset) =
        make_uint4(value.word[0], value.word[1], value.word[2], value.word[3]);
}

// ---- host ---------------------------------------------------------------------------------------

inline const char* error_string(int code) {
    return cudaGetErrorString(static_cast<cudaError_t>(code));
}

// Calls f with the warp size of the current device as a constant (std::integral_constant) and
// returns its error code, or the code of the failure to find out.
template <class Function>
int with_warp_size(Function&& f) {
    return f(std::integral_constant<int, 32>{});
}

// Multiprocessors of the current device; 1 where it cannot be asked.
inline int multiprocessors() {
    int device = 0, count = 0;
    const bool is_known =
        cudaGetDevice(&device) == cudaSuccess &&
        cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) == cudaSuccess;
    return is_known && count > 0 ? count : 1;
}

template <class Args>
int launch_with(size_t shared_bytes, void (*kernel)(Args), Dim3 grid, int threads, void* stream,
                const Args& args) {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return 0;
    Args copy = args;
    void* parameters[] = {&copy};
    const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                      static_cast<unsigned>(grid.z));
    const cudaError_t code = cudaLaunchKernel(reinterpret_cast<const void*>(kernel), blocks,
                                              dim3(static_cast<unsigned>(threads)), parameters,
                                              shared_bytes, static_cast<cudaStream_t>(stream));
    if (code != cudaSuccess) cudaGetLastError();  // or it is reported to the next caller, too
    return static_cast<int>(code);
}
template <class Args>
int launch(const char* /*name*/, void (*kernel)(Args), Dim3 grid, int threads, void* stream,
           const Args& args) {
    return launch_with(0, kernel, grid, threads, stream, args);
}
template <class Shared, class Args>
int launch_large(const char* /*name*/, void (*kernel)(Args), Dim3 grid, int threads, void* stream,
                 const Args& args) {
    const cudaError_t code = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                  static_cast<int>(sizeof(Shared)));
    if (code == cudaSuccess) {
        return launch_with(sizeof(Shared), kernel, grid, threads, stream, args);
    }
    cudaGetLastError();
    return static_cast<int>(code);
}

}  // namespace dspark::DSPARK_ISA

#include "backends/cuda_matrix.h"
#include "backends/cuda_warpgroup.h"
#include "backends/no_scaled_matrix.h"
