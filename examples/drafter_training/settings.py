"""What a training run is made of: everything that decides its weights, and nothing else."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

LOSSES = ("paper", "kl-tv")
OPTIMIZERS = ("muon", "adamw")
PRECISIONS = ("bf16", "fp32")


class SettingsError(ValueError):
    """Settings that make no run; the message lists every finding."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Two runs with equal settings, heads and data have equal weights after every step.

    steps             of the whole schedule, whether or not a run gets that far
    rows_per_step     rows of text in a batch; every row once before any comes again
    anchors_per_row   blocks per row, at random positions of the answer
    learning_rate     at its peak; it rises over `warmup_steps`, and falls linearly to
                      `final_share` of itself over the last `decay_share` of the steps
    loss              "paper": ce_share * cross entropy with the text's tokens + tv_share * total
                      variation. "kl-tv": w * KL + (1 - w) * TV, w falling from 1 to 0.1 over the
                      first 70 % of the steps
    confidence_share  of the binary cross entropy of the confidence against 1 - TV
    gamma             a draft k weighs exp(-(k - 1) / gamma)
    optimizer         "muon": Muon for the matrices, AdamW for the rest; "adamw": for all
    average_decay     of the running average of the weights, which is what is saved
    precision         of the matrix products; weights and sums are float32
    """

    steps: int = 2300
    rows_per_step: int = 4
    anchors_per_row: int = 64
    learning_rate: float = 2e-3
    warmup_steps: int = 30
    decay_share: float = 0.4
    final_share: float = 0.01
    loss: str = "paper"
    ce_share: float = 0.1
    tv_share: float = 0.9
    confidence_share: float = 1.0
    gamma: float = 4.0
    optimizer: str = "muon"
    average_decay: float = 0.996
    precision: str = "bf16"
    seed: int = 0

    def __post_init__(self) -> None:
        findings = []

        def check(name: str, fits: bool, expected: str) -> None:
            if not fits:
                findings.append(f"{name}: expected {expected}, got {getattr(self, name)!r}")

        for name in ("steps", "rows_per_step", "anchors_per_row"):
            check(name, getattr(self, name) >= 1, "at least 1")
        for name in ("learning_rate", "gamma"):
            check(name, 0 < getattr(self, name) < math.inf, "a number above 0")
        for name in ("warmup_steps", "ce_share", "tv_share", "confidence_share", "seed"):
            check(name, 0 <= getattr(self, name) < math.inf, "at least 0")
        for name in ("decay_share", "final_share"):
            check(name, 0 <= getattr(self, name) <= 1, "a number in [0, 1]")
        check("average_decay", 0 <= self.average_decay < 1, "a number in [0, 1)")
        check("loss", self.loss in LOSSES, f"one of {', '.join(LOSSES)}")
        check("optimizer", self.optimizer in OPTIMIZERS, f"one of {', '.join(OPTIMIZERS)}")
        check("precision", self.precision in PRECISIONS, f"one of {', '.join(PRECISIONS)}")
        if self.loss == "paper" and not self.ce_share + self.tv_share > 0:
            findings.append("ce_share and tv_share: expected one of them above 0")
        if findings:
            raise SettingsError("training settings: " + "; ".join(findings))

    def learning_rate_at(self, step: int) -> float:
        """Of the update that follows `step` others."""
        rise = (step + 1) / max(self.warmup_steps, 1)
        fall = (self.steps - step) / max(self.decay_share * self.steps, 1.0)
        return self.learning_rate * min(1.0, rise, max(fall, self.final_share))

    def shares_at(self, step: int) -> tuple[float, float, float]:
        """Of the cross entropy with the text's token, of that with the target's law, and of TV."""
        if self.loss == "paper":
            return self.ce_share, 0.0, self.tv_share
        kl = max(0.1, 1.0 - 0.9 * step / (0.7 * self.steps))
        return 0.0, kl, 1.0 - kl

    def to_dict(self) -> dict:
        return dataclasses.asdict(self)
