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

namespace DSPARK_ISA {

DSPARK_DEVICE float fma(float a, float b, float c) {
    return __builtin_fmaf(a, b, c);
}
DSPARK_DEVICE double fma(double a, double b, double c) {
    return __builtin_fma(a, b, c);
}
DSPARK_DEVICE float rint(float a) {
    return __builtin_rintf(a);
}
DSPARK_DEVICE double rint(double a) {
    return __builtin_rint(a);
}

}  // namespace DSPARK_ISA
}  // namespace dspark
