#include "backends/cpu/isa.h"

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace dspark::cpu {
namespace {

// What DSPARK_CPU_ISA names.
struct Level {
    const char* name;
    Isa isa;
    PairUnit unit;
};
constexpr Level kLevels[] = {
    {"baseline", Isa::kBaseline, PairUnit::kFma}, {"avx2", Isa::kAvx2, PairUnit::kFma},
    {"avx512", Isa::kAvx512, PairUnit::kFma},     {"avx512_bf16", Isa::kAvx512, PairUnit::kDots},
    {"amx", Isa::kAvx512, PairUnit::kTiles},
};
constexpr const char* kEmulated = "amx_emulated";

#if defined(__x86_64__)
// Linux hands out the tile registers on request only (ARCH_REQ_XCOMP_PERM for XTILEDATA).
bool may_use_tiles() {
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

#if defined(__x86_64__)
struct Registers {
    unsigned a = 0, b = 0, c = 0, d = 0;
};
// What the processor says of itself; zeros for a leaf that it does not have.
Registers cpuid(unsigned leaf) {
    Registers r;
    __get_cpuid_count(leaf, 0, &r.a, &r.b, &r.c, &r.d);
    return r;
}

// The levels of the x86-64 ABI. g++ 11 and clang 17 do not know their names yet, nor those of all
// their parts; the builtins also tell whether the system saves the registers.
bool has_x86_64_v3() {
    constexpr unsigned kMovbe = 1u << 22, kF16c = 1u << 29, kLzcnt = 1u << 5;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
           (~cpuid(1).c & (kMovbe | kF16c)) == 0 && (cpuid(0x80000001).c & kLzcnt) != 0;
}
bool has_x86_64_v4() {
    return has_x86_64_v3() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool has_tiles() {
    constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
    return (~cpuid(7).d & (kAmxBf16 | kAmxTile)) == 0 && may_use_tiles();
}
#endif

const Level& best_level() {
#if defined(__x86_64__)
    if (has_x86_64_v4()) {
        if (!__builtin_cpu_supports("avx512bf16")) return kLevels[2];
        return has_tiles() ? kLevels[4] : kLevels[3];
    }
    if (has_x86_64_v3()) return kLevels[1];
#endif
    return kLevels[0];
}

Level choose_level() {
    const Level& best = best_level();
    const char* wanted = std::getenv("DSPARK_CPU_ISA");
    if (wanted == nullptr || *wanted == '\0') return best;
    if (std::strcmp(wanted, kEmulated) == 0) {
        return {kEmulated, best.isa, PairUnit::kEmulatedTiles};
    }
    for (const Level& level : kLevels) {
        if (std::strcmp(wanted, level.name) != 0) continue;
        if (&level > &best) {
            throw std::runtime_error(std::string("DSPARK_CPU_ISA=") + wanted +
                                     ": this machine supports at most " + best.name);
        }
        return level;
    }
    throw std::runtime_error(
        std::string("DSPARK_CPU_ISA: expected baseline, avx2, avx512, avx512_bf16, amx or "
                    "amx_emulated, got ") +
        wanted);
}

const Level& active_level() {
    static const Level level = choose_level();
    return level;
}

}  // namespace

Isa active_isa() {
    return active_level().isa;
}

PairUnit pair_unit() {
    return active_level().unit;
}

bool has_bf16_dots() {
    return pair_unit() == PairUnit::kDots || pair_unit() == PairUnit::kTiles;
}

bool has_byte_lookups() {
#if defined(__x86_64__)
    static const bool has =
        active_isa() == Isa::kAvx512 && __builtin_cpu_supports("avx512vbmi") != 0;
    return has;
#else
    return false;
#endif
}

const char* isa_name(Isa isa) {
    switch (isa) {
        case Isa::kAvx512:
            return "avx512";
        case Isa::kAvx2:
            return "avx2";
        case Isa::kBaseline:
            return "baseline";
    }
    return "baseline";
}

const char* pair_unit_name(PairUnit unit) {
    switch (unit) {
        case PairUnit::kTiles:
            return "amx";
        case PairUnit::kEmulatedTiles:
            return kEmulated;
        case PairUnit::kDots:
            return "avx512_bf16";
        case PairUnit::kFma:
            return "fma";
    }
    return "fma";
}

}  // namespace dspark::cpu
