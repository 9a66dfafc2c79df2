// The part of the device vocabulary that is the same text for every GPU compiler. Included by a
// shim after it has defined DSPARK_DEVICE and DSPARK_HOST_DEVICE.
#pragma once

#include <cstdint>

namespace dspark {

template <class T>
using Global = T*;

template <class To, class From>
DSPARK_HOST_DEVICE To* global_cast(From* from) {
    return reinterpret_cast<To*>(from);
}

template <class T, int N>
struct alignas(sizeof(T) * N % 16 == 0 ? 16 : alignof(T)) SharedArray {
    T element[N];

    DSPARK_DEVICE T& operator[](int i) { return element[i]; }
    DSPARK_DEVICE const T& operator[](int i) const { return element[i]; }

    // Four elements of 4 bytes in one access; i is a multiple of 4.
    DSPARK_DEVICE void store4(int i, T a, T b, T c, T d) {
        *reinterpret_cast<Four*>(&element[i]) = {a, b, c, d};
    }
    DSPARK_DEVICE void load4(int i, T& a, T& b, T& c, T& d) const {
        const Four four = *reinterpret_cast<const Four*>(&element[i]);
        a = four.a, b = four.b, c = four.c, d = four.d;
    }

  private:
    struct alignas(sizeof(T) == 4 ? 16 : alignof(T)) Four {
        T a, b, c, d;
    };
};

namespace DSPARK_ISA {

struct Dim3 {
    int x, y, z;
};

struct alignas(16) Bytes16 {
    uint32_t word[4];
};

}  // namespace DSPARK_ISA
}  // namespace dspark
