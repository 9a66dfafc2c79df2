"""The emulator's interface for callers of the shared library."""

import ctypes

import numpy as np
import pytest
from emulator import FULL, READ_ONLY, UNINITIALISED, EmulatorError
from planted_cases import OUT_OF_BOUNDS, RACE


def run(emulator, case, warp_size=32):
    return emulator.library.simt_selftest_run(case.encode(), warp_size)


def test_success_leaves_no_report(emulator):
    assert run(emulator, "collectives") == 0
    assert emulator.last_report() == "" and emulator.last_error() == 0
    assert emulator.error_text(0) == "success"


def test_error_is_named(emulator):
    code = run(emulator, "missing_barrier")
    assert code == emulator.last_error() == RACE
    assert emulator.error_text(code) == emulator.last_report()
    assert emulator.error_text(OUT_OF_BOUNDS) == "access out of bounds"
    assert emulator.error_text(99) == "unknown error"
    with pytest.raises(EmulatorError, match="nothing orders the two") as caught:
        emulator.check(code)
    assert caught.value.code == code


def test_level_is_a_run_time_choice(emulator):
    emulator.configure(level=FULL - 1)
    assert run(emulator, "missing_second_barrier") in (0, -1)
    emulator.configure(level=FULL)
    assert run(emulator, "missing_second_barrier") == RACE


def test_counters(emulator):
    assert emulator.counters() == {"kernels": {}, "buffers": {}}
    assert run(emulator, "coalesced") == 0
    counters = emulator.counters()
    assert counters["kernels"]["pattern"]["bytes_loaded"] == 1024
    assert counters["buffers"] == {
        "from": {"bytes_loaded": 1024, "bytes_stored": 0},
        "to": {"bytes_loaded": 0, "bytes_stored": 1024},
    }
    emulator.reset_counters()
    assert emulator.counters() == {"kernels": {}, "buffers": {}}


def test_hook_takes_the_place_of_kernels(emulator):
    calls = []

    def hook(*call):
        calls.append(call)
        return 17

    emulator.set_launch_hook(hook)
    assert run(emulator, "coalesced") == 17
    ((name, grid, threads, args),) = calls
    assert (name, grid, threads) == ("pattern", (1, 1, 1), 256)
    assert len(args) == 16  # two plain pointers
    first, second = np.frombuffer(args, dtype=np.uint64)
    assert first % 128 == second % 128 == 0 and first != second
    emulator.set_launch_hook(None)
    assert run(emulator, "coalesced") == 0


def test_overlapping_buffers_are_refused(emulator):
    memory = np.zeros(64, dtype=np.float32)
    emulator.register(memory, "whole")
    emulator.register(memory, "whole again", READ_ONLY)
    for part in (memory[:8], memory[8:16], memory[56:]):
        with pytest.raises(ValueError, match="overlaps"):
            emulator.register(part, "part")
    emulator.unregister(memory)
    with pytest.raises(ValueError, match="not registered"):
        emulator.unregister(memory)
    emulator.register(memory[:8], "first", UNINITIALISED)
    emulator.register(memory[8:16], "second")
    emulator.register(memory[:0], "empty")


def test_buffers_are_registered_for_a_while(emulator):
    memory = np.zeros(64, dtype=np.float32)
    with emulator.buffers(memory=memory), pytest.raises(ValueError, match="overlaps"):
        emulator.register(memory[:8], "part")
    emulator.register(memory[:8], "part")


def test_schedules_differ(emulator):
    """A kernel whose result depends on the schedule gives several."""
    reports = set()
    for seed in range(6):
        emulator.configure(seed=seed)
        run(emulator, "missing_barrier")
        reports.add(emulator.last_report())
    assert len(reports) > 2


def test_a_schedule_repeats(emulator):
    for seed in range(4):
        emulator.configure(seed=seed)
        run(emulator, "missing_barrier")
        first = emulator.last_report()
        run(emulator, "missing_barrier")
        assert emulator.last_report() == first


def test_poison_is_a_choice(emulator):
    """Without checks, a kernel that reads uninitialised memory finds the pattern there."""
    emulator.configure(level=0, poison=int(np.float32(201.0).view(np.uint32)))
    assert run(emulator, "unwritten_shared") == 0  # thread 200 expects 201
    emulator.configure(level=0)
    assert run(emulator, "unwritten_shared") == -1


def test_no_such_case(emulator):
    assert run(emulator, "nothing") == -2
    assert isinstance(emulator.library, ctypes.CDLL)
