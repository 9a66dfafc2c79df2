"""A drafter whose confidences pass through a calibration."""

import torch

from ..draft import calibrate


class CalibratedDrafter:
    """Serves `drafter`; the logits of its confidences are divided by `calibration.temperatures`."""

    def __init__(self, drafter, calibration) -> None:
        self._drafter = drafter
        self._temperatures = calibration.tensor()

    def __getattr__(self, name: str):
        return getattr(self._drafter, name)

    def draft(self, batch, num_drafts: int, method: str):
        """See `engine.Drafter.draft`."""
        draft = self._drafter.draft(batch, num_drafts, method)
        logits = torch.logit(draft.confidence)
        if self._temperatures.device != logits.device:  # once: a graph captures no such copy
            self._temperatures = self._temperatures.to(logits.device)
        draft.confidence = calibrate(logits, self._temperatures[:num_drafts])
        return draft
