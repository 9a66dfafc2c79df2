# The sources that every GPU compiler gets: the launch sequence of each family, with its kernels, and
# the table of them. A family is listed here as soon as it has a launch.cu.
set(DSPARK_GPU_SOURCES "")
if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/csrc/ops/sampling/launch.cu)
  set(DSPARK_GPU_SOURCES csrc/host/gpu_table.cu csrc/ops/sampling/launch.cu)
endif()
