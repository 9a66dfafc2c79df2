"""Weights, drafter and threads of the demo."""

import dataclasses
import os
import time
from pathlib import Path

import torch
from rich.console import Console

from ..cli.tokenizer import Tokenizer
from ..draft_head.compact import CompactDraftHead
from ..engine import (
    DSparkDrafter,
    DSparkEngine,
    HuggingFaceTarget,
    SamplingParams,
    SpeculativeConfig,
    TargetBatch,
    profile_step,
)
from ..verify import CostTable
from . import smollm2

DRAFTER = Path(__file__).with_name("smollm2_dspark.safetensors")
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
BATCH = 16
MAX_REQUESTS = 3 * BATCH  # three batches are taken in turns
MAX_LEN = 256


@dataclasses.dataclass
class Served:
    target: HuggingFaceTarget
    drafter: DSparkDrafter
    tokenizer: Tokenizer
    dtype: str
    threads: int
    cost_table: CostTable

    def engine(self, **config) -> DSparkEngine:
        return DSparkEngine(
            self.target, self.drafter, SpeculativeConfig(**config), tokenizer=self.tokenizer
        )

    def params(self, temperature: float, max_new_tokens: int, seed: int = 1) -> SamplingParams:
        return SamplingParams(
            temperature=temperature,
            seed=seed,
            max_new_tokens=max_new_tokens,
            stop_token_ids=self.tokenizer.stop_ids,
        )

    def chat(self, question: str) -> list[int]:
        return self.tokenizer.encode(smollm2.chat_prompt(question))

    def describe(self) -> dict:
        return {
            "cpu": cpu_name(),
            "weights": self.dtype,
            "threads": self.threads,
            "seconds_of_a_step": self.cost_table.to_dict(),
            "torch": torch.__version__,
        }


def serve(console: Console, dtype: str, threads: int | None, drafter_path: Path) -> Served:
    """Load everything, tell what is going on, and choose the number of threads."""
    if not drafter_path.exists():
        raise SystemExit(f"{drafter_path}: no such drafter; see --drafter")
    start = time.perf_counter()
    with console.status("Loading SmolLM2-135M-Instruct") as status:
        model, tokenizer = smollm2.load()
        status.update("Packing the target's weights")
        head = CompactDraftHead.load(drafter_path)
        target = HuggingFaceTarget(
            model,
            head.config.dspark_target_layer_ids,
            max_requests=MAX_REQUESTS,
            max_len=MAX_LEN,
            weight_dtype=DTYPES[dtype],
        )
        del model
        status.update("Packing the drafter's weights")
        drafter = DSparkDrafter.for_target(head, target, DTYPES[dtype])
        status.update("Timing passes of the target and the drafter")
        threads = threads or faster_thread_count(target)
        torch.set_num_threads(threads)
        served = Served(
            target,
            drafter,
            Tokenizer(tokenizer, (smollm2.END_TOKEN,)),
            dtype,
            threads,
            profile_step(target, drafter, drafter.block_size, BATCH),
        )
    console.print(
        f"Target SmolLM2-135M-Instruct, weights {dtype}; drafter {drafter_path.name}, blocks of "
        f"{drafter.block_size}; {threads} thread(s) on {cpu_name()}; ready in "
        f"{time.perf_counter() - start:.1f} s."
    )
    table = served.cost_table
    costs = ", ".join(f"{rows}: {1e3 * table.seconds[rows]:.1f}" for rows in (1, 2, 4, 6, 16, 96))
    console.print(
        f"Milliseconds of a target pass by its rows: {costs}; of a draft: "
        f"{1e3 * table.request_seconds[1]:.1f}. Accepted drafts are shown in [green]green[/]."
    )
    return served


def faster_thread_count(target: HuggingFaceTarget) -> int:
    """One thread or all cores, by the time of plain and of verifying passes."""
    seconds = {}
    for threads in sorted({1, min(os.cpu_count() or 1, 8)}):
        torch.set_num_threads(threads)
        rows = min(6, target.max_len)
        seconds[threads] = _pass_seconds(target, 1) + _pass_seconds(target, rows)
    target.release(0)
    return min(seconds, key=seconds.get)


def _pass_seconds(target: HuggingFaceTarget, rows: int, repeats: int = 7) -> float:
    """Median time of a pass of one request's `rows` rows."""
    index = torch.arange(rows)
    batch = TargetBatch(torch.zeros_like(index), index, torch.zeros_like(index), index)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        target.forward(batch)
        times.append(time.perf_counter() - start)
    return sorted(times)[repeats // 2]


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        import platform

        return platform.processor() or platform.machine()
