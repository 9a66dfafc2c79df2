// What a compiler calls things: the only vendor switch of the portable code under csrc/device and
// csrc/ops/*/{args,algorithm,kernel}.h. Each shim provides the same vocabulary; what it means is
// written at csrc/backends/simt/backend.h, the host emulator.
//
// Device code lives in namespace dspark::DSPARK_ISA, so that backends can share a binary. Host code
// that only wants the structs leaves DSPARK_ISA undefined.
#pragma once

#ifndef DSPARK_ISA
#define DSPARK_ISA glue
#endif

#if defined(__HIP__)
#include "hip/backend.h"
#elif defined(__CUDACC__)
#include "backends/cuda.h"
#elif defined(DSPARK_SIMT)
#include "backends/simt/backend.h"
#else
#include "backends/cpu/backend.h"
#endif
