#include "backends/simt/memory.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>

#include "backends/simt/machine.h"

namespace dspark::emulator {
namespace {

using Buffers = std::vector<std::unique_ptr<Buffer>>;
Buffers buffers;         // by address, without overlap
Buffer* recent[2] = {};  // the two found last
std::map<std::string, Counters> kernel_counters;
std::map<std::string, BufferCounters> buffer_counters;

Buffers::iterator first_after(uintptr_t address) {
    return std::upper_bound(buffers.begin(), buffers.end(), address,
                            [](uintptr_t a, const auto& buffer) { return a < buffer->begin; });
}

bool contains(const Buffer& buffer, uintptr_t begin, uintptr_t end) {
    return begin >= buffer.begin && end <= buffer.end;
}

Buffer* find_buffer(uintptr_t begin, uintptr_t end) {
    for (Buffer* buffer : recent) {
        if (buffer != nullptr && contains(*buffer, begin, end)) return buffer;
    }
    const auto after = first_after(begin);
    if (after == buffers.begin() || !contains(**(after - 1), begin, end)) return nullptr;
    recent[1] = recent[0];
    return recent[0] = (after - 1)->get();
}

Text describe_access(bool store, int bytes) {
    return format("%s of %d bytes", store ? "store" : "load", bytes);
}

Text describe_place(const Buffer& buffer, uintptr_t address) {
    return format("byte %lld of buffer '%s' (%lld bytes)",
                  static_cast<long long>(address - buffer.begin), buffer.name.c_str(),
                  static_cast<long long>(buffer.end - buffer.begin));
}

// The buffer that a wrong address is probably meant to lie in.
const Buffer* nearest_buffer(uintptr_t address) {
    const auto after = first_after(address);
    const Buffer* above = after == buffers.end() ? nullptr : after->get();
    const Buffer* below = after == buffers.begin() ? nullptr : (after - 1)->get();
    if (above == nullptr || below == nullptr) return above != nullptr ? above : below;
    const bool inside = address < below->end;
    return inside || address - below->end < above->begin - address ? below : above;
}

[[noreturn]] void fail_bounds(uintptr_t address, int bytes, bool store) {
    const Text what = describe_access(store, bytes);
    const Buffer* nearest = nearest_buffer(address);
    if (address < 4096) {
        fail(Error::kOutOfBounds,
             format("%s at a null pointer plus %d", what.text, static_cast<int>(address)));
    }
    if (nearest == nullptr) {
        fail(Error::kOutOfBounds, format("%s, but no buffer is registered", what.text));
    }
    fail(Error::kOutOfBounds,
         format("%s at %s, the nearest buffer", what.text, describe_place(*nearest, address).text));
}

[[noreturn]] void fail_conflict(const Conflict& conflict, bool store, int bytes, const Text& at) {
    const Text what = describe_access(store, bytes);
    const char* other = conflict.other_stored ? "stores" : "loads";
    switch (conflict.kind) {
        case Conflict::kUninitialised:
            fail(Error::kUninitialised,
                 format("%s at %s, which nothing has stored to", what.text, at.text));
        case Conflict::kBlocks:
            fail(Error::kRace, format("%s at %s: another block of this launch %s there", what.text,
                                      at.text, other));
        default:
            fail(Error::kRace,
                 format("%s at %s: %s %s there, and nothing orders the two", what.text, at.text,
                        thread_name(conflict.other_thread).text, other));
    }
}

void check_written(Buffer& buffer, uintptr_t address, int bytes, bool store) {
    uint8_t* written = buffer.written.data() + (address - buffer.begin);
    if (store) {
        std::fill(written, written + bytes, uint8_t{1});
    } else if (std::find(written, written + bytes, 0) != written + bytes) {
        fail_conflict({Conflict::kUninitialised, false, -1}, store, bytes,
                      describe_place(buffer, address));
    }
}

void count_access(Thread& thread, const LoggedAccess& access, Buffer& buffer) {
    Counters& counters = *machine.counters;
    (access.store ? counters.stores : counters.loads) += 1;
    (access.store ? counters.bytes_stored : counters.bytes_loaded) += access.bytes;
    (access.store ? buffer.counters->bytes_stored : buffer.counters->bytes_loaded) += access.bytes;
    counters.accesses_16 += access.bytes == 16;
    thread.global_log.push_back(access);
}

}  // namespace

bool register_buffer(const void* memory, int64_t bytes, const char* name, int flags) {
    if (bytes == 0) return true;
    const uintptr_t begin = reinterpret_cast<uintptr_t>(memory);
    const uintptr_t end = begin + static_cast<uintptr_t>(bytes);
    if (bytes < 0 || begin == 0) return false;
    auto at = first_after(begin);
    if (at != buffers.end() && (*at)->begin < end) return false;
    if (at != buffers.begin() && (*(at - 1))->end > begin) {
        --at;
        if ((*at)->begin != begin || (*at)->end != end) return false;
        unregister_buffer(memory);
        at = first_after(begin);
    }
    auto buffer = std::make_unique<Buffer>();
    buffer->begin = begin;
    buffer->end = end;
    buffer->name = name;
    buffer->read_only = (flags & kReadOnly) != 0;
    if ((flags & kUninitialised) != 0) buffer->written.resize(static_cast<size_t>(bytes));
    buffer->counters = &buffer_counters[name];
    buffers.insert(at, std::move(buffer));
    return true;
}

bool unregister_buffer(const void* memory) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(memory);
    const auto after = first_after(begin);
    if (after == buffers.begin() || (*(after - 1))->begin != begin) return false;
    recent[0] = recent[1] = nullptr;
    buffers.erase(after - 1);
    return true;
}

void unregister_all_buffers() {
    recent[0] = recent[1] = nullptr;
    buffers.clear();
}

void reset_shadows() {
    machine.shared_shadow.reset(0);
    for (auto& buffer : buffers) buffer->shadow.reset(0);
}

void on_global(const void* pointer, int bytes, int alignment, bool store) {
    const void* site = __builtin_return_address(0);
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    if (current != nullptr) step(*current);
    Buffer* buffer = find_buffer(address, address + static_cast<uintptr_t>(bytes));
    if (current == nullptr || buffer == nullptr) fail_bounds(address, bytes, store);
    if (address % static_cast<uintptr_t>(alignment) != 0) {
        fail(Error::kUnaligned, format("%s at %s, whose address is no multiple of %d",
                                       describe_access(store, bytes).text,
                                       describe_place(*buffer, address).text, alignment));
    }
    if (store && buffer->read_only) {
        fail(Error::kReadOnly, format("%s at %s", describe_access(store, bytes).text,
                                      describe_place(*buffer, address).text));
    }
    if (!buffer->written.empty()) check_written(*buffer, address, bytes, store);
    if (machine.settings.level < Level::kCounters) return;
    count_access(*current, {site, address, static_cast<uint32_t>(bytes), store}, *buffer);
    if (machine.settings.level < Level::kFull || buffer->read_only) return;
    if (buffer->shadow.bytes() == 0) buffer->shadow.reset(buffer->end - buffer->begin);
    const Conflict conflict = buffer->shadow.check(
        address - buffer->begin, static_cast<size_t>(bytes), access_of(*current, store, false));
    if (conflict.kind != Conflict::kNone) {
        fail_conflict(conflict, store, bytes, describe_place(*buffer, address));
    }
}

Access access_of(const Thread& thread, bool store, bool shared) {
    Access access;
    access.store = store;
    access.thread = static_cast<uint16_t>(thread.index);
    access.warp_shift = static_cast<uint16_t>(
        machine.warp_size == 0 ? 16 : __builtin_ctz(static_cast<unsigned>(machine.warp_size)));
    access.time = thread.time;
    access.barrier = machine.barrier_time;
    access.block = machine.block_time;
    access.since = shared ? machine.block_time : machine.launch_time;
    access.must_be_written = shared;
    return access;
}

// ---- shared memory ------------------------------------------------------------------------------

void* shared_memory(size_t bytes, size_t alignment) {
    Machine& m = machine;
    if (m.shared_ready) {
        acquire(&m.shared_filled);
        if (bytes != m.shared_bytes) {
            fail(Error::kBadLaunch, format("a kernel declares two objects in shared memory"));
        }
        return m.shared;
    }
    if (bytes != m.shared_bytes) {
        std::free(m.shared);
        // Not rounded up, so that the address sanitizer sees the end of the object.
        void* memory = nullptr;
        if (posix_memalign(&memory, std::max<size_t>(alignment, 16), bytes) != 0) memory = nullptr;
        m.shared = static_cast<char*>(memory);
        m.shared_bytes = bytes;
    }
    for (size_t i = 0; i < bytes; ++i) {
        m.shared[i] = static_cast<char>(m.settings.poison >> (8 * (i % 4)));
    }
    if (m.settings.level >= Level::kFull && m.shared_shadow.bytes() != bytes) {
        m.shared_shadow.reset(bytes);
    }
    m.counters->shared_bytes = std::max<uint64_t>(m.counters->shared_bytes, bytes);
    m.shared_ready = true;
    release(&m.shared_filled);
    return m.shared;
}

void fail_shared_index(int64_t index, int64_t size) {
    fail(Error::kOutOfBounds, format("index %lld of an array of %lld in shared memory",
                                     static_cast<long long>(index), static_cast<long long>(size)));
}

void on_shared(const void* pointer, int bytes, int alignment, bool store) {
    const void* site = __builtin_return_address(0);
    const Machine& m = machine;
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    const uintptr_t begin = reinterpret_cast<uintptr_t>(m.shared);
    if (current == nullptr) fail_bounds(address, bytes, store);
    step(*current);
    if (!m.shared_ready || address < begin ||
        address + static_cast<uintptr_t>(bytes) > begin + m.shared_bytes) {
        fail(Error::kOutOfBounds, format("an array that is not part of the block's shared memory"));
    }
    const size_t offset = address - begin;
    if (address % static_cast<uintptr_t>(alignment) != 0) {
        fail(Error::kUnaligned,
             format("%s at byte %zu of shared memory", describe_access(store, bytes).text, offset));
    }
    if (m.settings.level < Level::kCounters) return;
    (store ? m.counters->shared_stores : m.counters->shared_loads) += 1;
    current->shared_log.push_back({site, offset, static_cast<uint32_t>(bytes), store});
    if (m.settings.level < Level::kFull) return;
    const Conflict conflict = machine.shared_shadow.check(offset, static_cast<size_t>(bytes),
                                                          access_of(*current, store, true));
    if (conflict.kind != Conflict::kNone) {
        fail_conflict(conflict, store, bytes, format("byte %zu of shared memory", offset));
    }
}

// ---- counters -----------------------------------------------------------------------------------

Counters& counters_of(const std::string& kernel) {
    return kernel_counters[kernel];
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
    if (global) count_global(logs, lanes, *machine.counters);
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
    const auto quoted = [](const std::string& name) {
        std::string out = "\"";
        for (const char c : name) {
            if (c == '"' || c == '\\') out += '\\';
            out += c;
        }
        return out + "\": ";
    };
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
