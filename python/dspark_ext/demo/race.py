"""One prompt, plain decoding and DSpark side by side."""

import dataclasses
import time

from rich.columns import Columns
from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from ..engine import Generation
from .loading import Served

REFRESH_SECONDS = 0.12


@dataclasses.dataclass
class Race:
    """A finished pair of runs. `identical` is None where the tokens are sampled."""

    kind: str
    temperature: float
    plain: Generation
    dspark: Generation
    identical: bool | None

    @property
    def speedup(self) -> float:
        return self.dspark.stats.tokens_per_second / self.plain.stats.tokens_per_second


class _Lane:
    """A stream and the text it has written so far."""

    def __init__(self, title: str, stream: Generation, tokenizer) -> None:
        self.title, self.stream = title, stream
        self.finished = False
        self._pending = iter(stream)
        self._tokenizer = tokenizer
        self._token_ids: list[int] = []
        self._written = ""
        self._text = Text()

    def step(self) -> None:
        event = next(self._pending, None)
        if event is None:
            self.finished = True
            return
        for token, accepted in zip(event.token_ids, event.accepted, strict=True):
            self._token_ids.append(token)
            decoded = self._tokenizer.decode(self._token_ids)
            if decoded.endswith("\N{REPLACEMENT CHARACTER}"):
                continue  # in the middle of a character
            self._text.append(decoded[len(self._written) :], "green" if accepted else "")
            self._written = decoded

    def panel(self, width: int) -> Panel:
        stats = self.stream.stats
        figures = f"{stats.emitted} tokens, {stats.tokens_per_second:.1f}/s"
        if self.title == "DSpark" and stats.passes:
            figures += f", {stats.tokens_per_pass:.2f} per pass"
        return Panel(self._text, title=self.title, subtitle=figures, width=width)


def run(
    console: Console,
    served: Served,
    kind: str,
    question: str,
    temperature: float,
    max_new_tokens: int,
) -> Race:
    """Answer `question` twice. The lane that has used less time of the engine so far moves next, so
    both sides meet the same disturbances and advance as they would alone."""
    engine = served.engine(schedule="early_stop", cost_table=served.cost_table)
    params = served.params(temperature, max_new_tokens)
    prompt = served.chat(question)
    lanes = [
        _Lane(title, engine.stream([prompt], params, speculative=speculative), served.tokenizer)
        for title, speculative in (("plain", False), ("DSpark", True))
    ]
    console.print(f"[bold]{kind}[/]: {question}")
    width = max(30, console.width // 2 - 1)

    def columns() -> Columns:
        return Columns([lane.panel(width) for lane in lanes], padding=(0, 1))

    with Live(columns(), console=console, auto_refresh=False) as live:
        shown = 0.0
        while any(not lane.finished for lane in lanes):
            open_lanes = [lane for lane in lanes if not lane.finished]
            min(open_lanes, key=lambda lane: lane.stream.stats.seconds).step()
            if console.is_terminal and time.perf_counter() - shown > REFRESH_SECONDS:
                live.update(columns(), refresh=True)
                shown = time.perf_counter()
        live.update(columns(), refresh=True)
    if not console.is_terminal:
        console.print()  # there Live ends without a newline
    plain, dspark = (lane.stream for lane in lanes)
    identical = None
    if temperature == 0:
        identical = plain.outputs[0].token_ids == dspark.outputs[0].token_ids
    return Race(kind, temperature, plain, dspark, identical)
