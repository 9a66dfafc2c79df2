#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "backends/simt/machine.h"

namespace dspark::emulator {
namespace {

Error error = Error::kNone;
std::string report;

constexpr const char* kNames[] = {
    "success",
    "access out of bounds",
    "unaligned access",
    "store to a read-only buffer",
    "read of uninitialised memory",
    "race",
    "divergent barrier",
    "divergent collective",
    "deadlock",
    "wrong warp size",
    "bad lane",
    "trap",
    "bad launch",
};

const char* name_of(Operation operation) {
    constexpr const char* kOperations[] = {"shuffle",      "shuffle_xor", "shuffle_up",
                                           "shuffle_down", "ballot",      "sync_warp"};
    return kOperations[static_cast<int>(operation)];
}

std::string wait_of(const Thread& thread) {
    switch (thread.state) {
        case State::kReady:
            return "can run";
        case State::kFinished:
            return "finished";
        case State::kAtBarrier:
            return format("wait at sync_block, %s:%d", thread.file, thread.line);
        case State::kAtWarpOperation:
            break;
    }
    return format("wait at %s<%d>, %s:%d", name_of(thread.operation), machine.warp_size,
                  thread.file, thread.line);
}

}  // namespace

std::string format(const char* pattern, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, pattern);
    std::vsnprintf(text, sizeof(text), pattern, arguments);
    va_end(arguments);
    return text;
}

std::string thread_name(int thread) {
    const int width = machine.warp_size;
    if (width == 0) return format("thread %d", thread);
    return format("thread %d (warp %d, lane %d)", thread, thread / width, thread % width);
}

std::string describe_waits() {
    std::vector<std::string> waits;
    std::vector<std::string> members;
    std::vector<int> counts;
    for (int i = 0; i < machine.thread_count; ++i) {
        const std::string wait = wait_of(machine.threads[i]);
        size_t kind = 0;
        while (kind < waits.size() && waits[kind] != wait) ++kind;
        if (kind == waits.size()) {
            waits.push_back(wait);
            members.emplace_back();
            counts.push_back(0);
        }
        const bool starts = i == 0 || wait_of(machine.threads[i - 1]) != wait;
        const bool ends = i + 1 == machine.thread_count || wait_of(machine.threads[i + 1]) != wait;
        if (starts) members[kind] += (members[kind].empty() ? "" : ",") + std::to_string(i);
        if (ends && !starts) members[kind] += "-" + std::to_string(i);
        ++counts[kind];
    }
    std::string text;
    for (size_t kind = 0; kind < waits.size(); ++kind) {
        if (members[kind].size() > 200) members[kind] = members[kind].substr(0, 200) + "...";
        text +=
            format("  %d threads %s: ", counts[kind], waits[kind].c_str()) + members[kind] + "\n";
    }
    return text;
}

void record(Error found, const std::string& text) {
    const Dim3 b = machine.block;
    error = found;
    report = kNames[static_cast<int>(found)] + (" in kernel '" + machine.kernel) + "', block " +
             format("(%d, %d, %d)", b.x, b.y, b.z);
    if (current != nullptr) report += ", " + thread_name(current->index);
    report += ": " + text;
    while (report.back() == '\n') report.pop_back();
    machine.failed = true;
}

void fail(Error found, const std::string& text) {
    if (current == nullptr) {
        std::fprintf(stderr, "simt emulator: host code touched device memory: %s\n", text.c_str());
        std::abort();
    }
    record(found, text);
    release(&machine.ended);
    current->at_rest = false;
    yield();
    std::abort();
}

void trap() {
    fail(Error::kTrap, "trap() was called");
}

const char* last_report() {
    return report.c_str();
}

Error last_error() {
    return error;
}

void clear_error() {
    error = Error::kNone;
    report.clear();
}

const char* error_text(int code) {
    if (code != 0 && code == static_cast<int>(error)) return report.c_str();
    constexpr int kCount = sizeof(kNames) / sizeof(kNames[0]);
    return code >= 0 && code < kCount ? kNames[code] : "unknown error";
}

}  // namespace dspark::emulator
