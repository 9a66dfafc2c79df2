"""Building the host SIMT emulator (csrc/backends/simt) and driving it from Python."""

import contextlib
import ctypes
import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import sys

import processor_time

ROOT = pathlib.Path(__file__).resolve().parents[2]
KERNELS = "kernels", "csrc/backends/simt"  # the launch sequences of the operators
SELFTEST = "selftest", "tests/simt"  # planted kernels

BOUNDS, COUNTERS, FULL = 0, 1, 2  # levels of checking
READ_WRITE, READ_ONLY, UNINITIALISED = 0, 1, 2  # flags of buffers

LaunchHook = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_int),
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_size_t,
)


def find_program(name):
    """Path of a program on PATH or beside the interpreter, or None."""
    return shutil.which(name) or shutil.which(name, path=str(pathlib.Path(sys.executable).parent))


def run_quietly(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


@contextlib.contextmanager
def locked(folder):
    """One process at a time: test processes that run side by side share the builds."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        yield


def build(project, variant="none"):
    """Builds `project` (KERNELS or SELFTEST); returns the folder.

    Variants: none, address or thread (sanitizers), paths (DSPARK_SIMT_CALL_PATHS), ucontext.
    """
    name, source = project
    folder = ROOT / "build" / f"simt-{name}-{variant}"
    options = {
        "paths": "-DDSPARK_SIMT_CALL_PATHS=ON",
        "ucontext": "-DDSPARK_SIMT_UCONTEXT=ON",
    }
    cmake = find_program("cmake")
    if cmake is None:
        raise RuntimeError("cmake not found: pip install cmake")
    option = options.get(variant, f"-DSANITIZE={variant}")
    command = [cmake, "-S", str(ROOT / source), "-B", str(folder), option]
    with locked(folder):
        if not (folder / "CMakeCache.txt").is_file() and find_program("ninja"):
            command += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={find_program('ninja')}"]
        with processor_time.counted_as("builds of the emulator"):
            run_quietly(command)
            run_quietly([cmake, "--build", str(folder), "--parallel", str(os.cpu_count() or 2)])
    return folder


class EmulatorError(RuntimeError):
    """What the emulator found wrong with a launch; `code` as in csrc/backends/simt/emulator.h."""

    def __init__(self, code, report):
        super().__init__(report)
        self.code = code


class Emulator:
    """A shared library with the emulator in it; `library` holds its functions.

    Arrays are numpy arrays or CPU tensors, contiguous. What is registered must stay alive.
    """

    def __init__(self, path):
        self.library = ctypes.CDLL(str(path))
        for name in ("last_report", "error_text", "counters_json"):
            getattr(self.library, f"dspark_simt_{name}").restype = ctypes.c_char_p
        self._hook = None

    def _call(self, name, *arguments):
        return getattr(self.library, f"dspark_simt_{name}")(*arguments)

    def configure(
        self, *, level=FULL, seed=0, warp_size=32, poison=0xFFC0DEAD, access_limit=1 << 22,
        multiprocessors=2, cache=0,
    ):  # fmt: skip
        self._call("set_level", ctypes.c_int(level))
        self._call("set_seed", ctypes.c_uint64(seed))
        self._call("set_warp_size", ctypes.c_int(warp_size))
        self._call("set_multiprocessors", ctypes.c_int(multiprocessors))
        self._call("set_cache", ctypes.c_int64(cache))
        self._call("set_poison", ctypes.c_uint32(poison))
        self._call("set_access_limit", ctypes.c_int64(access_limit))

    def set_warpgroups(self, has_them):
        self._call("set_warpgroups", ctypes.c_int(has_them))

    def set_scaled_matrix_unit(self, has_one):
        self._call("set_scaled_matrix_unit", ctypes.c_int(has_one))

    def register(self, array, name, flags=READ_WRITE):
        address, size = memory_of(array)
        if self._call("register_buffer", address, ctypes.c_int64(size), name.encode(), flags):
            raise ValueError(f"{name} overlaps a registered buffer")

    def unregister(self, array):
        address, size = memory_of(array)
        if size and self._call("unregister_buffer", address):
            raise ValueError("not registered")

    def unregister_all(self):
        self._call("unregister_all_buffers")

    @contextlib.contextmanager
    def buffers(self, **arrays):
        """Registers name=array or name=(array, flags) for the body of a with statement."""
        pairs = {name: a if isinstance(a, tuple) else (a, READ_WRITE) for name, a in arrays.items()}
        done = []
        try:
            for name, (array, flags) in pairs.items():
                self.register(array, name, flags)
                done.append(array)
            yield
        finally:
            for array in done:
                self.unregister(array)

    def check(self, code):
        """Raises EmulatorError unless `code`, which a launch returned, is 0."""
        if code != 0:
            raise EmulatorError(code, self.error_text(code))

    def error_text(self, code):
        return self._call("error_text", ctypes.c_int(code)).decode()

    def last_report(self):
        return self._call("last_report").decode()

    def last_error(self):
        return self._call("last_error")

    def clear_error(self):
        self._call("clear_error")

    def counters(self):
        """{"kernels": {name: {counter: value}}, "buffers": {name: {...}}} since the last reset."""
        return json.loads(self._call("counters_json").decode())

    def reset_counters(self):
        self._call("reset_counters")

    def set_launch_hook(self, function):
        """function(name, grid, threads, args: bytes) -> code takes the place of kernels."""

        def called(name, grid, threads, args, size):
            return function(name.decode(), tuple(grid[:3]), threads, ctypes.string_at(args, size))

        self._hook = LaunchHook(called) if function is not None else None
        self._call("set_launch_hook", self._hook)


def memory_of(array):
    """Address and bytes of a contiguous numpy array or tensor."""
    if hasattr(array, "data_ptr"):
        assert array.is_contiguous()
        return ctypes.c_void_p(array.data_ptr()), array.numel() * array.element_size()
    assert array.flags["C_CONTIGUOUS"]
    return ctypes.c_void_p(array.ctypes.data), array.nbytes
