// Findings and their text.
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
    "unfinished work",
};

const char* name_of(Operation operation) {
    constexpr const char* kOperations[] = {"shuffle",           "shuffle_xor", "shuffle_up",
                                           "shuffle_down",      "ballot",      "sync_warp",
                                           "matrix_instruction"};
    return kOperations[static_cast<int>(operation)];
}

Text wait_of(const Thread& thread) {
    switch (thread.state) {
        case State::kReady:
            return format("can run");
        case State::kFinished:
            return format("finished");
        case State::kAtBarrier:
            return format("wait at sync_block, %s:%d", thread.file, thread.line);
        case State::kAtGroupOperation:
            return format("wait for their warpgroup, %s:%d", thread.file, thread.line);
        case State::kAtTransfer:
            return format("wait at transfer barrier %d, %s:%d", thread.awaited, thread.file,
                          thread.line);
        case State::kAtWarpOperation:
            break;
    }
    return format("wait at %s<%d>, %s:%d", name_of(thread.operation), machine.warp_size,
                  thread.file, thread.line);
}

// Threads with the same wait.
struct Waiters {
    std::string wait;
    std::string ranges;
    int count = 0;
    int last = -2;  // thread
};

void append_range_end(Waiters& waiters, int first) {
    if (waiters.last > first) waiters.ranges += "-" + std::to_string(waiters.last);
}

// Which threads wait where, a line for each kind of wait.
std::string describe_waits() {
    std::vector<Waiters> kinds;
    std::vector<int> first;  // of the current range of each kind
    for (int i = 0; i < machine.thread_count; ++i) {
        const std::string wait = wait_of(machine.threads[i]).text;
        size_t kind = 0;
        while (kind < kinds.size() && kinds[kind].wait != wait) ++kind;
        if (kind == kinds.size()) {
            kinds.emplace_back().wait = wait;
            first.push_back(i);
        }
        Waiters& waiters = kinds[kind];
        if (waiters.last != i - 1) {
            append_range_end(waiters, first[kind]);
            waiters.ranges += (waiters.count == 0 ? "" : ",") + std::to_string(i);
            first[kind] = i;
        }
        waiters.last = i;
        ++waiters.count;
    }
    std::string text;
    for (size_t kind = 0; kind < kinds.size(); ++kind) {
        Waiters& waiters = kinds[kind];
        append_range_end(waiters, first[kind]);
        if (waiters.ranges.size() > 200) waiters.ranges = waiters.ranges.substr(0, 200) + "...";
        text += "\n  " + std::to_string(waiters.count) + " threads " + waiters.wait + ": " +
                waiters.ranges;
    }
    return text;
}

}  // namespace

Text format(const char* pattern, ...) {
    Text text;
    va_list arguments;
    va_start(arguments, pattern);
    std::vsnprintf(text.text, sizeof(text.text), pattern, arguments);
    va_end(arguments);
    return text;
}

Text thread_name(int thread) {
    const int width = machine.warp_size;
    if (width == 0) return format("thread %d", thread);
    return format("thread %d (warp %d, lane %d)", thread, thread / width, thread % width);
}

void fail(Error found, const Text& finding) {
    if (current == nullptr) {
        std::fprintf(stderr, "simt emulator: host code uses device memory: %s\n", finding.text);
        std::abort();
    }
    machine.failure = found;
    machine.finding = finding;
    machine.failed_thread = current->index;
    release(&machine.ended);
    yield();
    std::abort();
}

void write_report(Error found, const Text& finding, int thread) {
    const Dim3 b = machine.block;
    error = found;
    report = std::string(kNames[static_cast<int>(found)]) + " in kernel '" + machine.kernel +
             format("', block (%d, %d, %d)", b.x, b.y, b.z).text;
    if (thread >= 0) report += std::string(", ") + thread_name(thread).text;
    report += std::string(": ") + finding.text;
    const bool about_waits = found == Error::kDivergentBarrier ||
                             found == Error::kDivergentCollective || found == Error::kDeadlock;
    if (about_waits) report += describe_waits();
}

void trap() {
    fail(Error::kTrap, format("trap() was called"));
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
