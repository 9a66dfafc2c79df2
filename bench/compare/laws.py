"""Whether counted tokens follow a law: Pearson's chi-square, for the checks before timing."""

import torch

SMALL_BATCH, SMALL_VOCAB = 5000, 12
FALSE_ALARM = 1e-6


def assert_likely(statistic: torch.Tensor, cells: torch.Tensor, what: str) -> None:
    """cells: bool, those that the statistic sums over. AssertionError if it is too large for
    chance."""
    degrees = int(cells.sum()) - 1
    halves = torch.tensor([degrees / 2, float(statistic) / 2], dtype=torch.float64)
    p = float(torch.special.gammaincc(*halves)) if degrees else 1.0
    assert p > FALSE_ALARM, f"{what}, p = {p:.2g}"
