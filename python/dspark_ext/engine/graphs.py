"""Passes captured as graphs, one per number of rows and length of context, where there is a GPU.

A captured pass runs without the host launching its kernels one by one. Its tensors have fixed
shapes, so a pass is padded up to the next captured size: by its last row once more, which writes
the same keys and values to the same place again and is cut off the results.
"""

import bisect
import logging
from collections.abc import Callable, Sequence

import torch

from .._upload import current
from ..draft import RowStatistics
from .drafter import Draft, DraftBatch
from .target import Bounds, TargetBatch, TargetOutput

Tensors = tuple[torch.Tensor | None, ...]
Pass = Callable[..., Tensors]
# capture(run) -> (replay, outputs): records what `run()` launches
Capture = Callable[[Callable[[], Tensors]], tuple[Callable[[], None], Tensors]]


_log = logging.getLogger(__name__)

SHORTEST = 256  # least length of context that passes are captured for


class CudaCapture:
    """Captures on the CUDA (or HIP) device that is the current one at its first call, on a stream
    of its own: torch's stream for captures belongs to one device for the whole process. Its graphs
    share one memory pool: running one overwrites the results of the others, so results that are in
    use at the same time, a target's and a drafter's, need a capture each."""

    def __init__(self, warmup: int = 2) -> None:
        self._warmup = warmup
        self._pool = torch.cuda.graph_pool_handle()
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, run: Callable[[], Tensors]) -> tuple[Callable[[], None], Tensors]:
        if self._stream is None:
            self._stream = torch.cuda.Stream()
        stream, before = self._stream, torch.cuda.current_stream()
        stream.wait_stream(before)
        with torch.cuda.stream(stream):
            for _ in range(self._warmup):
                run()
        before.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # What other threads do meanwhile, another engine say, is no fault of this pass.
        options = dict(pool=self._pool, stream=stream, capture_error_mode="thread_local")
        try:
            with torch.cuda.graph(graph, **options):
                outputs = run()
        finally:
            torch.cuda.set_stream(before)  # torch leaves the other one where a capture fails
        return graph.replay, outputs


class ResultBuffers:
    """Tensors of `rows` rows that graphs of fewer write their results into. So these need no memory
    of their own, which logits would need most of. Made at the first pass, before it is captured."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._buffers: dict[int, torch.Tensor] = {}

    def take(self, results: Tensors) -> Tensors:
        """Copies of results [n, ...], at most `rows` of them."""
        return tuple(
            None if each is None else self._copy(place, each) for place, each in enumerate(results)
        )

    def _copy(self, place: int, result: torch.Tensor) -> torch.Tensor:
        if place not in self._buffers:
            self._buffers[place] = result.new_empty((self._rows, *result.shape[1:]))
        return self._buffers[place][: len(result)].copy_(result)


class GraphRunner:
    """Run a pass over rows from the captured graph of the next size.

    function  tensors [n, ...] -> tensors [n, ...], the same operations for any values; results may
              be None
    sizes     numbers of rows to capture, each when it is first met; larger passes run as they are
    capture   see `Capture`
    results   where results are put; None = buffers of its own

    Results are these buffers, cut to the rows: the next run overwrites them. Where a capture fails,
    the runner holds no rows from then on and logs `failure` once: passes run as they are.
    """

    def __init__(
        self,
        function: Pass,
        sizes: Sequence[int],
        capture: Capture,
        results: ResultBuffers | None = None,
    ) -> None:
        self._function = function
        self._results = ResultBuffers(max(sizes)) if results is None else results
        self.capture = capture
        self._graphs: dict[int, tuple[list[torch.Tensor], Callable[[], None], Tensors]] = {}
        self.failure: Exception | None = None
        self.sizes = sorted(set(sizes))

    @property
    def captured(self) -> list[int]:
        return sorted(self._graphs)

    def size_for(self, rows: int) -> int | None:
        """The captured size that holds so many rows, None if none does."""
        place = bisect.bisect_left(self.sizes, rows)
        return self.sizes[place] if place < len(self.sizes) else None

    def holds(self, rows: int) -> bool:
        """Whether so many rows run from a graph."""
        return rows > 0 and self.failure is None and self.size_for(rows) is not None

    def __call__(self, *inputs: torch.Tensor) -> Tensors:
        rows = len(inputs[0])
        if not self.holds(rows):
            return self._function(*inputs)
        size = self.size_for(rows)
        if size not in self._graphs:
            try:
                self._graphs[size] = self._record(size, inputs)
            except Exception as error:
                self.failure = error
                _log.warning(
                    "dspark_ext.engine: a pass of %d rows could not be captured as a graph; these "
                    "passes run without: %s",
                    size,
                    error,
                )
                return self._function(*inputs)
        buffers, replay, outputs = self._graphs[size]
        self._fill(buffers, inputs, rows)
        replay()
        return tuple(None if each is None else each[:rows] for each in outputs)

    def _record(self, size: int, inputs: Sequence[torch.Tensor]):
        rows = len(inputs[0])
        buffers = [each.new_empty((size, *each.shape[1:])) for each in inputs]
        self._fill(buffers, inputs, rows)
        with current(buffers[0].device):
            replay, outputs = self.capture(lambda: self._results.take(self._function(*buffers)))
        return buffers, replay, outputs

    @staticmethod
    def _fill(buffers, inputs, rows: int) -> None:
        for buffer, values in zip(buffers, inputs):
            buffer[:rows] = values
            buffer[rows:] = values[-1:]


def not_captured(owner, device: torch.device, graphs: bool | None) -> str | None:
    """Why passes of a target or drafter are not captured, None if they are. `graphs` is the
    engine's."""
    if device.type != "cuda":
        return f"the target is on {device.type}"
    if graphs is False:
        return "graphs=False"
    if getattr(owner, "capturable", bool(graphs)):
        return None
    reason = getattr(owner, "capture_obstacle", None)
    return reason or f"{type(owner).__name__} does not say that it can be captured"


def capture_lengths(max_len: int) -> list[int]:
    """Lengths of context that passes are captured for: 256, doubled up to `max_len`."""
    lengths = []
    length = SHORTEST
    while length < max_len:
        lengths.append(length)
        length *= 2
    return [*lengths, max_len]


class TargetGraphs:
    """The target's passes that judge every row (no prompt tokens among them), captured.

    Of a target with `forward_fixed` that form is captured, for each of `lengths` when a pass first
    needs it; of another its `forward`, once for any length.

    width  rows that a request has in a pass, at most; passes of more run as they are
    """

    def __init__(self, target, sizes: Sequence[int], capture: Capture, width: int) -> None:
        self._target, self._capture, self._width = target, capture, width
        self._refill = getattr(target, "refill", lambda: None)
        fixed = hasattr(target, "forward_fixed")
        self._forward = target.forward_fixed if fixed else target.forward
        self.sizes = sorted(set(sizes))
        self._results = ResultBuffers(self.sizes[-1])
        self.lengths = capture_lengths(target.max_len) if fixed else [target.max_len]
        self.runners: dict[int, GraphRunner] = {}

    def forward(self, batch: TargetBatch) -> TargetOutput:
        bounds = batch.bounds
        if (
            len(batch.logit_rows) != len(batch.input_ids)
            or bounds is None
            or bounds.width > self._width
            or bounds.length > self.lengths[-1]
        ):
            return self._target.forward(batch)
        runner = self._runner(bounds.length)
        if not runner.holds(len(batch.input_ids)):
            return self._target.forward(batch)
        self._refill()
        return TargetOutput(*runner(batch.input_ids, batch.positions, batch.slots))

    def _runner(self, length: int) -> GraphRunner:
        length = self.lengths[bisect.bisect_left(self.lengths, length)]
        if length not in self.runners:
            bounds = Bounds(length, self._width)
            self.runners[length] = GraphRunner(
                lambda *columns: self._pass(columns, bounds),
                self.sizes,
                self._capture,
                self._results,
            )
        return self.runners[length]

    def _pass(self, columns: Sequence[torch.Tensor], bounds: Bounds) -> Tensors:
        rows = torch.arange(len(columns[0]), device=columns[0].device)
        output = self._forward(TargetBatch(*columns, rows, bounds))
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
