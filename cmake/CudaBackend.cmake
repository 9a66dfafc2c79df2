# The CUDA half: nvcc, found as $CUDACXX, on PATH or in /usr/local/cuda. Included by Backends.cmake.
#
# Code for sm_80 serves all of 8.x, 90a is Hopper's, 100f and 120f serve the families 10.x and 12.x;
# the PTX of compute_80 is for everything else.
set(DSPARK_CUDA_ARCHITECTURES "" CACHE STRING
    "CUDA architectures, such as 90a-real;80-virtual (default: all that the compiler knows)")
set(nvcc nvcc)
if(NOT "$ENV{CUDACXX}" STREQUAL "")
  set(nvcc $ENV{CUDACXX})
endif()
find_program(DSPARK_NVCC ${nvcc} HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda
             PATH_SUFFIXES bin)

# -gencode arguments of "80-real" (machine code), "80-virtual" (PTX) or "80" (both).
function(dspark_gencode result)
  set(arguments "")
  foreach(architecture IN LISTS ARGN)
    if(NOT architecture MATCHES "^([0-9]+[af]?)(-real|-virtual)?$")
      message(FATAL_ERROR "dspark_ext: DSPARK_CUDA_ARCHITECTURES: expected items such as 80-real, "
                          "80-virtual or 80, got ${architecture}.")
    endif()
    set(number ${CMAKE_MATCH_1})
    if(NOT CMAKE_MATCH_2 STREQUAL "-virtual")
      list(APPEND arguments -gencode=arch=compute_${number},code=sm_${number})
    endif()
    if(NOT CMAKE_MATCH_2 STREQUAL "-real")
      list(APPEND arguments -gencode=arch=compute_${number},code=compute_${number})
    endif()
  endforeach()
  set(${result} ${arguments} PARENT_SCOPE)
endfunction()

# The same items for those of TORCH_CUDA_ARCH_LIST: 8.6 is machine code, 8.6+PTX that and PTX. The
# code for 9.0 is that of sm_90a, which every GPU of 9.0 is.
function(dspark_torch_architectures result)
  set(items "")
  foreach(item IN LISTS ARGN)
    if(NOT item MATCHES "^([0-9]+)\\.([0-9])([af]?)(\\+PTX)?$")
      message(FATAL_ERROR "dspark_ext: TORCH_CUDA_ARCH_LIST: expected items such as 8.0, 9.0a or "
                          "12.0+PTX, got ${item}. DSPARK_CUDA_ARCHITECTURES goes before it.")
    endif()
    set(number ${CMAKE_MATCH_1}${CMAKE_MATCH_2})
    if(number STREQUAL "90")
      list(APPEND items 90a-real)
    else()
      list(APPEND items ${number}${CMAKE_MATCH_3}-real)
    endif()
    if(CMAKE_MATCH_4)
      list(APPEND items ${number}${CMAKE_MATCH_3}-virtual)
    endif()
  endforeach()
  list(REMOVE_DUPLICATES items)
  set(${result} ${items} PARENT_SCOPE)
endfunction()

macro(dspark_find_cuda)
  execute_process(COMMAND ${DSPARK_NVCC} --version OUTPUT_VARIABLE version ERROR_QUIET)
  string(REGEX MATCH "V([0-9.]+)" version "${version}")
  set(DSPARK_CUDA_VERSION "${CMAKE_MATCH_1}")
  set(DSPARK_CUDA_COMPILER_ID "nvcc ${DSPARK_CUDA_VERSION}")
  set(default 80-real 90a-real 100f-real 120f-real 80-virtual)
  if(DSPARK_CUDA_VERSION VERSION_LESS 12.9)  # the first to know family-specific targets
    set(default 80-real 90a-real 80-virtual)
  endif()
  dspark_architectures(CUDA TORCH_CUDA_ARCH_LIST ${default})
  if(torch_list)
    set(DSPARK_CUDA_ASKED TORCH_CUDA_ARCH_LIST)
    dspark_torch_architectures(DSPARK_CUDA_ARCHITECTURES ${torch_list})
  endif()
  # nvcc may be a wrapper script; TOP is where the toolkit that it runs lies.
  execute_process(COMMAND ${DSPARK_NVCC} --dryrun -c ${DSPARK_TRY_SOURCE} -o try_gpu.o
                  OUTPUT_QUIET ERROR_VARIABLE dryrun)
  string(REGEX MATCH "TOP=([^\n]*)" top "${dryrun}")
  string(STRIP "${CMAKE_MATCH_1}" top)
  find_library(DSPARK_CUDART_STATIC cudart_static NO_DEFAULT_PATH
               HINTS ${top}/lib64 ${top}/lib
                     ${top}/targets/${CMAKE_SYSTEM_PROCESSOR}-linux/lib ${top}/targets/sbsa-linux/lib)
endmacro()

# Contraction off and IEEE division, square root and denormals: docs/numerics.md. A register spill is
# an error.
set(DSPARK_CUDA_NUMERICS --fmad=false --ftz=false --prec-div=true --prec-sqrt=true)
if(NOT DSPARK_NVCC)
  # A list of torch's may stand in the environment of any machine; what names this half asks for it.
  dspark_architectures(CUDA TORCH_CUDA_ARCH_LIST)
  dspark_not_built(CUDA "no CUDA compiler found (${nvcc}): put nvcc on PATH or set CUDACXX")
else()
  dspark_find_cuda()
  dspark_gencode(gencode ${DSPARK_CUDA_ARCHITECTURES})
  set(warpgroups "")
  if(90a-real IN_LIST DSPARK_CUDA_ARCHITECTURES OR 90a IN_LIST DSPARK_CUDA_ARCHITECTURES)
    set(warpgroups -DDSPARK_CUDA_WARPGROUPS)  # the build has code for them
  endif()
  set(host_compiler ${CMAKE_CXX_COMPILER})
  if(CMAKE_CXX_COMPILER MATCHES "ccache$")  # CXX="ccache g++"
    separate_arguments(words UNIX_COMMAND "${CMAKE_CXX_COMPILER_ARG1}")
    list(GET words 0 host_compiler)
  endif()
  if(NOT "$ENV{CUDAHOSTCXX}" STREQUAL "")
    set(host_compiler $ENV{CUDAHOSTCXX})
  endif()
  set(DSPARK_CUDA_COMMAND
      ${DSPARK_NVCC} -ccbin ${host_compiler} -std=c++17 -O3 -lineinfo ${gencode}
      ${DSPARK_CUDA_NUMERICS} --expt-relaxed-constexpr -Xfatbin=-compress-all
      -Xptxas=-v,-warn-spills,-Werror -Werror=all-warnings
      -Xcompiler=-fPIC,-fvisibility=hidden,-ffp-contract=off,-Wall,-Wextra,-Werror
      -DNDEBUG -DDSPARK_ISA=cuda ${warpgroups} ${DSPARK_GPU_INCLUDES})
  dspark_try_gpu(error ${DSPARK_CUDA_COMMAND} -include backends/cuda.h)
  list(JOIN DSPARK_CUDA_ARCHITECTURES "," wanted)
  if(error)
    dspark_not_built(CUDA "${DSPARK_NVCC} does not compile for ${wanted}: ${error}")
  elseif(NOT DSPARK_CUDART_STATIC)
    dspark_not_built(CUDA "libcudart_static.a is missing in the toolkit ${top}")
  else()
    set(DSPARK_CUDA_BUILD ON)
    set(DSPARK_CUDA_STATE "built")
    set(DSPARK_CUDA_LIBRARIES ${DSPARK_CUDART_STATIC} rt pthread dl)
  endif()
endif()
