"""schedule, pack, unpack and commit against eager torch, CPU or GPU.

python bench/bench_verify.py [--only B=256] [--json bench/results/verify.json]
python bench/bench_verify.py --grow B,K

The baselines do the same work by vectorised torch: a stable sort of the survivals and running sums
of expected tokens; repeat_interleave and gathers for the rows. What schedules gain is another
question: bench_schedule.py simulates that.
"""

import harness
import torch
from growth import Growth

from dspark_ext import verify

WIDTH = 1024  # of the rows that unpack spreads


def cost_table(batch: int, drafts: int) -> torch.Tensor:
    """Seconds by rows: reading weights, then arithmetic, a little uneven."""
    rows = torch.arange(batch * (drafts + 1) + 2, dtype=torch.float64)
    return 1e-3 * (1 + torch.maximum(rows / 60, torch.ones(()))) + 1e-6 * rows


# ---- eager torch --------------------------------------------------------------------------------


def eager_schedule(confidence, cost, lagged=None):
    """Algorithm 1 of the DSpark paper -> verify_lens [B] int32."""
    batch, drafts = confidence.shape
    survival = confidence.cumprod(1).T.flatten()  # by position, then request: the order of ties
    best, order = survival.sort(descending=True, stable=True)
    tokens = batch + torch.cat([best.new_zeros(1), best]).double().cumsum(0)
    rate = tokens / cost[batch : batch + batch * drafts + 1]
    stops = (rate[1:] <= rate[:-1]) | (best <= 0)
    admitted = (stops.cumsum(0) == 0).int()
    lengths = admitted.new_zeros(batch)
    return lengths.scatter_add_(0, order % batch, admitted)


def eager_pack(anchor, drafts, seq_lens, lengths, max_rows):
    """(input_ids, positions, request_ids), padded to max_rows."""
    rows = lengths + 1
    starts = rows.cumsum(0) - rows
    request = torch.arange(len(rows), device=rows.device).repeat_interleave(rows)
    index = torch.arange(len(request), device=rows.device) - starts[request]
    ids = torch.cat([anchor[:, None], drafts], 1)[request, index]
    missing = (0, max_rows - len(ids))
    pad = torch.nn.functional.pad
    return (
        pad(ids, missing),
        pad(seq_lens[request] + index, missing),
        pad(request.int(), missing, value=-1),
    )


# ---- cases --------------------------------------------------------------------------------------


def schedule_case(batch: int, drafts: int = 5, mode: str = "early_stop") -> harness.Case:
    def run(confidence, cost, lagged):
        return verify.schedule(confidence, cost=cost, mode=mode, lagged_confidence=lagged)

    def check(inputs: tuple) -> None:
        got = run(*inputs).verify_lens
        if mode == "early_stop" and not torch.equal(got, eager_schedule(*inputs)):
            raise AssertionError("schedule: other lengths than those of eager torch")
        if not (got.min() >= 0 and got.max() <= drafts):
            raise AssertionError(f"schedule: lengths outside 0 .. {drafts}")

    def make_inputs():
        now, before = torch.rand(2, batch, drafts) ** 0.3
        lagged = None if mode == "early_stop" else before
        return now, cost_table(batch, drafts), lagged

    size = 4 * batch * drafts + 8 * batch * (drafts + 1) + 8 * batch
    return harness.Case(
        name=f"schedule {mode} B={batch} K={drafts}",
        make_inputs=make_inputs,
        run=run,
        baseline=eager_schedule if mode == "early_stop" else None,
        baseline_name="eager torch" if mode == "early_stop" else "-",
        check=check,
        floor_bytes=size,
        moved_bytes=size,
        devices=harness.ANYWHERE,
    )


def pass_inputs(batch: int, drafts: int) -> tuple:
    chosen = verify.schedule(torch.rand(batch, drafts) ** 0.3, cost=cost_table(batch, drafts))
    return (
        torch.randint(0, 1000, (batch,)),
        torch.randint(0, 1000, (batch, drafts)),
        torch.randint(0, 1000, (batch,)),
        chosen,
    )


def pack_case(batch: int, drafts: int = 5) -> harness.Case:
    most = batch * (drafts + 1)

    def run(anchor, ids, seq_lens, chosen):
        return verify.pack(anchor, ids, seq_lens, chosen, max_rows=most)

    def baseline(anchor, ids, seq_lens, chosen):
        return eager_pack(anchor, ids, seq_lens, chosen.verify_lens, most)

    def check(inputs: tuple) -> None:
        for got, want in zip(run(*inputs)[:3], baseline(*inputs), strict=True):
            if not torch.equal(got, want):
                raise AssertionError("pack: other rows than those of eager torch")

    size = 8 * batch * (drafts + 2) + 8 * batch + most * (8 + 8 + 4 + 8 + 8)
    return harness.Case(
        name=f"pack B={batch} K={drafts}",
        make_inputs=lambda: pass_inputs(batch, drafts),
        run=run,
        baseline=baseline,
        baseline_name="eager torch",
        check=check,
        floor_bytes=size,
        moved_bytes=size,
        devices=harness.ANYWHERE,
    )


def packed(batch: int, drafts: int) -> tuple:
    anchor, ids, seq_lens, chosen = pass_inputs(batch, drafts)
    return verify.pack(anchor, ids, seq_lens, chosen, max_rows=batch * (drafts + 1)), seq_lens


def unpack_case(batch: int, drafts: int = 5) -> harness.Case:
    def make_inputs():
        rows, _ = packed(batch, drafts)
        return torch.randn(batch * (drafts + 1), WIDTH).bfloat16(), rows

    def baseline(values, rows):
        out = values.new_zeros(batch, drafts + 1, WIDTH)
        valid = rows.request_ids >= 0
        request = rows.request_ids[valid].long()
        index = torch.arange(len(request), device=request.device) - rows.query_start_loc[request]
        out[request, index.long()] = values[valid]
        return out

    size = 2 * 2 * batch * (drafts + 1) * WIDTH
    return harness.Case(
        name=f"unpack bfloat16 B={batch} K={drafts} d={WIDTH}",
        make_inputs=make_inputs,
        run=lambda values, rows: verify.unpack(values, rows),
        baseline=baseline,
        baseline_name="eager torch",
        check=lambda inputs: torch.testing.assert_close(
            verify.unpack(*inputs), baseline(*inputs), atol=0, rtol=0
        ),
        floor_bytes=size,
        moved_bytes=size,
        devices=harness.ANYWHERE,
    )


class Emitted:
    """The part of a RejectionOutput that commit reads."""

    def __init__(self, num_emitted, last_token):
        self.num_emitted, self.last_token = num_emitted, last_token


def commit_case(batch: int, drafts: int = 5) -> harness.Case:
    def make_inputs():
        rows, seq_lens = packed(batch, drafts)
        emitted = 1 + (torch.rand(batch) * (rows.verify_lens + 1)).floor().int()
        return emitted, torch.randint(0, 1000, (batch,)), rows, seq_lens

    def run(emitted, last, rows, seq_lens):
        return verify.commit(Emitted(emitted, last), rows, seq_lens)

    def baseline(emitted, last, rows, seq_lens):
        request = rows.request_ids.long()
        index = torch.arange(len(request), device=request.device) - rows.query_start_loc[request]
        kept = (request >= 0) & (index < emitted[request])
        return seq_lens + emitted, last, kept, rows.verify_lens + 1 - emitted

    def check(inputs: tuple) -> None:
        for got, want in zip(run(*inputs), baseline(*inputs), strict=True):
            if not torch.equal(got, want):
                raise AssertionError("commit: other results than those of eager torch")

    size = batch * (4 + 8 + 8 + 4 + 8 + 8 + 4) + batch * (drafts + 1)
    return harness.Case(
        name=f"commit B={batch} K={drafts}",
        make_inputs=make_inputs,
        run=run,
        baseline=baseline,
        baseline_name="eager torch",
        check=check,
        floor_bytes=size,
        moved_bytes=size,
        devices=harness.ANYWHERE,
    )


def make_cases(quick: bool = False) -> list[harness.Case]:
    batches = (2,) if quick else (1, 32, 256)
    parts = (schedule_case, pack_case, unpack_case, commit_case)
    cases = [make(batch) for make in parts for batch in batches]
    return cases + [schedule_case(batches[-1], mode=mode) for mode in ("lagged", "uniform")]


GROWTHS = {
    "B": [
        Growth(f"{name} K=5", (16, 32, 64, 128, 256, 512), make)
        for name, make in (
            ("schedule", schedule_case),
            ("pack", pack_case),
            ("commit", commit_case),
        )
    ],
    "K": [
        Growth(
            "schedule B=64",
            (1, 2, 4, 8, 16),
            lambda value: schedule_case(64, value),
        )
    ],
}


if __name__ == "__main__":
    torch.manual_seed(0)
    harness.main(__doc__.partition("\n")[0], make_cases, GROWTHS)
