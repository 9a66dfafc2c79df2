"""Runs the same work by several contenders in turns, after checking that they agree.

A file of this folder describes `Work`s and calls `main`. Ours come first; a peer that cannot be
imported, has no operator for the device or refuses the inputs is left out, by name, with the
reason. Every call of a round gets the same inputs, which change from round to round, and the order
of the contenders turns. Figures are medians: of processor time on a CPU, of events on a GPU.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
import sys
import time
from collections.abc import Callable

import torch

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import harness  # noqa: E402

# What a missing or unfit peer may raise.
ABSENT = (ImportError, AttributeError, NotImplementedError, RuntimeError, TypeError, ValueError)


@dataclasses.dataclass
class Contender:
    """name; make: returns what is called with the inputs, and may raise. gpu: needs one."""

    name: str
    make: Callable[[], Callable]
    gpu: bool = False
    ours: bool = False


@dataclasses.dataclass
class Work:
    """make_inputs: device -> a new tuple of inputs. check(expected, got): raises AssertionError;
    expected is what the first contender gives. check_inputs: as make_inputs, for the check."""

    name: str
    make_inputs: Callable[[str], tuple]
    contenders: list[Contender]
    check: Callable
    check_inputs: Callable[[str], tuple] | None = None


def present(work: Work, device: str, skipped: dict[str, str]) -> dict[str, Callable]:
    """Contenders by name that can do the work here."""
    found = {}
    for contender in work.contenders:
        try:
            if contender.gpu and device == "cpu":
                raise RuntimeError("runs on a GPU only")
            call = contender.make()
            call(*work.make_inputs(device))
        except ABSENT as error:
            if contender.ours:
                raise
            reason = (str(error).strip() or repr(error)).splitlines()[0]
            if contender.name not in skipped:
                print(f"skipped: {contender.name}: {reason}", flush=True)
            skipped[contender.name] = reason
            continue
        found[contender.name] = call
    return found


def seconds_of(call: Callable, inputs: tuple, device: str) -> float:
    if device == "cpu":
        start = time.process_time()
        call(*inputs)
        return time.process_time() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call(*inputs)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def measure(work: Work, device: str, repeats: int, skipped: dict[str, str]) -> dict:
    """{"case", "us": {contender: median}}."""
    calls = present(work, device, skipped)
    names = list(calls)
    inputs = (work.check_inputs or work.make_inputs)(device)
    expected = calls[names[0]](*inputs)
    for name in names:
        try:
            work.check(expected, calls[name](*inputs))
        except AssertionError as error:
            raise AssertionError(f"{work.name}: {name}: {error}") from None
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for round_number in range(repeats):
        inputs = work.make_inputs(device)
        turn = round_number % len(names)
        for name in names[turn:] + names[:turn]:
            seconds[name].append(seconds_of(calls[name], inputs, device))
    row = {
        "case": work.name,
        "us": {name: statistics.median(each) * 1e6 for name, each in seconds.items()},
    }
    print(row["case"], {name: round(us) for name, us in row["us"].items()}, flush=True)
    return row


def close(relative: float) -> Callable:
    """A check of tensors, by the relative L2 error."""

    def check(expected: torch.Tensor, got: torch.Tensor) -> None:
        assert got.shape == expected.shape, f"shape {tuple(got.shape)}"
        error = (got.double() - expected.double()).norm() / expected.double().norm()
        assert error < relative, f"relative error {error:.2g}"

    return check


def markdown(works: list[Work], rows: list[dict]) -> str:
    """A table for each list of contenders; `x` is a contender's time over that of the first."""
    out, last = [], None
    for work, row in zip(works, rows, strict=True):
        names = [each.name for each in work.contenders]
        if names != last:
            shown = [n for n in names if any(n in each["us"] for each in rows)]
            out += ["", f"| microseconds | {' | '.join(shown)} |", "|---" * (len(shown) + 1) + "|"]
            last = names
        first = row["us"][names[0]]
        cells = [
            f"{row['us'][name]:,.1f} ({row['us'][name] / first:.2f}x)" if name in row["us"] else "-"
            for name in shown
        ]
        cells[0] = f"{first:,.1f}"
        out.append(f"| {row['case']} | {' | '.join(cells)} |")
    return "\n".join(out[1:])


def main(description: str, make_works: Callable[[], list[Work]], argv=None) -> None:
    """Command line of a comparison."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--repeats", type=int, default=15, help="rounds of each case")
    parser.add_argument("--threads", type=int, help="torch threads (default: torch's choice)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--markdown", type=pathlib.Path, help="write header and tables")
    parser.add_argument("--json", type=pathlib.Path, help="write header and rows as JSON lines")
    options = parser.parse_args(argv)
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    facts = harness.header(harness.copy_bandwidth())
    if options.device == "cuda":
        facts["device"] = torch.cuda.get_device_name()
    line = ", ".join(f"{key}: {value}" for key, value in facts.items())
    print(line, flush=True)
    skipped: dict[str, str] = {}
    works = [work for work in make_works() if options.only in work.name]
    rows = [measure(work, options.device, options.repeats, skipped) for work in works]
    text = markdown(works, rows)
    left_out = "\n".join(f"- skipped: {name}: {reason}" for name, reason in skipped.items())
    print(text)
    if options.markdown:
        parts = (description.partition("\n")[0], line, text, left_out)
        options.markdown.write_text("\n\n".join(part for part in parts if part) + "\n")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        entries = [{**facts, "skipped": skipped}, *rows]
        options.json.write_text("\n".join(json.dumps(entry) for entry in entries) + "\n")
