# Finds the include and lib folders of an installed torch without importing it. Sets DSPARK_TORCH_DIR.
#
# torch is not a build requirement (pip would fetch another, much larger one into the build's private
# environment), so an isolated build has to look into the environment it installs into: pip hides that
# behind PYTHONPATH, hence the second look without it.
set(torch_header include/torch/csrc/stable/library.h)  # torch >= 2.9
find_package(Python REQUIRED COMPONENTS Interpreter)

if(NOT DSPARK_TORCH_DIR)
  set(DSPARK_TORCH_DIR "$ENV{DSPARK_TORCH_DIR}")
endif()
if(NOT DSPARK_TORCH_DIR)
  string(CONCAT find_torch "import importlib.util as u; s = u.find_spec('torch'); "
                           "print(s.submodule_search_locations[0] if s else '', end='')")
  foreach(environment "" "--unset=PYTHONPATH")
    execute_process(
      COMMAND ${CMAKE_COMMAND} -E env ${environment} ${Python_EXECUTABLE} -c "${find_torch}"
      OUTPUT_VARIABLE DSPARK_TORCH_DIR)
    if(DSPARK_TORCH_DIR)
      break()
    endif()
  endforeach()
elseif(NOT EXISTS "${DSPARK_TORCH_DIR}/version.py")
  message(FATAL_ERROR "dspark_ext: DSPARK_TORCH_DIR=${DSPARK_TORCH_DIR}: expected the folder of an "
                      "installed torch, as <site-packages>/torch; it has no version.py.")
endif()

set(torch_version "")
if(EXISTS "${DSPARK_TORCH_DIR}/version.py")
  file(STRINGS "${DSPARK_TORCH_DIR}/version.py" torch_version REGEX "^__version__")
  string(REGEX MATCH "[0-9]+\\.[0-9]+" torch_version "${torch_version}")
endif()
if(torch_version AND torch_version VERSION_LESS 2.10)
  message(FATAL_ERROR "dspark_ext: torch >= 2.10 is needed, ${DSPARK_TORCH_DIR} is torch "
                      "${torch_version}. Upgrade it:\n    ${Python_EXECUTABLE} -m pip install 'torch>=2.10'")
elseif(NOT EXISTS "${DSPARK_TORCH_DIR}/${torch_header}")
  message(FATAL_ERROR
    "dspark_ext: no torch found for ${Python_EXECUTABLE}. Install it first, then repeat:\n"
    "    ${Python_EXECUTABLE} -m pip install 'torch>=2.10'\n"
    "If torch is installed, the build runs in an environment of its own that cannot see it (uv, "
    "python -m build): build without isolation (--no-build-isolation, with scikit-build-core and "
    "pybind11 installed), or set the environment variable DSPARK_TORCH_DIR=<site-packages>/torch.")
endif()
message(STATUS "dspark_ext: torch ${torch_version} at ${DSPARK_TORCH_DIR}")
