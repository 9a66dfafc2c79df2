# Finds the include and lib folders of an installed torch without importing it, so that an isolated
# `pip install .` sees the torch of the environment it installs into. Sets DSPARK_TORCH_DIR.
if(NOT DSPARK_TORCH_DIR)
  find_package(Python REQUIRED COMPONENTS Interpreter)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c [=[
import importlib.util, pathlib, sysconfig
spec = importlib.util.find_spec("torch")
places = [pathlib.Path(spec.origin).parent] if spec and spec.origin else []
places += [pathlib.Path(sysconfig.get_paths()[key]) / "torch" for key in ("platlib", "purelib")]
for place in places:
    if (place / "include/torch/csrc/stable/library.h").exists():
        print(place, end="")
        break
]=]
    OUTPUT_VARIABLE DSPARK_TORCH_DIR)
endif()
if(NOT EXISTS "${DSPARK_TORCH_DIR}/include/torch/csrc/stable/library.h")
  message(FATAL_ERROR "dspark_ext: torch >= 2.10 was not found. Install it first:\n"
                      "    pip install 'torch>=2.10'\n"
                      "then repeat. To use another torch, set -DDSPARK_TORCH_DIR=<site-packages>/torch.")
endif()
message(STATUS "dspark_ext: torch at ${DSPARK_TORCH_DIR}")
