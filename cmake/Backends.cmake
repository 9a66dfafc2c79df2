# Decides which GPU backends are built and says so. Sets DSPARK_CUDA_STATE and DSPARK_HIP_STATE, the
# words that build_info() reports.
if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
  message(FATAL_ERROR "dspark_ext: only Linux is supported, this is ${CMAKE_SYSTEM_NAME}.")
endif()
foreach(backend CUDA HIP)
  string(TOUPPER "${DSPARK_${backend}}" wanted)
  if(wanted STREQUAL "ON")
    message(FATAL_ERROR "dspark_ext: DSPARK_${backend}=ON, but version ${DSPARK_VERSION} has no "
                        "${backend} kernels yet. Use AUTO or OFF for a CPU build.")
  elseif(wanted STREQUAL "AUTO")
    set(DSPARK_${backend}_STATE "not built: version ${DSPARK_VERSION} has no ${backend} kernels yet")
  elseif(wanted STREQUAL "OFF")
    set(DSPARK_${backend}_STATE "not built: DSPARK_${backend}=OFF")
  else()
    message(FATAL_ERROR "dspark_ext: DSPARK_${backend}: expected AUTO, ON or OFF, "
                        "got ${DSPARK_${backend}}.")
  endif()
  message(STATUS "dspark_ext: ${backend} backend ${DSPARK_${backend}_STATE}")
endforeach()
