// The part of the device vocabulary that plain host code needs: one thread, ordinary memory.
#pragma once

#define DSPARK_DEVICE inline __attribute__((always_inline))
#define DSPARK_HOST_DEVICE DSPARK_DEVICE

namespace dspark {

// Pointer to memory of the device. The emulator puts a checked pointer in its place.
template <class T>
using Global = T*;

template <class To, class From>
DSPARK_DEVICE To* global_cast(From* from) {
    return reinterpret_cast<To*>(from);
}

}  // namespace dspark
