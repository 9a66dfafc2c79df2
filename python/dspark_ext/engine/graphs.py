"""Passes captured as graphs, one per number of rows, where there is a GPU.

A captured pass runs without the host launching its kernels one by one. Its tensors have fixed
shapes, so a pass is padded up to the next captured size: by its last row once more, which writes
the same keys and values to the same place again and is cut off the results.
"""

import bisect
from collections.abc import Callable, Sequence

import torch

from ..draft import RowStatistics
from .drafter import Draft, DraftBatch
from .target import TargetBatch, TargetOutput

Tensors = tuple[torch.Tensor | None, ...]
Pass = Callable[..., Tensors]
# capture(run) -> (replay, outputs): records what `run()` launches
Capture = Callable[[Callable[[], Tensors]], tuple[Callable[[], None], Tensors]]


class CudaCapture:
    """Captures on the current CUDA (or HIP) device; all graphs share one memory pool."""

    def __init__(self, warmup: int = 2) -> None:
        self._warmup = warmup
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], Tensors]) -> tuple[Callable[[], None], Tensors]:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(self._warmup):
                run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            outputs = run()
        return graph.replay, outputs


class GraphRunner:
    """Run a pass over rows from the captured graph of the next size.

    function  tensors [n, ...] -> tensors [n, ...], the same operations for any values; results may
              be None
    sizes     numbers of rows to capture, each when it is first met; larger passes run as they are
    capture   see `Capture`

    Results are the graph's own tensors, cut to the rows: the next run of that size overwrites them.
    """

    def __init__(self, function: Pass, sizes: Sequence[int], capture: Capture) -> None:
        self._function = function
        self._capture = capture
        self._graphs: dict[int, tuple[list[torch.Tensor], Callable[[], None], Tensors]] = {}
        self.sizes = sorted(set(sizes))

    @property
    def captured(self) -> list[int]:
        return sorted(self._graphs)

    def size_for(self, rows: int) -> int | None:
        """The captured size that holds so many rows, None if none does."""
        place = bisect.bisect_left(self.sizes, rows)
        return self.sizes[place] if place < len(self.sizes) else None

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        rows = len(inputs[0])
        size = self.size_for(rows)
        if rows == 0 or size is None:
            return self._function(*inputs)
        if size not in self._graphs:
            self._graphs[size] = self._record(size, inputs)
        buffers, replay, outputs = self._graphs[size]
        self._fill(buffers, inputs, rows)
        replay()
        return tuple(None if each is None else each[:rows] for each in outputs)

    def _record(self, size: int, inputs: Sequence[torch.Tensor]):
        rows = len(inputs[0])
        buffers = [each.new_empty((size, *each.shape[1:])) for each in inputs]
        self._fill(buffers, inputs, rows)
        replay, outputs = self._capture(lambda: self._function(*buffers))
        return buffers, replay, outputs

    @staticmethod
    def _fill(buffers, inputs, rows: int) -> None:
        for buffer, values in zip(buffers, inputs):
            buffer[:rows] = values
            buffer[rows:] = values[-1:]


class TargetGraphs:
    """The target's passes that judge every row (no prompt tokens among them), captured."""

    def __init__(self, target, sizes: Sequence[int], capture: Capture) -> None:
        self._target = target
        self.runner = GraphRunner(self._pass, sizes, capture)

    def forward(self, batch: TargetBatch) -> TargetOutput:
        if len(batch.logit_rows) != len(batch.input_ids):
            return self._target.forward(batch)
        return TargetOutput(*self.runner(batch.input_ids, batch.positions, batch.slots))

    def _pass(self, input_ids, positions, slots) -> Tensors:
        rows = torch.arange(len(input_ids), device=input_ids.device)
        output = self._target.forward(TargetBatch(input_ids, positions, slots, rows))
        return output.logits, output.features


class DraftGraphs:
    """The drafter's passes, captured for each number of drafts and method that is met."""

    def __init__(self, drafter, sizes: Sequence[int], capture: Capture) -> None:
        self._drafter, self._sizes, self._capture = drafter, sizes, capture
        self.runners: dict[tuple[int, str], GraphRunner] = {}

    def draft(self, batch: DraftBatch, num_drafts: int, method: str) -> Draft:
        key = num_drafts, method
        if key not in self.runners:
            self.runners[key] = GraphRunner(
                lambda *fields: self._pass(fields, *key), self._sizes, self._capture
            )
        fields = (
            batch.anchor,
            batch.anchor_positions,
            batch.slots,
            batch.temperature,
            batch.seeds,
        )
        ids, logits, confidence, proposed, *statistics = self.runners[key](*fields)
        statistics = None if statistics[0] is None else RowStatistics(*statistics)
        return Draft(ids, logits, confidence, statistics, proposed)

    def _pass(self, fields, num_drafts: int, method: str) -> Tensors:
        draft = self._drafter.draft(DraftBatch(*fields), num_drafts, method)
        statistics = draft.statistics or (None,) * len(RowStatistics._fields)
        return draft.token_ids, draft.logits, draft.confidence, draft.num_proposed, *statistics
