"""What a schedule may not have read, changed at random: the lengths stay.

docs/losslessness.md: of a request with l verified drafts the confidences c_1 .. c_{l+1} lie open.
All others are replaced, NaN included, under every mode and every limit.
"""

import numpy as np
import pytest
import torch

from dspark_ext import verify

MODES = ["early_stop", "budget", "lagged", "uniform", "threshold", "fixed"]


def random_confidence(rng, shape):
    some = rng.choice([0.0, 0.1, 0.5, 0.8, 0.9, 1.0, np.nan], size=shape)
    return (some if rng.random() < 0.5 else rng.random(shape)).astype(np.float32)


def random_arguments(rng, mode, batch, drafts):
    given = {}
    most = batch * (drafts + 1)
    if mode in ("early_stop", "lagged", "uniform"):
        cost = np.sort(rng.random(most + 3)) * 3 + 0.5
        given["cost"] = torch.from_numpy(np.round(cost * 2) / 2 if rng.random() < 0.3 else cost)
    if mode == "lagged" or (mode == "uniform" and rng.random() < 0.5):
        given["lagged_confidence"] = torch.from_numpy(random_confidence(rng, (batch, drafts)))
    if mode == "budget":
        given["budget"] = int(rng.integers(0, most + 2))
    if mode == "threshold":
        given["threshold"] = float(rng.choice([0, 0.3, 0.5, 0.8, 1.0]))
    for name, value in (
        ("capacity", torch.from_numpy(rng.integers(-1, drafts + 2, batch).astype(np.int32))),
        ("min_drafts", int(rng.integers(0, drafts + 1))),
        ("max_rows", int(rng.integers(batch, most + 1))),
        ("num_other_rows", int(rng.integers(0, 4))),
        ("num_requests", int(rng.integers(0, batch + 1))),
    ):
        if rng.random() < 0.4:
            given[name] = value
    return given


def lengths(confidence, mode, given):
    return verify.schedule(torch.from_numpy(confidence), mode=mode, **given).verify_lens.numpy()


def with_others_closed(rng, confidence, verified):
    """The same open confidences, other ones behind them."""
    changed = random_confidence(rng, confidence.shape)
    opened = np.arange(confidence.shape[1]) <= verified[:, None]
    return np.where(opened, confidence, changed)


@pytest.mark.parametrize("mode", MODES)
def test_lengths_do_not_read_what_is_closed(mode):
    rng = np.random.default_rng(MODES.index(mode))
    trimmed = 0
    for _ in range(800):
        batch, drafts = int(rng.integers(1, 5)), int(rng.integers(1, 6))
        confidence = random_confidence(rng, (batch, drafts))
        given = random_arguments(rng, mode, batch, drafts)
        verified = lengths(confidence, mode, given)
        trimmed += bool((verified + 1 < drafts).any())
        for _ in range(3):
            other = with_others_closed(rng, confidence, verified)
            np.testing.assert_array_equal(lengths(other, mode, given), verified, str(given))
    assert trimmed > 100


def test_a_global_maximum_is_seen():
    """Negative control: this step's confidences, copied, as the lagged ones."""
    rng = np.random.default_rng(9)
    changed = 0
    for _ in range(600):
        confidence = random_confidence(rng, (2, 3))
        cost = torch.from_numpy(np.sort(rng.random(12)) * 3 + 0.5)

        def chosen(values, cost=cost):
            copied = torch.from_numpy(values.copy())
            return lengths(values, "lagged", {"cost": cost, "lagged_confidence": copied})

        verified = chosen(confidence)
        changed += bool((chosen(with_others_closed(rng, confidence, verified)) != verified).any())
    assert changed > 10
