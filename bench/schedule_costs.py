"""What a serving step costs, for bench_schedule.py: measured on this CPU, and a model of an H200.

A step takes `target(rows)` + `per_request` * requests, and if it drafts, `draft(requests)` and
`append(rows)` on top: the drafter takes in the features of the tokens emitted since it last did.
"""

import dataclasses
import datetime
import functools
import json
import pathlib
import platform
import statistics
import time

import torch

from dspark_ext.verify import CostTable, cudagraph_sizes, profile_cost_table

DATA = pathlib.Path(__file__).with_name("data")
MAX_REQUESTS = 256
NUM_DRAFTS = 5
# Tokens the drafter takes in per request and step; what the tables of a scheduler reckon with.
USUAL_APPEND = 2


@dataclasses.dataclass(frozen=True)
class StepCosts:
    """Seconds of the parts of a step.

    target       by rows of the pass
    draft        by requests, entry 0 is no request
    append       (seconds, seconds per row) of the drafter's taking in tokens
    per_request  seconds every pass pays per request (keys and values of its context)
    window       tokens the drafter looks back; older ones need not be taken in
    """

    name: str
    target: CostTable
    draft: list[float]
    append: tuple[float, float]
    per_request: float
    window: int
    facts: dict

    @functools.cached_property
    def _target(self) -> list[float]:
        return self.target.seconds.tolist()

    def pass_seconds(self, rows: int, num_requests: int) -> float:
        dense = self._target
        last = len(dense) - 1
        seconds = dense[min(rows, last)]
        seconds += max(0, rows - last) * (dense[-1] - dense[-2])
        return seconds + num_requests * self.per_request

    def append_seconds(self, rows: int) -> float:
        return self.append[0] + rows * self.append[1] if rows else 0.0

    def draft_seconds(self, num_requests: int) -> float:
        """Drafting and the taking in that usually goes with it."""
        if num_requests == 0:
            return 0.0
        return self.draft[num_requests] + self.append_seconds(USUAL_APPEND * num_requests)

    def pass_table(self) -> CostTable:
        """For a gate: rows, and as second curve what every pass pays per request."""
        counts = list(range(1, MAX_REQUESTS + 1))
        seconds = [count * self.per_request for count in counts]
        form = {**self.target.to_dict(), "request_rows": counts, "request_seconds": seconds}
        return CostTable.from_dict(form)

    @functools.cached_property
    def _smooth(self) -> torch.Tensor:
        return CostTable(self.target.rows, self.target.sample_seconds, "linear").seconds

    def step_table(self, num_requests: int, smooth: bool = False) -> torch.Tensor:
        """For `schedule`: float64 [n], seconds of a drafting step by rows; `smooth`: on lines
        through the samples, whatever the rounding."""
        constant = num_requests * self.per_request + self.draft_seconds(num_requests)
        return (self._smooth if smooth else self.target.seconds) + constant


def measure_cpu(max_rows: int = 64, repeats: int = 3, threads: int = 1, context: int = 96) -> dict:
    """Times SmolLM2 (bf16 weights, as the demo serves it) and its drafter on this machine."""
    from dspark_ext import sampling
    from dspark_ext.demo import smollm2
    from dspark_ext.demo.loading import DRAFTER
    from dspark_ext.draft_head.compact import CompactDraftHead
    from dspark_ext.engine import DraftBatch, DSparkDrafter, HuggingFaceTarget, TargetBatch

    torch.set_num_threads(threads)
    model, _ = smollm2.load()
    head = CompactDraftHead.load(DRAFTER)
    sizes = {"max_len": context + 8, "weight_dtype": torch.bfloat16}
    taps = head.config.dspark_target_layer_ids
    target = HuggingFaceTarget(model, taps, max_requests=max_rows, **sizes)
    del model
    drafter = DSparkDrafter(
        head, target.embedding, target.lm_head_weight, max_requests=MAX_REQUESTS, **sizes
    )

    def run_target(rows: int) -> None:
        index = torch.arange(rows)
        positions = torch.full((rows,), context)
        output = target.forward(TargetBatch(torch.zeros_like(index), positions, index, index))
        sampling.sample(output.logits, temperature=0.8, seeds=index, positions=positions)

    def run_draft(count: int) -> None:
        slots, zeros = torch.arange(count), torch.zeros(count, dtype=torch.int64)
        batch = DraftBatch(zeros, zeros + context, slots, torch.ones(count), slots)
        drafter.draft(batch, NUM_DRAFTS, "probabilistic")

    features = torch.zeros(MAX_REQUESTS, target.num_features)

    def run_append(rows: int) -> None:
        slots = torch.arange(rows)
        drafter.append(features[:rows], torch.full((rows,), context), slots)

    load_before = _load()
    rows = [n for n in (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128) if n <= max_rows]
    counts = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    target_table = profile_cost_table(run_target, rows, warmup=1, repeats=repeats)
    draft = [_median(run_draft, count, repeats) for count in counts]
    append = [_median(run_append, count, repeats) for count in (1, MAX_REQUESTS)]
    return {
        "facts": {
            "date": datetime.date.today().isoformat(),
            "cpu": _cpu_name(),
            "threads": threads,
            "repeats": repeats,
            "context": context,
            "load_average": [load_before, _load()],
            "largest_raise": round(target_table.largest_raise, 4),
            "torch": torch.__version__,
            "target": "SmolLM2-135M-Instruct, bf16 weights, sampling included",
            "drafter": f"{DRAFTER.name}, {NUM_DRAFTS} drafts",
        },
        "target": target_table.to_dict(),
        "draft": {"requests": counts, "seconds": draft},
        "append": {"rows": [1, MAX_REQUESTS], "seconds": append},
        "window": head.config.sliding_window,
    }


def _median(function, count: int, repeats: int) -> float:
    function(count)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function(count)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _load() -> float:
    return float(pathlib.Path("/proc/loadavg").read_text().split()[0])


def _cpu_name() -> str:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def cpu(path: pathlib.Path = DATA / "cost_cpu.json") -> StepCosts:
    """The measurement that is stored; beyond its last rows the table goes on by its own rule."""
    stored = json.loads(path.read_text())
    draft = CostTable(stored["draft"]["requests"], stored["draft"]["seconds"])
    first, last = stored["append"]["seconds"]
    slope = max(0.0, last - first) / (stored["append"]["rows"][1] - stored["append"]["rows"][0])
    return StepCosts(
        name="CPU, measured",
        target=CostTable.from_dict(stored["target"]),
        draft=draft.seconds.tolist(),
        append=(max(0.0, first - slope), slope),
        per_request=0.0,
        window=stored["window"],
        facts=stored["facts"],
    )


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Assumptions of the H200 model; what is not a data-sheet figure is a guess and says so.

    The target is Qwen3-8B in bf16, the drafter DSpark's for it, with 5 of its 7 drafts.
    """

    # data sheet of the H200 SXM: 4.8 TB/s, 989 TFLOP/s dense bf16
    bytes_per_second: float = 4.8e12
    flop_per_second: float = 989e12
    # guesses: shares of both that a whole step reaches
    memory_share: float = 0.8
    compute_share: float = 0.6
    # 36 layers: attention 4096 x (4096 + 2 * 1024) + 4096 x 4096, MLP 3 x 4096 x 12288
    layer_weights: float = 4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 12288
    layers: int = 36
    head_weights: float = 151936 * 4096
    # the drafter: 5 such layers, the target's output matrix, and fc 5 * 4096 x 4096 per token
    draft_layers: int = 5
    fc_weights: float = 5 * 4096 * 4096
    key_value_weights: float = 5 * 4096 * 2 * 1024
    # the Markov head reads W2 [151936, 256] once per draft
    markov_weights: float = 151936 * 256
    # 8 key-value heads of 128, keys and values, 2 bytes each
    key_value_bytes: float = 2 * 8 * 128 * 2
    context: int = 1024
    # guesses: launches, sampling, host; the published Markov loop takes 0.22 ms (MI325X, TP4)
    step_overhead: float = 0.3e-3
    draft_overhead: float = 0.2e-3
    append_overhead: float = 0.02e-3

    def matrices(self, weights: float, rows: float) -> float:
        """Seconds of products with `weights` bf16 weights: reading or arithmetic, the longer."""
        reading = 2 * weights / (self.bytes_per_second * self.memory_share)
        arithmetic = 2 * weights * rows / (self.flop_per_second * self.compute_share)
        return max(reading, arithmetic)

    def context_seconds(self, layers: int) -> float:
        """Reading the keys and values of one request."""
        size = layers * self.key_value_bytes * self.context
        return size / (self.bytes_per_second * self.memory_share)

    def target(self, rows: int) -> float:
        weights = self.layers * self.layer_weights + self.head_weights
        return self.step_overhead + self.matrices(weights, rows)

    def draft(self, num_requests: int) -> float:
        block_rows = num_requests * NUM_DRAFTS
        seconds = self.draft_overhead + num_requests * self.context_seconds(self.draft_layers)
        weights = self.draft_layers * self.layer_weights + self.head_weights
        seconds += self.matrices(weights, block_rows)
        return seconds + NUM_DRAFTS * self.matrices(self.markov_weights, num_requests)


def h200(model: Roofline | None = None) -> StepCosts:
    """A model, not a measurement. Captured graphs up to 512 rows: a pass rounds up to one."""
    model = model or Roofline()
    rows = cudagraph_sizes(MAX_REQUESTS, NUM_DRAFTS)
    taking_in = model.fc_weights + model.key_value_weights
    # as one line: reading the weights, and arithmetic for each row
    append = (model.append_overhead + model.matrices(taking_in, 0),)
    append += (model.matrices(taking_in, 1e9) / 1e9,)
    return StepCosts(
        name="H200-like, modelled",
        target=CostTable(rows, [model.target(n) for n in rows], "step", linear_above=512),
        draft=[model.draft(n) if n else 0.0 for n in range(MAX_REQUESTS + 1)],
        append=append,
        per_request=model.context_seconds(model.layers),
        window=2**31,
        facts=dataclasses.asdict(model),
    )
