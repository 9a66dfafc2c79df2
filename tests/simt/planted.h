// Small kernels with a planted bug, each with a correct twin, and what running one came to.
#pragma once

#include <vector>

#include "backends/simt/backend.h"

namespace dspark::planted {

struct Outcome {
    int code;      // of the launch
    bool correct;  // the outputs are right; where the launch failed, of no meaning
};

// One kernel: `run` for warps of 4, 32 and 64.
struct Case {
    const char* name;
    Outcome (*run[3])();
};

// C has `static constexpr const char* kName` and `template <int W> static Outcome run()`.
template <class C>
Case make_case() {
    return {C::kName, {C::template run<4>, C::template run<32>, C::template run<64>}};
}

std::vector<Case> synchronisation_cases();
std::vector<Case> divergence_cases();
std::vector<Case> memory_cases();
std::vector<Case> counting_cases();
std::vector<Case> collective_cases();
std::vector<Case> vocabulary_cases();
std::vector<Case> matrix_cases();
std::vector<Case> wide_matrix_cases();
std::vector<Case> warpgroup_cases();
std::vector<Case> ordering_cases();
std::vector<Case> native_cases();  // bugs that only a sanitizer sees

// nullptr: there is none of this name.
const Case* find_case(const char* name);
// Starts with fresh counters and no error.
Outcome run_case(const Case& chosen, int warp_size);

constexpr int kBlock = 256;

// A vector that is registered as device memory for as long as it lives, 128-byte aligned.
template <class T>
class DeviceVector {
  public:
    DeviceVector(const char* name, int size, int flags = emulator::kReadWrite)
        : storage_(size + 2 * kMargin), size_(size) {
        const uintptr_t begin = reinterpret_cast<uintptr_t>(storage_.data());
        data_ = reinterpret_cast<T*>((begin + 128) / 128 * 128);
        emulator::register_buffer(data_, size * static_cast<int64_t>(sizeof(T)), name, flags);
    }
    ~DeviceVector() { emulator::unregister_buffer(data_); }
    DeviceVector(const DeviceVector&) = delete;

    T* data() { return data_; }
    int size() const { return size_; }
    T& operator[](int i) { return data_[i]; }

  private:
    static constexpr int kMargin = 128 / sizeof(T) + 16;
    std::vector<T> storage_;
    int size_;
    T* data_;
};

// Whether f(i) holds for i in [0, count).
template <class Predicate>
bool all_of(int count, Predicate f) {
    for (int i = 0; i < count; ++i) {
        if (!f(i)) return false;
    }
    return true;
}

}  // namespace dspark::planted
