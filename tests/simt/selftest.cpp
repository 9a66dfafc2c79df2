// Planted kernels by name.
#include <cstring>

#include "planted.h"

namespace dspark::planted {
namespace {

std::vector<Case> all_cases() {
    std::vector<Case> all;
    for (const auto& cases :
         {synchronisation_cases(), divergence_cases(), memory_cases(), counting_cases(),
          collective_cases(), vocabulary_cases(), matrix_cases(), wide_matrix_cases(),
          warpgroup_cases(), ordering_cases(), native_cases()}) {
        all.insert(all.end(), cases.begin(), cases.end());
    }
    return all;
}

}  // namespace

const Case* find_case(const char* name) {
    static const std::vector<Case> all = all_cases();
    for (const Case& candidate : all) {
        if (std::strcmp(candidate.name, name) == 0) return &candidate;
    }
    return nullptr;
}

Outcome run_case(const Case& chosen, int warp_size) {
    emulator::clear_error();
    emulator::reset_counters();
    return chosen.run[warp_size == 4 ? 0 : warp_size == 32 ? 1 : 2]();
}

}  // namespace dspark::planted

namespace planted = dspark::planted;

// The code of the launch, -1 if its outputs are wrong, -2 if there is no such case.
extern "C" __attribute__((visibility("default"))) int simt_selftest_run(const char* name,
                                                                        int warp_size) {
    const planted::Case* chosen = planted::find_case(name);
    if (chosen == nullptr) return -2;
    const planted::Outcome outcome = planted::run_case(*chosen, warp_size);
    return outcome.code == 0 && !outcome.correct ? -1 : outcome.code;
}
