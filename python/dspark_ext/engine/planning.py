"""How many drafts of each request a step verifies, by the engine's settings."""

import torch

from .. import verify
from .._upload import upload
from .config import SpeculativeConfig
from .drafting import Proposal


def plan(
    config: SpeculativeConfig,
    proposal: Proposal,
    room: list[int],
    *,
    cost_table: verify.CostTable | None,
    lagged_confidence: torch.Tensor | None,
    num_other_rows: int,
) -> tuple[verify.Schedule, int]:
    """The schedule of a step, and its number of rows.

    room               drafts each request may have verified, known before the drafts
    lagged_confidence  fp32 [B, n], of the step before; read by schedule "lagged"
    num_other_rows     prompt tokens in the same pass

    With schedule "fixed" the number of rows is known on the host; otherwise it is read.
    """
    confidence = proposal.draft.confidence
    capacity = [min(pair) for pair in zip(proposal.made, room)]
    if config.schedule == "fixed" or not confidence.shape[1]:
        chosen = verify.schedule(
            None,
            mode="fixed",
            capacity=upload(capacity, torch.int32, confidence.device),
            num_drafts=confidence.shape[1],
        )
        return chosen, len(capacity) + sum(capacity)
    arguments = {}
    if config.schedule == "threshold":
        confidence, arguments["threshold"] = _against(confidence, config.confidence_threshold)
    elif config.schedule == "budget":
        arguments["budget"] = max(config.verify_budget, len(capacity))
    else:
        arguments["cost"] = cost_table
    if config.schedule == "lagged":
        arguments["lagged_confidence"] = lagged_confidence
    chosen = verify.schedule(
        confidence,
        mode=config.schedule,
        capacity=capacity,
        num_other_rows=num_other_rows,
        **arguments,
    )
    return chosen, int(chosen.num_rows)


def _against(confidence: torch.Tensor, threshold) -> tuple[torch.Tensor, float]:
    """Confidences and one bound for them; thresholds by position become passed or not."""
    if not isinstance(threshold, tuple):
        return confidence, threshold
    bounds = upload(threshold[: confidence.shape[1]], confidence.dtype, confidence.device)
    return (confidence >= bounds).to(confidence.dtype), 0.5
