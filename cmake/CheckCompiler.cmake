# Stops for a C++ compiler that cannot build this, and for flags that would change results.
set(oldest "")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(oldest 11)  # the first with -march=x86-64-v3
elseif(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  set(oldest 14)
endif()
if(oldest AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS oldest)
  message(FATAL_ERROR "dspark_ext: ${CMAKE_CXX_COMPILER} is ${CMAKE_CXX_COMPILER_ID} "
                      "${CMAKE_CXX_COMPILER_VERSION}, g++ >= 11 or clang >= 14 is needed. "
                      "Choose another with the environment variable CXX.")
endif()

# At the link they would even switch denormals off, for the whole process.
foreach(variable CMAKE_CXX_FLAGS CMAKE_MODULE_LINKER_FLAGS)
  if(" ${${variable}} " MATCHES
     " (-Ofast|-ffast-math|-funsafe-math-optimizations|-ffinite-math-only|-fassociative-math|-freciprocal-math|-fno-signed-zeros) ")
    message(FATAL_ERROR "dspark_ext: ${variable} has ${CMAKE_MATCH_1}, which changes results "
                        "(docs/numerics.md). Take it out of CXXFLAGS or LDFLAGS.")
  endif()
endforeach()
