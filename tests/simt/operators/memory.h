// The memory that the kernels of one call may touch, each array a buffer of its own. Outputs and
// scratch hold garbage before.
#pragma once

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "backends/simt/emulator.h"
#include "device/backend.h"

namespace dspark {

class Memory {
  public:
    ~Memory() { emulator::unregister_all_buffers(); }

    template <class T>
    void input(Global<const T> data, int64_t count, const char* name) {
        if (data != nullptr) add(data.address(), count * sizeof(T), name, emulator::kReadOnly);
    }
    template <class T>
    void output(Global<T> data, int64_t count, const char* name) {
        if (data != nullptr) garbage(data.address(), count * sizeof(T), name);
    }
    // What kernels read and store to; it keeps its contents.
    template <class T>
    void updated(Global<T> data, int64_t count, const char* name) {
        add(data.address(), count * sizeof(T), name, emulator::kReadWrite);
    }
    void scratch(void* data, int64_t bytes) { garbage(data, bytes, "workspace"); }

    // Makes the emulator aware of it. Inputs may overlap each other.
    void register_all() {
        emulator::unregister_all_buffers();
        std::sort(buffers_.begin(), buffers_.end(),
                  [](const Buffer& a, const Buffer& b) { return a.begin < b.begin; });
        for (size_t i = 0; i < buffers_.size(); ++i) {
            Buffer merged = buffers_[i];
            const auto overlaps = [&](const Buffer& next) {
                return next.begin < merged.end && next.flags == merged.flags;
            };
            while (i + 1 < buffers_.size() && overlaps(buffers_[i + 1])) {
                merged.end = std::max(merged.end, buffers_[++i].end);
            }
            if (!emulator::register_buffer(merged.begin, merged.end - merged.begin, merged.name,
                                           merged.flags)) {
                throw std::runtime_error(std::string("dspark_simt: the memory of ") + merged.name +
                                         " overlaps another argument");
            }
        }
    }

  protected:
    void add(const void* data, size_t bytes, const char* name, int flags) {
        const char* begin = static_cast<const char*>(data);
        if (bytes > 0) buffers_.push_back({begin, begin + bytes, name, flags});
    }

  private:
    struct Buffer {
        const char* begin;
        const char* end;
        const char* name;
        int flags;
    };

    void garbage(void* data, size_t bytes, const char* name) {
        if (bytes > 0) std::memset(data, 0x7F, bytes);
        add(data, bytes, name, emulator::kUninitialised);
    }
    std::vector<Buffer> buffers_;
};

}  // namespace dspark
