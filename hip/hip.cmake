# The HIP half: any clang with the AMDGPU target, the header hip/hip_runtime_api.h and libamdhip64.
# Included by cmake/Backends.cmake. hip/README.md tells why nothing else of ROCm is needed.
set(DSPARK_HIP_ARCHITECTURES "" CACHE STRING
    "HIP architectures (default: gfx90a;gfx942;gfx950;gfx1100)")
dspark_architectures(HIP PYTORCH_ROCM_ARCH gfx90a gfx942 gfx950 gfx1100)
set(rocm_root /opt/rocm)
if(NOT "$ENV{ROCM_PATH}" STREQUAL "")
  set(rocm_root $ENV{ROCM_PATH})
endif()

# Candidates: what the user names; else ROCm's own and the distribution's, from new to old.
if(NOT "$ENV{HIPCXX}" STREQUAL "")
  set(candidates $ENV{HIPCXX})
else()
  set(candidates ${rocm_root}/llvm/bin/clang++ ${rocm_root}/lib/llvm/bin/clang++)
  foreach(number RANGE 30 18 -1)
    list(APPEND candidates clang++-${number})
  endforeach()
  list(APPEND candidates clang++)
endif()

find_path(DSPARK_HIP_INCLUDE hip/hip_runtime_api.h HINTS ${rocm_root}/include)
find_library(DSPARK_HIP_LIBRARY amdhip64 HINTS ${rocm_root}/lib)

# Contraction off, IEEE division, square root and denormals: docs/numerics.md. No function of a
# device library is called, and none is linked. Every function is inlined. A stack frame on the
# device, that is a register spill or a local object that is not held in registers, is an error, and
# it is not moved to shared memory either. ROCm 6 and all later ones load code object version 5.
set(DSPARK_HIP_NUMERICS -ffp-contract=off -fhip-fp32-correctly-rounded-divide-sqrt
                       -fno-gpu-flush-denormals-to-zero)
set(offload "")
foreach(architecture IN LISTS DSPARK_HIP_ARCHITECTURES)
  list(APPEND offload --offload-arch=${architecture})
endforeach()
set(DSPARK_HIP_FLAGS
    -x hip -std=c++17 -O3 ${offload} ${DSPARK_HIP_NUMERICS} -nogpuinc -nogpulib
    -mllvm -amdgpu-early-inline-all=true -mllvm -amdgpu-function-calls=false
    -mllvm -disable-promote-alloca-to-lds=true -Xarch_device -Wframe-larger-than=0
    -mcode-object-version=5 -fPIC -fvisibility=hidden
    -Wall -Wextra -Werror -DNDEBUG -DDSPARK_ISA=hip -D__HIP_PLATFORM_AMD__
    -DDSPARK_EXPORT_GPU_TABLE=dspark_hip_backend ${DSPARK_GPU_INCLUDES})

# The first candidate that compiles for all architectures; else what the best of them said.
set(DSPARK_HIP_COMMAND "")
set(first_error "no HIP compiler found: install clang (or ROCm), or set HIPCXX")
if(NOT DSPARK_HIP_INCLUDE)
  set(first_error "hip/hip_runtime_api.h not found: install the HIP headers or set ROCM_PATH")
elseif(NOT DSPARK_HIP_LIBRARY)
  set(first_error "libamdhip64 not found: install the HIP runtime, or set ROCM_PATH")
else()
  foreach(candidate IN LISTS candidates)
    unset(compiler)
    find_program(compiler ${candidate} NO_CACHE)
    if(NOT compiler)
      continue()
    endif()
    set(command ${compiler} ${DSPARK_HIP_FLAGS} -idirafter ${DSPARK_HIP_INCLUDE})
    dspark_try_gpu(error ${command} -include hip/backend.h)
    if(NOT error)
      set(DSPARK_HIP_COMMAND ${command})
      break()
    endif()
    list(JOIN DSPARK_HIP_ARCHITECTURES "," wanted)
    if(torch_list)  # on a machine with a compiler nothing of torch's list is dropped either
      set(DSPARK_HIP_ASKED PYTORCH_ROCM_ARCH)
    endif()
    if(first_error MATCHES "^no HIP compiler")
      set(first_error "${compiler} does not compile for ${wanted}: ${error}")
    endif()
  endforeach()
endif()

if(DSPARK_HIP_COMMAND)
  execute_process(COMMAND ${compiler} --version OUTPUT_VARIABLE version)
  string(REGEX MATCH "^[^\n]*clang version [^ \n]+" DSPARK_HIP_COMPILER_ID "${version}")
  set(DSPARK_HIP_BUILD ON)
  set(DSPARK_HIP_STATE "built")
else()
  dspark_not_built(HIP "${first_error}")
endif()
