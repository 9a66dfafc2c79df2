// Which instruction set the CPU backend runs on.
//
// Every csrc/ops/*/cpu.cpp is compiled once per instruction set, each time inside its own namespace
// (dspark::avx512, dspark::avx2, dspark::baseline); DSPARK_CPU_DISPATCH calls the one chosen here.
// All of them compute the same bits. DSPARK_CPU_ISA=baseline|avx2|avx512 forces a lower one.
#pragma once

namespace dspark::cpu {

enum class Isa { kBaseline, kAvx2, kAvx512 };

// Decided once per process, from CPUID and DSPARK_CPU_ISA.
Isa active_isa();
const char* isa_name(Isa isa);
// Whether the avx512 kernels may use the bf16 dot-product instructions (AVX512_BF16).
bool has_bf16_dots();

}  // namespace dspark::cpu

#if defined(__x86_64__)
#define DSPARK_CPU_DISPATCH(function, ...)                      \
    (::dspark::cpu::active_isa() == ::dspark::cpu::Isa::kAvx512 \
         ? ::dspark::avx512::function(__VA_ARGS__)              \
     : ::dspark::cpu::active_isa() == ::dspark::cpu::Isa::kAvx2 \
         ? ::dspark::avx2::function(__VA_ARGS__)                \
         : ::dspark::baseline::function(__VA_ARGS__))
// Declares `declaration` in the namespace of every instruction set.
#define DSPARK_CPU_DECLARE(...)  \
    namespace dspark::avx512 {   \
    __VA_ARGS__;                 \
    }                            \
    namespace dspark::avx2 {     \
    __VA_ARGS__;                 \
    }                            \
    namespace dspark::baseline { \
    __VA_ARGS__;                 \
    }
#else
#define DSPARK_CPU_DISPATCH(function, ...) ::dspark::baseline::function(__VA_ARGS__)
#define DSPARK_CPU_DECLARE(...)  \
    namespace dspark::baseline { \
    __VA_ARGS__;                 \
    }
#endif
