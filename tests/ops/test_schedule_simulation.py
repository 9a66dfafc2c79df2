"""The simulation of bench/: its arithmetic, the law of its recording, and what it concludes."""

import pathlib
import sys

import numpy as np
import pytest
import torch

BENCH = pathlib.Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import schedule_costs  # noqa: E402
import schedule_simulation as simulation  # noqa: E402

from dspark_ext.verify import CostTable  # noqa: E402

POLICIES = {policy.name: policy for policy in simulation.POLICIES}
COSTS = schedule_costs.StepCosts(
    name="by hand",
    target=CostTable([1, 101], [1.0, 3.0]),
    draft=[0.0] + [0.5] * schedule_costs.MAX_REQUESTS,
    append=(0.0, 0.001),
    per_request=0.01,
    window=4,
    facts={},
)


def traces_of(*texts):
    accepted = np.concatenate([np.array(text, np.int64) for text in texts])
    starts = np.cumsum([0] + [len(text) for text in texts])
    return simulation.Traces(torch.full((len(accepted), 5), 0.5), accepted, starts)


def test_plain_decoding_emits_a_token_per_step():
    outcome = simulation.Loop(POLICIES["none"], traces_of([5] * 40), COSTS, 3).serve(3, 300)
    assert (outcome.tokens, outcome.steps, outcome.verified) == (300, 100, 0)
    assert outcome.seconds == pytest.approx(100 * (1.0 + 2 * 0.02 + 3 * 0.01))


def test_fixed_lengths_walk_through_the_recording():
    """Blocks at 0, 3, 4, 8: three tokens, one, four, and of the last four two are wanted."""
    traces = traces_of([2, 9, 9, 0, 5, 9, 9, 9, 3, 9])
    loop = simulation.Loop(POLICIES["fixed 3"], traces, COSTS, 1)
    loop._requests.at[:] = 0
    outcome = loop.serve(1, 10)
    assert (outcome.tokens, outcome.steps, outcome.verified) == (10, 4, 12)
    taken_in = [1, 3, 1, 4]
    step = COSTS.pass_seconds(4, 1) + 0.5
    assert outcome.seconds == pytest.approx(4 * step + 0.001 * sum(taken_in))


def test_a_drafter_catches_up_within_its_window():
    loop = simulation.Loop(POLICIES["fixed 1"], traces_of([0] * 40), COSTS, 1)
    loop._pending[:] = 1000
    loop._requests.at[:] = 0
    outcome = loop.serve(1, 1)
    assert outcome.seconds == pytest.approx(COSTS.pass_seconds(2, 1) + 0.5 + 0.004)


def test_the_passes_of_the_table_go_on_by_its_rule():
    for rows in (1, 100, 101, 102, 500):
        expected = COSTS.target.cost(rows) + 2 * 0.01
        assert COSTS.pass_seconds(rows, 2) == pytest.approx(expected)


def test_the_roofline():
    """At few rows a pass reads 15.1 GB at 3.84 TB/s; at many it computes 15.1 GFLOP a row."""
    model = schedule_costs.Roofline()
    assert model.target(1) == pytest.approx(0.3e-3 + 15.14e9 / 3.84e12, rel=1e-3)
    assert model.target(1000) == pytest.approx(0.3e-3 + 1000 * 15.14e9 / 593.4e12, rel=1e-3)


def test_the_recording():
    path = BENCH / "data/traces.npz"
    assert path.stat().st_size < 200_000
    arrays = simulation.recorded(path)
    count = len(arrays["accepted"])
    assert arrays["conf_logits"].shape == (count, 5) and count == arrays["starts"][-1] > 5000
    assert len(arrays["questions"]) == len(arrays["temperatures"]) == len(arrays["starts"]) - 1
    traces, facts = simulation.split(arrays)
    assert facts["blocks"] + facts["blocks_fitted"] == count
    assert len(traces["raw"].accepted) == facts["blocks"] == traces["raw"].starts[-1]
    assert min(facts["auc_calibrated"]) > 0.65


def test_the_coupling_of_text_and_drafts_is_that_of_the_token_rule():
    """From y ~ p: drafts follow q, and y is kept with probability sum min(p, q)."""
    pytest.importorskip("rich")
    from record_traces import _draw

    count = 40000
    generator = torch.Generator().manual_seed(0)
    p, q = torch.tensor([0.5, 0.2, 0.2, 0.1]), torch.tensor([0.1, 0.3, 0.2, 0.4])
    emitted = torch.multinomial(p.expand(count, -1), 1, generator=generator)[:, 0]
    alive = torch.arange(count) % 4 != 0
    rows = (p.log().mul(0.8).expand(count, -1), q.log().mul(0.8).expand(count, -1))
    drafts, kept = _draw(*rows, emitted, alive, 0.8, generator)
    error = 4 * 0.5 / (count / 4) ** 0.5
    for chosen in (alive, ~alive):
        law = torch.bincount(drafts[chosen], minlength=4) / chosen.sum()
        assert ((law - q).abs() < error).all()
    assert not kept[~alive].any() and (drafts[kept] == emitted[kept]).all()
    assert abs(kept[alive].float().mean() - torch.minimum(p, q).sum()) < error
    # what is rejected and what is emitted instead are independent
    both = torch.zeros(4, 4)
    rejected = alive & ~kept
    both.index_put_((drafts[rejected], emitted[rejected]), torch.ones(()), accumulate=True)
    expected = torch.outer((q - p).clamp(min=0), (p - q).clamp(min=0))
    assert ((both / both.sum() - expected / expected.sum()).abs() < error).all()


@pytest.mark.parametrize("name", ["gate + early_stop, smooth", "gate + lagged"])
@pytest.mark.parametrize("count", [4, 64, 256])
def test_adaptive_is_not_below_none_and_fixed(name, count):
    traces, _ = simulation.split(simulation.recorded(BENCH / "data/traces.npz"))

    def rate(name, steps):
        loop = simulation.Loop(POLICIES[name], traces["calibrated"], schedule_costs.h200(), count)
        loop.serve(count, 32 * count)
        return loop.serve(count, max(3000, steps * count)).tokens_per_second

    best = max(rate(each, 60) for each in ("none", "fixed 2", "fixed 5"))
    assert rate(name, 300) > 0.97 * best
