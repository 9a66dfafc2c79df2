#!/usr/bin/env python
"""The libFuzzer targets of the CPU kernels, with the address and undefined-behaviour sanitizers.

    make fuzz                        each target, 10^6 runs
    python tests/fuzz/libfuzzer.py fuzz_moe --runs 100000

They need clang with libFuzzer (Debian: clang, libclang-rt-dev); $FUZZ_CXX names another one. A
finding is written to the folder of the target under build/fuzz and repeated by giving that file to
the program.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SOURCES = {
    "fuzz_verify": "csrc/ops/verify/cpu.cpp",
    "fuzz_moe": "csrc/ops/moe/cpu.cpp",
    "fuzz_formats": "csrc/ops/formats/cpu.cpp",
}
NAMES = ("clang++", *(f"clang++-{version}" for version in range(24, 13, -1)))


def find_compiler(folder: Path) -> str | None:
    """A clang++ that links libFuzzer, or None."""
    folder.mkdir(parents=True, exist_ok=True)
    probe = folder / "probe.cpp"
    probe.write_text(
        "#include <fuzzer/FuzzedDataProvider.h>\n"
        'extern "C" int LLVMFuzzerTestOneInput(const uint8_t*, size_t) { return 0; }\n'
    )
    for name in (os.environ.get("FUZZ_CXX"), *NAMES):
        if name and shutil.which(name):
            command = [name, "-fsanitize=fuzzer,address", str(probe), "-o", str(folder / "probe")]
            if subprocess.run(command, capture_output=True).returncode == 0:
                return name
    return None


def build(compiler: str, target: str, folder: Path) -> Path:
    program = folder / target
    command = [
        *(compiler, "-std=c++17", "-O1", "-g", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"),
        *("-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"),
        *("-DDSPARK_ISA=baseline", f"-I{ROOT / 'csrc'}", f"-I{HERE}"),
        *(str(HERE / f"{target}.cpp"), str(ROOT / SOURCES[target]), "-o", str(program)),
    ]
    subprocess.run(command, check=True)
    return program


def seeds(folder: Path) -> Path:
    """A few inputs to begin with: zeros, ones, and random bytes of several lengths."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(1)
    inputs = [bytes(64), b"\xff" * 200, *(rng.randbytes(size) for size in (40, 150, 600, 2000))]
    for number, data in enumerate(inputs):
        (folder / f"seed{number}").write_bytes(data)
    return folder


def run(program: Path, runs: int) -> subprocess.CompletedProcess:
    corpus = seeds(program.parent / f"{program.name}_corpus")
    command = [
        *(str(program), str(corpus), f"-runs={runs}", "-seed=1", "-max_len=4096"),
        *("-timeout=30", "-rss_limit_mb=2048", f"-artifact_prefix={corpus.parent}/"),
        "-print_final_stats=1",
    ]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", default=[*SOURCES], metavar="target")
    parser.add_argument("--runs", type=int, default=10**6)
    options = parser.parse_args()
    folder = ROOT / "build" / "fuzz"
    compiler = find_compiler(folder)
    if compiler is None:
        print("no clang++ with libFuzzer: install clang and libclang-rt-dev, or set FUZZ_CXX")
        return 2
    failed = 0
    for target in options.targets:
        done = run(build(compiler, target, folder), options.runs)
        lines = [line for line in done.stdout.splitlines() if "stat::" in line or " DONE " in line]
        print(f"== {target}: exit status {done.returncode}", *lines, sep="\n")
        if done.returncode:
            print(done.stdout[-6000:])
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
