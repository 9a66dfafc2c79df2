"""Builds of the emulator, one per session; rebuilt where sources have changed."""

import json
import subprocess

import pytest
from emulator import SELFTEST, Emulator, build, find_program


def selftest_folder(variant="none"):
    for program in ("cmake", "c++"):
        if find_program(program) is None:
            pytest.skip(f"building the emulator needs {program}")
    return build(SELFTEST, variant)


class Selftest:
    """The program of planted kernels."""

    def __init__(self, folder):
        self.program = folder / "simt_selftest"

    def start(self, level, warp_size, seeds, *cases):
        command = [self.program, level, warp_size, ",".join(map(str, seeds)), *cases]
        return subprocess.run(
            [str(a) for a in command], capture_output=True, text=True, timeout=600
        )

    def run(self, level, warp_size, seeds, *cases):
        """What came of each case and seed, as a list of dicts."""
        done = self.start(level, warp_size, seeds, *cases)
        assert done.returncode == 0, done.stderr[-4000:]
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="session")
def selftest():
    return Selftest(selftest_folder())


@pytest.fixture(scope="session")
def address_selftest():
    return Selftest(selftest_folder("address"))


@pytest.fixture(scope="session")
def thread_selftest():
    return Selftest(selftest_folder("thread"))


@pytest.fixture(scope="session")
def paths_selftest():
    return Selftest(selftest_folder("paths"))


@pytest.fixture(scope="session")
def ucontext_selftest():
    return Selftest(selftest_folder("ucontext"))


@pytest.fixture
def emulator(selftest):
    emulator = Emulator(selftest.program.parent / "libsimt_selftest_library.so")
    emulator.configure()
    emulator.clear_error()
    emulator.reset_counters()
    yield emulator
    emulator.set_launch_hook(None)
    emulator.unregister_all()
