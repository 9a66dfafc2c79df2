#!/usr/bin/env python
"""Many seeded calls of every public function, in processes of their own.

    python tests/fuzz/run.py                      10^6 calls
    python tests/fuzz/run.py --calls 20000 --function schedule
    python tests/fuzz/run.py --seed 7 --first 123456 --calls 1     one call again

Call number i of a seed is a function of the two, so that what a report names can be repeated. A
process takes a chunk of the numbers; one that crashes or hangs is reported with the call it was at.
Exit status 1 if there is anything to report.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import gc
import json
import mmap
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHUNK = 50_000
HANG_SECONDS = 120  # without a call coming to its end
MOST_MEMORY = 16 << 30  # address space of a process: what asks for more is refused
MOST_FINDINGS = 20  # of a chunk
# What a chunk may hold more at its end than after its first fifth.
MOST_GROWTH = {"allocated": 2 << 20, "resident": 64 << 20}


class _Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost",
    )]  # fmt: skip


def memory() -> dict:
    """Bytes that malloc has handed out, and that are resident."""
    gc.collect()
    libc = ctypes.CDLL(None)
    libc.malloc_trim(0)
    libc.mallinfo2.restype = _Mallinfo2
    info = libc.mallinfo2()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {"allocated": info.uordblks + info.hblkhd, "resident": pages * mmap.PAGESIZE}


def work(seed: int, first: int, calls: int, function: str | None, progress) -> dict:
    """Calls first .. first + calls - 1 in this process."""
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    import torch

    torch.set_num_threads(1)
    import driver
    import oracle

    made = driver.Driver(seed, function)
    counts, findings, before = collections.Counter(), [], None
    start = time.process_time()
    for index in range(first, first + calls):
        progress(index)
        try:
            name, outcome = made.run(index)
            counts[f"{name.partition('#')[0]} {outcome}"] += 1
        except oracle.FindingError as finding:
            if len(findings) < MOST_FINDINGS:
                findings.append(str(finding))
        if index == first + calls // 5:
            made.forget()
            before = memory()
    seconds = time.process_time() - start
    made.forget()
    after = memory()
    growth = {key: after[key] - before[key] for key in after} if before else {}
    return {"counts": counts, "findings": findings, "growth": growth, "seconds": seconds}


def worker(options) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open(options.progress, "r+b") as file:
        shared = mmap.mmap(file.fileno(), 8)

        def progress(index: int) -> None:
            shared[:8] = index.to_bytes(8, "little")

        result = work(options.seed, options.first, options.calls, options.function, progress)
    print(json.dumps(result))


class Chunk:
    """A process with calls to make."""

    def __init__(self, seed: int, first: int, calls: int, function: str | None):
        self.seed, self.first, self.calls = seed, first, calls
        self.file = tempfile.NamedTemporaryFile()
        self.file.write(first.to_bytes(8, "little"))
        self.file.flush()
        self.seen, self.since = None, time.monotonic()
        command = [sys.executable, __file__, "--progress", self.file.name, "--seed", str(seed)]
        command += ["--first", str(first), "--calls", str(calls)]
        command += ["--function", function] if function else []
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)

    def at(self) -> int:
        return int.from_bytes(Path(self.file.name).read_bytes(), "little")

    def is_over(self) -> bool:
        at = self.at()
        if at != self.seen:
            self.seen, self.since = at, time.monotonic()
        if self.process.poll() is None and time.monotonic() - self.since > HANG_SECONDS:
            self.process.kill()
            self.process.wait()
            self.hung = True
        return self.process.poll() is not None

    hung = False

    def result(self) -> dict:
        """What `work` returned; a crash or a hang as a finding, and the number to go on with."""
        self.log.seek(0)
        text, code = self.log.read(), self.process.returncode
        if code == 0:
            found = json.loads(text.strip().splitlines()[-1])
            for key, most in MOST_GROWTH.items():
                grown = found["growth"].get(key, 0)
                if self.calls >= CHUNK and grown > most:
                    found["findings"].append(
                        f"seed {self.seed}, calls from {self.first}: {key} memory grew by {grown}"
                    )
            return found | {"next": self.first + self.calls}
        how = f"no end within {HANG_SECONDS} s" if self.hung else f"exit status {code}"
        if code < 0 and not self.hung:
            how = f"killed by {signal.Signals(-code).name}"
        at = self.at()
        finding = (
            f"seed {self.seed}, call {at}: {how}; again: python {sys.argv[0]} --seed {self.seed} "
            f"--first {at} --calls 1\n{text[-2000:]}"
        )
        return {"counts": {}, "findings": [finding], "growth": {}, "seconds": 0.0, "next": at + 1}


def run(seed: int, first: int, calls: int, jobs: int, function: str | None = None) -> dict:
    """All of it; {"counts", "findings", "growth", "seconds", "calls"}."""
    end = first + calls
    waiting = [(at, min(at + CHUNK, end)) for at in range(first, end, CHUNK)]
    running: list[tuple[Chunk, int]] = []
    counts, findings, seconds = collections.Counter(), [], 0.0
    growth = collections.Counter()
    while waiting or running:
        while waiting and len(running) < jobs:
            begin, stop = waiting.pop(0)
            running.append((Chunk(seed, begin, stop - begin, function), stop))
        time.sleep(0.05)
        for item in [item for item in running if item[0].is_over()]:
            running.remove(item)
            found = item[0].result()
            counts.update(found["counts"])
            findings += found["findings"]
            seconds += found["seconds"]
            for key, value in found["growth"].items():
                growth[key] = max(growth[key], value)
            if found["next"] < item[1]:
                waiting.append((found["next"], item[1]))
    made = sum(counts.values())
    return {
        "counts": counts, "findings": findings, "growth": growth, "seconds": seconds, "calls": made
    }  # fmt: skip


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=10**6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--function", help="only this one")
    parser.add_argument("--progress", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = parse()
    if options.progress:
        worker(options)
        return 0
    found = run(options.seed, options.first, options.calls, options.jobs, options.function)
    for name in sorted({key.split()[0] for key in found["counts"]}):
        results, errors = (found["counts"].get(f"{name} {kind}", 0) for kind in ("result", "error"))
        print(f"{name:28} {results:8} results {errors:8} errors")
    for finding in found["findings"]:
        print(finding)
    rate = found["calls"] / max(found["seconds"], 1e-9)
    growth = ", ".join(f"{key} {value:+d} bytes" for key, value in found["growth"].items())
    print(
        f"{found['calls']} calls, {len(found['findings'])} findings, {rate:.0f} calls per second "
        f"of processor time, most growth of a process: {growth or 'not measured'}"
    )
    return 1 if found["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
