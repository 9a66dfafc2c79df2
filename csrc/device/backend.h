// What a compiler calls things. The only vendor switch of the portable code under csrc/device and
// csrc/ops/*/{args,algorithm,kernel}.h: everything above it is plain C++.
#pragma once

#ifndef DSPARK_ISA
#error "compile with -DDSPARK_ISA=<name>: device code lives in namespace dspark::DSPARK_ISA"
#endif

#if defined(__CUDACC__) || defined(__HIPCC__)
#define DSPARK_DEVICE __host__ __device__ __forceinline__
#else
#define DSPARK_DEVICE inline __attribute__((always_inline))
#endif
