// Which instruction set the CPU backend runs on.
//
// Every csrc/ops/*/cpu.cpp is compiled once per instruction set, each time inside its own namespace
// (dspark::avx512, dspark::avx2, dspark::baseline); DSPARK_CPU_DISPATCH calls the one chosen here.
// All of them compute the same bits, save for products of 16-bit numbers that need not be exact
// (docs/numerics.md, section 13), where the pair unit decides. DSPARK_CPU_ISA forces a lower one:
//     baseline, avx2, avx512   that instruction set, with fused multiply-adds
//     avx512_bf16, amx         avx512 and that pair unit
//     amx_emulated             the machine's best with the arithmetic of amx, slowly; for tests
#pragma once

namespace dspark::cpu {

enum class Isa { kBaseline, kAvx2, kAvx512 };

// Decided once per process, from CPUID and DSPARK_CPU_ISA.
Isa active_isa();
const char* isa_name(Isa isa);

// What multiplies pairs of bf16 numbers where the sum is not exact by contract.
enum class PairUnit { kFma, kDots, kTiles, kEmulatedTiles };

// Decided once per process, too. kDots needs AVX512_BF16, kTiles also AMX_BF16 and the system's
// permission to use it.
PairUnit pair_unit();
const char* pair_unit_name(PairUnit unit);
// Whether the avx512 kernels may use the bf16 dot-product instructions.
bool has_bf16_dots();
// Whether they may look up bytes in tables of 128 (AVX512_VBMI).
bool has_byte_lookups();

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
