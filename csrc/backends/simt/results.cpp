// The counters of a session, by kernel and by buffer.
#include <algorithm>
#include <map>

#include "backends/simt/machine.h"
#include "backends/simt/memory.h"

namespace dspark::emulator {
namespace {

// By name. Never erased from, because launches and buffers keep references.
std::map<std::string, Counters> kernel_counters;
std::map<std::string, BufferCounters> buffer_counters;

// As the key of a JSON object.
std::string quoted(const std::string& name) {
    std::string out = "\"";
    for (const char c : name) {
        if (c == '"' || c == '\\') out += '\\';
        out += c;
    }
    return out + "\": ";
}

}  // namespace

Counters& counters_of(const std::string& kernel) {
    return kernel_counters[kernel];
}

BufferCounters& counters_of_buffer(const std::string& name) {
    return buffer_counters[name];
}

void count_accesses(int first, int lanes) {
    AccessLog* logs[64];
    bool global = false;
    bool shared = false;
    for (int lane = 0; lane < lanes; ++lane) {
        Thread& thread = machine.threads[first + lane];
        global |= !thread.global_log.empty();
        shared |= !thread.shared_log.empty();
        logs[lane] = &thread.global_log;
    }
    if (global) count_global(logs, lanes, machine.settings.cache.get(), *machine.counters);
    if (!shared) return;
    for (int lane = 0; lane < lanes; ++lane) logs[lane] = &machine.threads[first + lane].shared_log;
    count_shared(logs, lanes, *machine.counters);
}

void count_all_accesses() {
    const int width = machine.warp_size != 0 ? machine.warp_size : machine.settings.warp_size;
    for (int first = 0; first < machine.thread_count; first += width) {
        count_accesses(first, std::min(width, machine.thread_count - first));
    }
}

void reset_counters() {
    for (auto& entry : kernel_counters) entry.second = Counters{};
    for (auto& entry : buffer_counters) entry.second = BufferCounters{};
}

const char* counters_json() {
    static std::string json;
    json = "{\"kernels\": {";
    const char* separator = "";
    for (const auto& [name, counters] : kernel_counters) {
        if (counters.launches == 0) continue;
        json += separator + quoted(name) + to_json(counters);
        separator = ", ";
    }
    json += "}, \"buffers\": {";
    separator = "";
    for (const auto& [name, counters] : buffer_counters) {
        if (counters.bytes_loaded + counters.bytes_stored == 0) continue;
        json += separator + quoted(name) +
                "{\"bytes_loaded\": " + std::to_string(counters.bytes_loaded) +
                ", \"bytes_stored\": " + std::to_string(counters.bytes_stored) + "}";
        separator = ", ";
    }
    json += "}}";
    return json.c_str();
}

}  // namespace dspark::emulator
