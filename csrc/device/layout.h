// Dividing one block of device memory among arrays.
#pragma once

#include <cstdint>

#include "device/backend.h"

namespace dspark {

// Hands out aligned pieces of a block; with a null block it only adds up.
class Layout {
  public:
    explicit Layout(Global<char> base) : base_(base) {}

    template <class T>
    Global<T> take(int64_t count) {
        const int64_t begin = bytes_;
        bytes_ += (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
        return base_ == nullptr ? Global<T>(nullptr) : global_cast<T>(base_ + begin);
    }
    int64_t bytes() const { return bytes_; }

  private:
    Global<char> base_;
    int64_t bytes_ = 0;
};

}  // namespace dspark
