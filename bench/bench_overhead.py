"""What a call costs before it computes anything: every operator on tiny inputs, beside torch.

python bench/bench_overhead.py [--only NAME] [--markdown FILE] [--json FILE]

One thread, processor time, the least of many batches of calls, operator and torch's operator in
turns. The columns, in microseconds a call:

- **call**: the public function.
- **python**: of it what the function adds to its operator: checks, conversions, the result.
- **kernel**: the operator on two rows less the operator on none, which is dispatched, checked and
  allocated all the same.
- **operator**: the rest: torch's dispatcher, the conversion of arguments to the stable interface
  and back, checks, new tensors.
- **torch**: the operator of torch with as many tensors in and out (`peer`), called directly.
- **overhead**: python and operator less torch.
"""

import argparse
import contextlib
import dataclasses
import gc
import json
import pathlib
import time
from collections.abc import Callable

import harness
import torch
from overhead_cases import Case, make_cases

from dspark_ext import _operators

BATCH = 300  # calls that are timed together
BOUND = 4.0  # microseconds beyond torch that need no explanation


@dataclasses.dataclass
class Called:
    """The operator that a public function called."""

    name: str
    call: Callable[[], object]
    tensors_in: int
    tensors_out: int


def called_by(function: Callable[[], object]) -> Called:
    """Of a function that calls one operator."""
    found = []

    def recording(name, operator):
        def call(*args, **kwargs):
            result = operator(*args, **kwargs)
            found.append((name, operator, args, kwargs, result))
            return result

        return call

    _operators.wrap(recording)
    try:
        function()
    finally:
        _operators.unwrap()
    ((name, operator, args, kwargs, result),) = found
    written = [value for key, value in kwargs.items() if isinstance(value, torch.Tensor)]
    outputs = written or ([result] if isinstance(result, torch.Tensor) else list(result or ()))
    flat = [x for each in args for x in (each if isinstance(each, (list, tuple)) else [each])]
    inputs = sum(isinstance(value, torch.Tensor) for value in flat)
    return Called(name, lambda: operator(*args, **kwargs), inputs, len(outputs))


def peer(tensors_in: int, tensors_out: int) -> tuple[str, Callable[[], object]]:
    """An operator of torch with so many tensors in, as far as it has one, and so many out."""
    x = [torch.zeros(2) for _ in range(max(tensors_in, tensors_out, 1))]
    if tensors_out == 1:
        if tensors_in == 1:
            return "neg", lambda: torch.neg(x[0])
        if tensors_in == 2:
            return "add", lambda: torch.add(x[0], x[1])
        if tensors_in == 3:
            return "addcmul", lambda: torch.addcmul(x[0], x[1], x[2])
        return f"stack of {tensors_in}", lambda: torch.stack(x)
    if tensors_out == 0:  # writes into one of its arguments
        return "addcmul_", lambda: x[0].addcmul_(x[0], x[0])
    some = x[:tensors_out]
    if tensors_in <= tensors_out:
        return f"_foreach_neg of {tensors_out}", lambda: torch._foreach_neg(some)
    if tensors_in <= 2 * tensors_out:
        return f"_foreach_add of {tensors_out}", lambda: torch._foreach_add(some, some)
    return f"_foreach_addcmul of {tensors_out}", lambda: torch._foreach_addcmul(some, some, some)


def microseconds(functions: list[Callable[[], object]], batches: int) -> list[float]:
    """Processor time of a call of each, the least of all batches; batches in turns."""
    best = [float("inf")] * len(functions)
    for _ in range(batches):
        for i, function in enumerate(functions):
            start = time.thread_time_ns()
            for _ in range(BATCH):
                function()
            best[i] = min(best[i], (time.thread_time_ns() - start) / BATCH / 1e3)
    return best


@contextlib.contextmanager
def quiet():
    """One thread, and no collector of garbage in between."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        torch.set_num_threads(threads)


def measure(case: Case, batches: int) -> dict:
    call = case.make(2)
    operator, empty = called_by(call), called_by(case.make(0))
    peer_name, peer_call = peer(operator.tensors_in, operator.tensors_out)
    with quiet():
        whole, bare, nothing, base = microseconds(
            [call, operator.call, empty.call, peer_call], batches
        )
    kernel = max(0.0, bare - nothing)
    return {
        "case": case.name,
        "operator": operator.name,
        "tensors_in": operator.tensors_in,
        "tensors_out": operator.tensors_out,
        "call_us": whole,
        "python_us": whole - bare,
        "operator_us": bare - kernel,
        "kernel_us": kernel,
        "peer": peer_name,
        "peer_us": base,
        "overhead_us": whole - kernel - base,
    }


def markdown(rows: list[dict]) -> str:
    lines = [
        "| case | tensors in, out | call | python | operator | kernel | torch's | it | overhead |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        overhead = f"{row['overhead_us']:.1f}"
        lines.append(
            f"| {row['case']} | {row['tensors_in']}, {row['tensors_out']} "
            f"| {row['call_us']:.1f} | {row['python_us']:.1f} | {row['operator_us']:.1f} "
            f"| {row['kernel_us']:.1f} | {row['peer']} | {row['peer_us']:.1f} "
            f"| {'**' + overhead + '**' if row['overhead_us'] > BOUND else overhead} |"
        )
    over = [row["case"] for row in rows if row["overhead_us"] > BOUND]
    lines += ["", f"Overhead of more than {BOUND:.0f} us: {'; '.join(over) or 'none'}."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--batches", type=int, default=40, help=f"of {BATCH} calls each")
    parser.add_argument("--markdown", type=pathlib.Path, help="write header and table")
    parser.add_argument("--json", type=pathlib.Path, help="write header and rows as JSON lines")
    options = parser.parse_args()
    facts = {**harness.header(), "threads": 1}
    facts_line = ", ".join(f"{key}: {value}" for key, value in facts.items())
    print(facts_line, flush=True)
    rows = [measure(case, options.batches) for case in make_cases() if options.only in case.name]
    print(markdown(rows))
    if options.markdown:
        text = f"{__doc__}\n{facts_line}\n\n{markdown(rows)}\n"
        options.markdown.write_text(text)
    if options.json:
        lines = [json.dumps(entry) for entry in [facts, *rows]]
        options.json.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
