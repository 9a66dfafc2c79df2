"""How often a step makes the host wait for the device: once, whatever the requests."""

import pytest
import torch
from table_models import TableDrafter, TableTarget, table

from dspark_ext.engine import DSparkEngine, SamplingParams, SpeculativeConfig
from dspark_ext.verify import CostTable

LAW = table([[6, 2, 1], [1, 5, 3], [2, 1, 4]])
READS = ("tolist", "item", "cpu", "numpy", "__int__", "__bool__", "__float__", "__index__")


class QuietDrafter(TableDrafter):
    def append(self, features, positions, slots, token_ids):
        pass


@pytest.fixture
def reads(monkeypatch):
    """Names of the reads so far."""
    found = []

    def watch(name):
        method = getattr(torch.Tensor, name)

        def watched(self, *args, **kwargs):
            found.append(name)
            return method(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, watched)

    for name in READS:
        watch(name)
    return found


PARAMS = [
    SamplingParams(temperature=0.0, max_new_tokens=12, stop_token_ids=(2,), min_new_tokens=9),
    SamplingParams(temperature=0.7, top_k=2, max_new_tokens=12),
    SamplingParams(top_p=0.9, min_p=0.1, max_new_tokens=12),
]
COST = CostTable([1, 8], [1.0, 1.5])


@pytest.mark.parametrize(
    ("config", "most"),
    [
        ({}, 1),
        ({"num_speculative_tokens": 1}, 1),
        ({"min_acceptance": 0.5, "acceptance_window": 4, "probe_interval": 2}, 1),
        # the number of rows is decided on the device
        ({"schedule": "threshold", "confidence_threshold": 0.5}, 2),
        ({"schedule": "lagged", "cost_table": COST}, 2),
        # who gets a second block
        ({"blocks_per_step": 2, "continue_threshold": 0.3}, 2),
    ],
    ids=lambda value: ",".join(value) or "default" if isinstance(value, dict) else "",
)
def test_reads_per_step(reads, config, most):
    target = TableTarget(LAW, 3, 24)
    drafter = QuietDrafter(LAW, torch.tensor([0.9, 0.4, 0.7]), 2, 3, 24)
    engine = DSparkEngine(target, drafter, SpeculativeConfig(**config))
    for number, params in enumerate(PARAMS):
        engine.submit([0] * (1 + 3 * number), params, speculative=number != 1)
    counts = []
    while engine.has_work:
        reads.clear()
        engine.step()
        counts.append(len(reads))
    assert max(counts) == most and len(counts) > 4


def test_logprobs_are_read_only_when_asked_for(reads):
    engine = DSparkEngine(TableTarget(LAW, 1, 24))
    engine.submit([0], SamplingParams(max_new_tokens=1, logprobs=1))
    reads.clear()
    engine.step()
    assert 1 < len(reads) <= 5
