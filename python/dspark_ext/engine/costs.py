"""What a step costs: measured when an engine needs it, and kept in a file."""

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from .. import verify
from .drafter import DraftBatch, Drafter
from .graphs import DraftGraphs, TargetGraphs
from .target import Bounds, Target, TargetBatch

# progress(done, total, what): called after each of `total` measurements
Progress = Callable[[int, int, str], None]

_WARMUP, _REPEATS = 1, 5
_FORMAT, _VERSION = "dspark_ext.engine.cost_tables", 1


def device_of(target: Target) -> torch.device:
    """Where a target computes: its `device`, or that of its `embedding`, or the CPU."""
    device = getattr(target, "device", None)
    if device is None:
        device = getattr(getattr(target, "embedding", None), "device", "cpu")
    return torch.device(device)


def profile_step(
    target: Target,
    drafter: Drafter | None,
    num_drafts: int,
    max_requests: int | None = None,
    *,
    progress: Progress | None = None,
    graphs: tuple[TargetGraphs, DraftGraphs | None] | None = None,
) -> verify.CostTable:
    """Measure what a step costs: the target pass by its number of rows, up to verified blocks of
    `max_requests` requests (default: all slots), and the drafter by the number of requests.
    Overwrites their caches.

    progress  called after each measurement
    graphs    passes run from these; then the table has their sizes and rounds up to them
    """
    slots = target.max_requests if max_requests is None else max_requests
    device = device_of(target)
    most = slots * (num_drafts + 1)
    rows = [count for count in (*range(1, 9), 16, 32, 64, 128, 256) if count < most] + [most]
    rounding = {}
    run_target, run_drafter = target, drafter
    if graphs is not None:
        run_target, run_drafter = graphs[0], graphs[1] or drafter
        rows = [size for size in run_target.sizes if size <= most]
        rounding = {"interpolation": "step", "linear_above": rows[-1]}
    requests = [count for count in (1, 2, 4, 8, 16, 32, 64) if count < slots] + [slots]
    calls = len(rows) + (0 if drafter is None else len(requests))
    report = _counter(progress, calls * (_WARMUP + _REPEATS))

    length = min(target.max_len, 2 * num_drafts + 3)
    _reserve((target, drafter), slots, length)

    @torch.inference_mode()
    def pass_of(count: int) -> None:
        index = torch.arange(count, device=device)
        positions = (index // slots).clamp(max=target.max_len - 1)
        zeros, bounds = torch.zeros_like(index), Bounds(length, num_drafts + 1)
        run_target.forward(TargetBatch(zeros, positions, index % slots, index, bounds))
        report(f"target pass of {count} rows")

    @torch.inference_mode()
    def drafts_for(count: int) -> None:
        index = torch.arange(count, device=device)
        zeros = torch.zeros_like(index)
        features = torch.zeros(count, drafter.num_features, dtype=torch.float32, device=device)
        drafter.append(features, zeros, index, zeros)
        temperature = torch.ones(count, dtype=torch.float32, device=device)
        batch = DraftBatch(zeros, zeros + 1, index, temperature, index)
        run_drafter.draft(batch, min(num_drafts, drafter.block_size), "probabilistic")
        report(f"drafts for {count} requests")

    table = verify.profile_cost_table(
        pass_of,
        rows,
        warmup=_WARMUP,
        repeats=_REPEATS,
        **rounding,
        request_step_fn=None if drafter is None else drafts_for,
        request_counts=None if drafter is None else requests,
        device=device,
    )
    for owner in (target, drafter):
        if hasattr(owner, "release"):
            for slot in range(slots):
                owner.release(slot)
    return table


def _reserve(owners, slots: int, length: int) -> None:
    for owner in owners:
        if hasattr(owner, "reserve"):
            for slot in range(slots):
                if not owner.reserve(slot, length):
                    raise ValueError(
                        f"dspark_ext.engine.profile_step: the cache has no room for {slots} "
                        f"requests of {length} positions"
                    )


def cached_profile(
    path: str | Path,
    target: Target,
    drafter: Drafter | None,
    num_drafts: int,
    *,
    progress: Progress | None = None,
    graphs: tuple[TargetGraphs, DraftGraphs | None] | None = None,
) -> verify.CostTable:
    """`profile_step`, or what an earlier call kept in the JSON file `path` for this target, drafter
    and machine. The file is made, or the entry added. ValueError for a file that is something else.
    """
    about = {
        "target": describe(target),
        "drafter": None if drafter is None else describe(drafter),
        "num_drafts": num_drafts,
        "graphs": graphs is not None,
        "machine": machine(device_of(target)),
    }
    key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
    content = _read(Path(path))
    entry = content["tables"].get(key)
    if entry is not None:
        return verify.CostTable.from_dict(entry["table"], device=device_of(target))
    table = profile_step(target, drafter, num_drafts, progress=progress, graphs=graphs)
    content["tables"][key] = {"about": about, "table": table.to_dict()}
    _write(Path(path), content)
    return table


def describe(model) -> dict:
    """What tells two targets or drafters apart, as far as their cost goes: class, plain settings,
    numbers of layers, dtypes and shapes of matrices that are attributes."""
    facts: dict = {"class": f"{type(model).__module__}.{type(model).__qualname__}"}
    for name, value in sorted(vars(model).items()):
        if isinstance(value, bool | int | float | str):
            facts[name] = value
        elif isinstance(value, torch.Tensor):
            facts[name] = f"{value.dtype} {list(value.shape)}"
        elif isinstance(value, list | tuple):
            facts[name] = len(value)
    return facts


def machine(device: torch.device) -> dict:
    """The processor, its threads, and the accelerator if `device` is one."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if "model name" in line)
    except (OSError, StopIteration):
        pass
    facts = {"processor": name, "threads": torch.get_num_threads(), "torch": torch.__version__}
    if device.type == "cuda":
        facts["device"] = torch.cuda.get_device_name(device)
    return facts


def _counter(progress: Progress | None, total: int) -> Callable[[str], None]:
    done = 0

    def report(what: str) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total, what)

    return report


def _read(path: Path) -> dict:
    if not path.exists():
        return {"format": _FORMAT, "version": _VERSION, "tables": {}}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        known = content["format"] == _FORMAT and content["version"] == _VERSION
        known = known and all("table" in each for each in content["tables"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"dspark_ext.engine: cost_table_cache: {path} is no file of cost tables ({error!r}); "
            "remove it or give another path"
        ) from None
    if not known:
        raise ValueError(
            f"dspark_ext.engine: cost_table_cache: {path} has another format than {_FORMAT} "
            f"version {_VERSION}; remove it or give another path"
        )
    return content


def _write(path: Path, content: dict) -> None:
    """Whole or not at all: other processes may read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=2) + "\n")
    os.replace(part, path)
