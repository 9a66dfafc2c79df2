// The device vocabulary for a HIP clang. What each name means is written once, at the host emulator
// (csrc/backends/simt/backend.h).
//
// Only compiler builtins and, on the host, the runtime API: no header and no bitcode library of a
// ROCm release is used on the device (hip/README.md).
#pragma once

#include <hip/hip_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#define DSPARK_DEVICE __attribute__((device, always_inline)) inline
#define DSPARK_HOST_DEVICE __attribute__((host, device, always_inline)) inline
#define DSPARK_KERNEL(threads, ...) \
    __attribute__((global, amdgpu_flat_work_group_size(threads, threads)))
#define DSPARK_UNROLL _Pragma("unroll")
#define DSPARK_SHARED(Type, name) __attribute__((shared)) Type name
#define DSPARK_LARGE_SHARED(Type, name) DSPARK_SHARED(Type, name)

// The portable layer copies bits with memcpy, which <cstring> declares for the host.
DSPARK_DEVICE void* memcpy(void* to, const void* from, size_t bytes) {
    return __builtin_memcpy(to, from, bytes);
}

#include "backends/gpu_common.h"

namespace dspark::DSPARK_ISA {

// Lanes of a wave in the code being compiled; on the host, where it decides nothing, 64.
#if defined(__GFX10__) || defined(__GFX11__) || defined(__GFX12__)
constexpr int kHardwareWarp = 32;
#else
constexpr int kHardwareWarp = 64;
#endif

DSPARK_DEVICE int thread_idx() {
    return static_cast<int>(__builtin_amdgcn_workitem_id_x());
}
DSPARK_DEVICE Dim3 block_idx() {
    return {static_cast<int>(__builtin_amdgcn_workgroup_id_x()),
            static_cast<int>(__builtin_amdgcn_workgroup_id_y()),
            static_cast<int>(__builtin_amdgcn_workgroup_id_z())};
}
// From code object version 5 on, the hidden arguments begin with the number of blocks.
DSPARK_DEVICE Dim3 grid_dim() {
    using Hidden = const __attribute__((address_space(4))) uint32_t;
    Hidden* blocks = (Hidden*)__builtin_amdgcn_implicitarg_ptr();
    return {static_cast<int>(blocks[0]), static_cast<int>(blocks[1]), static_cast<int>(blocks[2])};
}

DSPARK_DEVICE void trap() {
    __builtin_trap();
}
// Whether W is the warp size this code is compiled for. Kernels are compiled for waves of 32 and of
// 64 on every architecture; the launcher never picks the foreign one.
template <int W>
DSPARK_DEVICE constexpr bool is_hardware_warp() {
    return W == kHardwareWarp;
}
// The first statement of every kernel. For a foreign W the compiler drops all that follows.
template <int W>
DSPARK_DEVICE void check_warp_size() {
    if (!is_hardware_warp<W>()) {
        trap();
        __builtin_unreachable();
    }
}

// A value of 4 or 8 bytes from another lane of the wave.
template <int W, class T>
DSPARK_DEVICE T shuffle(T v, int source_lane) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles move 4 or 8 bytes");
    int word[sizeof(T) / 4];
    __builtin_memcpy(word, &v, sizeof(T));
    for (int& w : word) w = __builtin_amdgcn_ds_bpermute(source_lane * 4, w);
    T out;
    __builtin_memcpy(&out, word, sizeof(T));
    return out;
}
template <int W, class T>
DSPARK_DEVICE T shuffle_xor(T v, int mask) {
    return shuffle<W>(v, (thread_idx() & (W - 1)) ^ mask);
}
template <int W, class T>
DSPARK_DEVICE T shuffle_up(T v, int delta) {
    const int lane = thread_idx() & (W - 1);
    return shuffle<W>(v, lane < delta ? lane : lane - delta);
}
template <int W, class T>
DSPARK_DEVICE T shuffle_down(T v, int delta) {
    const int lane = thread_idx() & (W - 1);
    return shuffle<W>(v, lane + delta < W ? lane + delta : lane);
}
template <int W>
DSPARK_DEVICE uint64_t ballot(bool condition) {
#if defined(__GFX10__) || defined(__GFX11__) || defined(__GFX12__)
    return __builtin_amdgcn_ballot_w32(condition);
#else
    return __builtin_amdgcn_ballot_w64(condition);
#endif
}
// A wave runs in lockstep and its shared-memory accesses complete in order: what is left to prevent
// is the compiler moving them.
template <int W>
DSPARK_DEVICE void sync_warp() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
DSPARK_DEVICE void sync_block() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// Agent scope: blocks run on other compute units, perhaps behind another second-level cache.
DSPARK_DEVICE uint32_t take_ticket(Global<uint32_t> counter) {
    return __hip_atomic_fetch_add(counter, 1u, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
}
// A release waits for the stores of its own wave only, and the barrier for none.
DSPARK_DEVICE void drain_stores() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
}
DSPARK_DEVICE void publish(Global<uint32_t> flag, uint32_t value) {
    __hip_atomic_store(flag, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_AGENT);
}
// Caches are invalidated once, when the wait is over.
DSPARK_DEVICE void await(Global<const uint32_t> flag, uint32_t value) {
    while (__hip_atomic_load(flag, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT) < value) {
        __builtin_amdgcn_s_sleep(1);
    }
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "agent");
}

using Vector16 = uint32_t __attribute__((ext_vector_type(4)));
// Marked as read once, so that it displaces little from the caches.
DSPARK_DEVICE Bytes16 load16(Global<const void> p, int64_t byte_offset) {
    const Vector16 v =
        __builtin_nontemporal_load((const __attribute__((address_space(1)))
                                    Vector16*)(static_cast<const char*>(p) + byte_offset));
    return {{v.x, v.y, v.z, v.w}};
}
DSPARK_DEVICE Bytes16 load16_once(Global<const void> p, int64_t byte_offset) {
    return load16(p, byte_offset);
}
DSPARK_DEVICE void store16(Global<void> p, int64_t byte_offset, Bytes16 value) {
    *(__attribute__((address_space(1))) Vector16*)(static_cast<char*>(p) + byte_offset) =
        Vector16{value.word[0], value.word[1], value.word[2], value.word[3]};
}

// ---- host ---------------------------------------------------------------------------------------

inline const char* error_string(int code) {
    return hipGetErrorString(static_cast<hipError_t>(code));
}

// Calls f with the warp size of the current device as a constant (std::integral_constant) and
// returns its error code, or the code of the failure to find out.
template <class Function>
int with_warp_size(Function&& f) {
    int device = 0;
    hipError_t code = hipGetDevice(&device);
    if (code != hipSuccess) return static_cast<int>(code);
    int size = 0;
    code = hipDeviceGetAttribute(&size, hipDeviceAttributeWarpSize, device);
    if (code != hipSuccess) return static_cast<int>(code);
    return size == 32 ? f(std::integral_constant<int, 32>{}) : f(std::integral_constant<int, 64>{});
}

// Multiprocessors of the current device; 1 where it cannot be asked.
inline int multiprocessors() {
    int device = 0, count = 0;
    const bool is_known =
        hipGetDevice(&device) == hipSuccess &&
        hipDeviceGetAttribute(&count, hipDeviceAttributeMultiprocessorCount, device) == hipSuccess;
    return is_known && count > 0 ? count : 1;
}

template <class Args>
int launch(const char* /*name*/, void (*kernel)(Args), Dim3 grid, int threads, void* stream,
           const Args& args) {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return 0;
    Args copy = args;
    void* parameters[] = {&copy};
    const dim3 blocks(static_cast<uint32_t>(grid.x), static_cast<uint32_t>(grid.y),
                      static_cast<uint32_t>(grid.z));
    const hipError_t code = hipLaunchKernel(reinterpret_cast<const void*>(kernel), blocks,
                                            dim3(static_cast<uint32_t>(threads)), parameters, 0,
                                            static_cast<hipStream_t>(stream));
    if (code != hipSuccess) (void)hipGetLastError();  // or it is reported to the next caller, too
    return static_cast<int>(code);
}

}  // namespace dspark::DSPARK_ISA

#include "backends/no_warpgroup.h"
#include "hip/matrix.h"
#include "hip/scaled_matrix.h"
