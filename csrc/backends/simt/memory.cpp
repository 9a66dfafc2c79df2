// Buffers of device memory and the checks of accesses to them.
#include "backends/simt/memory.h"

#include <algorithm>
#include <memory>

#include "backends/simt/machine.h"

namespace dspark::emulator {
namespace {

using Buffers = std::vector<std::unique_ptr<Buffer>>;
Buffers buffers;         // by address, without overlap
Buffer* recent[2] = {};  // the two found last

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
    buffer->counters = &counters_of_buffer(name);
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

namespace {

// The checks that need no shadow.
Buffer& check_place(const LoggedAccess& access, int alignment) {
    const int bytes = static_cast<int>(access.bytes);
    if (current != nullptr) step(*current);
    Buffer* buffer = find_buffer(access.address, access.address + access.bytes);
    if (current == nullptr || buffer == nullptr) fail_bounds(access.address, bytes, access.store);
    if (access.address % static_cast<uintptr_t>(alignment) != 0) {
        fail(Error::kUnaligned, format("%s at %s, whose address is no multiple of %d",
                                       describe_access(access.store, bytes).text,
                                       describe_place(*buffer, access.address).text, alignment));
    }
    if (access.store && buffer->read_only) {
        fail(Error::kReadOnly, format("%s at %s", describe_access(access.store, bytes).text,
                                      describe_place(*buffer, access.address).text));
    }
    if (!buffer->written.empty()) check_written(*buffer, access.address, bytes, access.store);
    return *buffer;
}

// The same; counts the access.
Buffer& check_access(const LoggedAccess& access, int alignment) {
    Buffer& buffer = check_place(access, alignment);
    if (machine.settings.level >= Level::kCounters) count_access(*current, access, buffer);
    return buffer;
}

void check_shadow(Buffer& buffer, uintptr_t address, int bytes, bool store) {
    if (machine.settings.level < Level::kFull || buffer.read_only) return;
    if (buffer.shadow.bytes() == 0) buffer.shadow.reset(buffer.end - buffer.begin);
    const Conflict conflict = buffer.shadow.check(
        address - buffer.begin, static_cast<size_t>(bytes), access_of(*current, store, false));
    if (conflict.kind != Conflict::kNone) {
        fail_conflict(conflict, store, bytes, describe_place(buffer, address));
    }
}

}  // namespace

void on_global(const void* pointer, int bytes, int alignment, bool store) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    Buffer& buffer = check_access(
        {__builtin_return_address(0), address, static_cast<uint32_t>(bytes), store}, alignment);
    check_shadow(buffer, address, bytes, store);
}

void on_load_once(const void* pointer) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    constexpr int kBytes = 16;
    Buffer& buffer =
        check_access({__builtin_return_address(0), address, kBytes, false, true}, kBytes);
    check_shadow(buffer, address, kBytes, false);
}

void on_bulk_load(const void* pointer, int bytes) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    constexpr int kAlignment = 16;
    Buffer& buffer =
        check_place({nullptr, address, static_cast<uint32_t>(bytes), false}, kAlignment);
    if (machine.settings.level >= Level::kCounters) {
        machine.counters->bytes_loaded += static_cast<uint64_t>(bytes);
        machine.counters->bulk_bytes += static_cast<uint64_t>(bytes);
        machine.counters->bulk_copies += 1;
        buffer.counters->bytes_loaded += static_cast<uint64_t>(bytes);
    }
    check_shadow(buffer, address, bytes, false);
}

void on_atomic(const void* pointer, bool loads, bool stores, const void* site) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    constexpr int kBytes = sizeof(uint32_t);
    if (loads) check_access({site, address, kBytes, false}, kBytes);
    if (stores) check_access({site, address, kBytes, true}, kBytes);
}

}  // namespace dspark::emulator
