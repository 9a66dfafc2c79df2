// What the libFuzzer targets share: arrays of exactly their size, so that the address sanitizer
// sees one element too many, and hostile numbers.
#pragma once

#include <fuzzer/FuzzedDataProvider.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>

namespace fuzzed {

inline void require(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "wrong: %s\n", what);
    std::abort();
}

template <class T>
struct Array {
    explicit Array(int64_t count)
        : count(count), data(new T[static_cast<size_t>(count < 0 ? 0 : count)]()) {}
    operator T*() const { return data.get(); }
    T& operator[](int64_t i) const { return data[static_cast<size_t>(i)]; }
    int64_t count;
    std::unique_ptr<T[]> data;
};

// Mostly small, in [low, high]; now and then anything.
template <class T>
T number(FuzzedDataProvider& in, T low, T high) {
    const int kind = in.ConsumeIntegralInRange<int>(0, 15);
    if (kind > 0) return in.ConsumeIntegralInRange<T>(low, high);
    return in.ConsumeIntegral<T>();
}

template <class T>
Array<T> numbers(FuzzedDataProvider& in, int64_t count, T low, T high) {
    Array<T> values(count);
    for (int64_t i = 0; i < count; ++i) values[i] = number<T>(in, low, high);
    return values;
}

// Any bits: NaN, infinities and denormals among them.
inline Array<float> floats(FuzzedDataProvider& in, int64_t count) {
    Array<float> values(count);
    for (int64_t i = 0; i < count; ++i) {
        const uint32_t bits = in.ConsumeIntegral<uint32_t>();
        __builtin_memcpy(&values[i], &bits, sizeof(bits));
    }
    return values;
}

}  // namespace fuzzed
