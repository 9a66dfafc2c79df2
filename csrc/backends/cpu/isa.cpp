#include "backends/cpu/isa.h"

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

namespace dspark::cpu {
namespace {

Isa best_isa() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("x86-64-v4")) return Isa::kAvx512;
    if (__builtin_cpu_supports("x86-64-v3")) return Isa::kAvx2;
#endif
    return Isa::kBaseline;
}

Isa choose_isa() {
    const Isa best = best_isa();
    const char* wanted = std::getenv("DSPARK_CPU_ISA");
    if (wanted == nullptr) return best;
    const Isa all[] = {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512};
    for (Isa isa : all) {
        if (std::strcmp(wanted, isa_name(isa)) != 0) continue;
        if (isa > best) {
            throw std::runtime_error(std::string("DSPARK_CPU_ISA=") + wanted +
                                     ": this machine supports at most " + isa_name(best));
        }
        return isa;
    }
    throw std::runtime_error(
        std::string("DSPARK_CPU_ISA: expected baseline, avx2 or avx512, got ") + wanted);
}

}  // namespace

Isa active_isa() {
    static const Isa isa = choose_isa();
    return isa;
}

bool has_bf16_dots() {
#if defined(__x86_64__)
    static const bool has =
        active_isa() == Isa::kAvx512 && __builtin_cpu_supports("avx512bf16") != 0;
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

}  // namespace dspark::cpu
