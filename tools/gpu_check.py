#!/usr/bin/env python3
"""Verifies the GPU half on the machine it runs on and writes one result file; see
docs/gpu-check.md. `make gpu-check` calls it: first with --detect, before anything is installed,
then in the environment that the build made.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
EVERYTHING = ["-m", "slow or not slow"]  # instead of the default choice of pyproject.toml
SMALL = [
    "tests/device/test_sampling_gpu_bits.py::test_random_batches[V=31]",
    "tests/device/test_sampling_gpu_bits.py::test_random_batches[V=4097]",
    "tests/device/test_sampling_gpu_graphs.py::test_replay_of_row_operators",
    "tests/device/test_sampling_gpu_refusals.py::test_parameters_out_of_range_are_no_errors",
]


def gpus() -> list[str]:
    """Names of the GPUs that a driver offers; no Python package is needed."""
    found = []
    for command in (["nvidia-smi", "-L"], ["rocm-smi", "--showproductname"]):
        if shutil.which(command[0]):
            done = subprocess.run(command, capture_output=True, text=True)
            lines = done.stdout.splitlines() if done.returncode == 0 else []
            found += [line.strip() for line in lines if "GPU" in line]
    return found


def missing_gpu() -> str | None:
    """Why there is nothing to check; None if there is."""
    if gpus():
        return None
    if not any(pathlib.Path(node).exists() for node in ("/dev/nvidia0", "/dev/kfd")):
        return "no GPU on this machine: neither /dev/nvidia0 nor /dev/kfd exists"
    return "a GPU device file exists, but neither nvidia-smi nor rocm-smi lists a GPU"


class Report:
    """What ran and how it ended; written after every step, so that a crash leaves the rest."""

    def __init__(self, out: pathlib.Path):
        self.out = out
        self.result = {"gpus": gpus(), "environment": {}, "steps": []}

    def add(self, name: str, status: str, **more) -> None:
        self.result["steps"].append({"name": name, "status": status, **more})
        print(f"== {name}: {status} {more.get('detail', '')}", flush=True)
        self.write()

    def write(self) -> None:
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self.out.write_text(json.dumps(self.result, indent=1) + "\n")
        self.out.with_suffix(".md").write_text(self.markdown())

    def markdown(self) -> str:
        lines = ["# GPU check", "", *(f"- {gpu}" for gpu in self.result["gpus"])]
        lines += [f"- {key}: {value}" for key, value in self.result["environment"].items()]
        lines += ["", "| step | result | seconds | detail |", "|---|---|--:|---|"]
        for step in self.result["steps"]:
            detail = str(step.get("detail", "")).replace("|", "/").replace("\n", " ")
            lines.append(
                f"| {step['name']} | {step['status']} | {step.get('seconds', '')} | {detail} |"
            )
        for step in self.result["steps"]:
            if "table" in step:
                lines += ["", f"## {step['name']}", "", step["table"]]
        return "\n".join(lines) + "\n"

    def failed(self) -> list[str]:
        return [step["name"] for step in self.result["steps"] if step["status"] == "failed"]


def run(report: Report, name: str, command: list, **options) -> subprocess.CompletedProcess:
    """One step; its output goes to build/gpu-check/<name>.log and its end to the screen."""
    log = report.out.parent / "gpu-check" / f"{name.replace(' ', '_')}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    start = time.time()
    done = subprocess.run(
        [str(part) for part in command], cwd=ROOT, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, **options,
    )  # fmt: skip
    log.write_text(done.stdout)
    done.seconds = round(time.time() - start, 1)
    return done


def run_tests(report: Report, name: str, arguments: list, wrapper: list = ()) -> None:
    """pytest, with the counts of its JUnit file; failed also if nothing ran."""
    junit = report.out.parent / "gpu-check" / f"{name.replace(' ', '_')}.xml"
    junit.unlink(missing_ok=True)
    pytest = [sys.executable, "-m", "pytest", "-q", f"--junitxml={junit}", *arguments]
    done = run(report, name, [*wrapper, *pytest])
    counts = {}
    if junit.is_file():
        suite = xml.etree.ElementTree.parse(junit).getroot().find("testsuite")
        counts = {key: int(suite.get(key)) for key in ("tests", "failures", "errors", "skipped")}
    passed = counts.get("tests", 0) - sum(
        counts.get(k, 0) for k in ("failures", "errors", "skipped")
    )
    good = done.returncode == 0 and passed > 0
    detail = f"{passed} passed, " + ", ".join(f"{v} {k}" for k, v in counts.items() if k != "tests")
    tail = "" if good else "; " + " ".join(done.stdout.splitlines()[-3:])[-400:]
    report.add(
        name, "passed" if good else "failed", seconds=done.seconds, detail=detail + tail,
        counts=counts, command=" ".join(map(str, arguments)),
    )  # fmt: skip


def check_environment(report: Report) -> bool:
    """Records versions; whether torch and the build serve the GPU."""
    import torch

    import dspark_ext

    info = dspark_ext.build_info()
    environment = report.result["environment"]
    environment["torch"] = (
        f"{torch.__version__} (cuda {torch.version.cuda}, hip {torch.version.hip})"
    )
    environment["build"] = json.dumps(info)
    environment["commit"] = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    if not torch.cuda.is_available():
        report.add("environment", "failed", detail="torch sees no GPU (a CPU build of torch?)")
        return False
    for i in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(i)
        environment[f"device {i}"] = (
            f"{properties.name}, {properties.total_memory >> 30} GiB, "
            f"{getattr(properties, 'gcnArchName', f'sm_{properties.major}{properties.minor}')}"
        )
    capabilities = dspark_ext.capabilities("cuda")
    if not capabilities["available"]:
        report.add("environment", "failed", detail=capabilities["reason"])
        return False
    report.add("environment", "passed", detail=", ".join(capabilities["operators"]))
    return True


def check_sanitizers(report: Report) -> None:
    import torch

    if torch.version.hip:
        report.add(
            "sanitizers", "missing",
            detail="on ROCm they need code built with -fsanitize=address for xnack+",
        )  # fmt: skip
        return
    tool = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path=os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/bin"
    )
    for name in ("memcheck", "racecheck", "synccheck"):
        if tool is None:
            report.add(
                name, "missing", detail="compute-sanitizer is not on PATH nor in CUDA_HOME/bin"
            )
            continue
        wrapper = [tool, f"--tool={name}", "--error-exitcode=86", "--target-processes=all"]
        run_tests(report, name, SMALL, wrapper)


def run_benches(report: Report) -> None:
    for path in sorted((ROOT / "bench").glob("bench_*.py")):
        done = run(report, path.stem, [sys.executable, path])
        report.add(
            path.stem, "passed" if done.returncode == 0 else "failed", seconds=done.seconds,
            table=done.stdout[-20000:],
        )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--detect", action="store_true", help="only say whether there is a GPU")
    parser.add_argument("--out", type=pathlib.Path, default=BUILD / "gpu-check.json")
    parser.add_argument("--skip", nargs="*", default=[], help="suite device sanitizers benches")
    options = parser.parse_args()
    reason = missing_gpu()
    if reason:
        print(f"gpu-check: {reason}", file=sys.stderr)
        return 2
    if options.detect:
        print("\n".join(gpus()))
        return 0
    report = Report(options.out.resolve())
    if check_environment(report):
        steps = {
            "suite": lambda: run_tests(report, "suite", ["tests"]),
            "device": lambda: run_tests(report, "device", ["tests/device", *EVERYTHING]),
            "sanitizers": lambda: check_sanitizers(report),
            "benches": lambda: run_benches(report),
        }
        for name, step in steps.items():
            if name in options.skip:
                report.add(name, "missing", detail="--skip")
            else:
                step()
    failed = report.failed()
    print(f"gpu-check: {'failed: ' + ', '.join(failed) if failed else 'passed'}; {report.out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
