// Runs planted kernels and prints what came of each, as lines of JSON:
//   simt_selftest LEVEL WARP SEED[,SEED...] CASE...
#include <cstdio>
#include <cstdlib>
#include <string>

#include "planted.h"

namespace emulator = dspark::emulator;
namespace planted = dspark::planted;

namespace {

std::string quoted(const char* text) {
    std::string out = "\"";
    for (; *text != '\0'; ++text) {
        if (*text == '\n') {
            out += "\\n";
            continue;
        }
        if (*text == '"' || *text == '\\') out += '\\';
        out += *text;
    }
    return out + '"';
}

}  // namespace

int main(int count, char** arguments) {
    if (count < 5) return 2;
    emulator::set_level(static_cast<emulator::Level>(std::atoi(arguments[1])));
    emulator::set_access_limit(1 << 18);
    const int warp_size = std::atoi(arguments[2]);
    for (int i = 4; i < count; ++i) {
        const planted::Case* chosen = planted::find_case(arguments[i]);
        if (chosen == nullptr) return 2;
        const char* seeds = arguments[3];
        while (*seeds != '\0') {
            char* end = nullptr;
            const unsigned long long seed = std::strtoull(seeds, &end, 10);
            seeds = *end == ',' ? end + 1 : end;
            emulator::set_seed(seed);
            const planted::Outcome outcome = planted::run_case(*chosen, warp_size);
            std::printf(
                "{\"case\": \"%s\", \"seed\": %llu, \"code\": %d, \"correct\": %s, "
                "\"report\": %s, \"counters\": %s}\n",
                chosen->name, seed, outcome.code, outcome.correct ? "true" : "false",
                quoted(emulator::last_report()).c_str(), emulator::counters_json());
            std::fflush(stdout);
        }
    }
    return 0;
}
