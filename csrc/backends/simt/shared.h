// Memory of one thread block as kernels of the emulator see it: arrays whose accesses are checked.
#pragma once

#include <cstdint>
#include <type_traits>

#include "backends/simt/element.h"
#include "backends/simt/emulator.h"

namespace dspark {

template <class T>
using SharedElement = CheckedElement<T, emulator::on_shared>;

// An array of N elements inside the object that DSPARK_SHARED names.
template <class T, int N>
struct alignas(sizeof(T) * N % 16 == 0 ? 16 : alignof(T)) SharedArray {
    static_assert(std::is_trivial_v<T>, "shared memory is not constructed");
    T element[N];

    SharedElement<T> operator[](int64_t i) { return SharedElement<T>(at(i, 1)); }
    T operator[](int64_t i) const {
        return SharedElement<T>(const_cast<SharedArray*>(this)->at(i, 1));
    }

    // Four elements of 4 bytes in one access; i is a multiple of 4.
    void store4(int64_t i, T a, T b, T c, T d) {
        T* four = at(i, 4);
        emulator::on_shared(four, 4 * sizeof(T), 4 * sizeof(T), true);
        four[0] = a, four[1] = b, four[2] = c, four[3] = d;
    }
    void load4(int64_t i, T& a, T& b, T& c, T& d) const {
        const T* four = const_cast<SharedArray*>(this)->at(i, 4);
        emulator::on_shared(four, 4 * sizeof(T), 4 * sizeof(T), false);
        a = four[0], b = four[1], c = four[2], d = four[3];
    }

  private:
    T* at(int64_t i, int count) {
        if (i < 0 || i + count > N) emulator::fail_shared_index(i, N);
        return element + i;
    }
};

}  // namespace dspark
