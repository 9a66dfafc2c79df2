"""Which experts a token goes to, and with which weights."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .. import _operators as _ops

__all__ = ["DEAD_ROW", "EMPTY_ROW", "INVALID_ID", "NAN_ROW", "Routing", "route"]


NAN_ROW = 1
EMPTY_ROW = 4
INVALID_ID = 16
DEAD_ROW = NAN_ROW | INVALID_ID  # any of these: the weights of the row are 0


class Routing(NamedTuple):
    """Result of `route` with `return_status`. S is k, or k + 1 with a shared expert.

    ids: int32 [T, S], experts.
    weights: float32 [T, S].
    status: int32 [T], bits NAN_ROW, EMPTY_ROW, INVALID_ID.
    """

    ids: torch.Tensor
    weights: torch.Tensor
    status: torch.Tensor


def route(
    logits: torch.Tensor,
    k: int,
    *,
    scoring: str = "softmax",
    bias: torch.Tensor | None = None,
    num_groups: int | None = None,
    topk_groups: int | None = None,
    renormalize: bool = True,
    scale: float = 1.0,
    hash_ids: torch.Tensor | None = None,
    hash_table: torch.Tensor | None = None,
    shared_expert_weight: float | None = None,
    return_status: bool = False,
) -> tuple[torch.Tensor, torch.Tensor] | Routing:
    """Chooses k of E experts for each of T tokens.

    A token's scores are `softmax(logits)`, `sigmoid(logits)` or `sqrt(softplus(logits))`
    (DeepSeek-V4), each computed without overflow or loss near 0. The k experts with the largest
    biased score, `score + bias`, are chosen; equal ones go to the lower id. Slots are in this
    order. A weight is the *unbiased* score of the expert, with `renormalize` divided by the sum of
    the chosen scores + 1e-20 (where all of them are 0, the weights are 0), times `scale`.

    Every operation and its order is fixed (docs/numerics.md, section 12): ids and weights have the
    same bits on every device, for any T, any neighbours and any thread count.

    Args:
        logits: `[T, E]` float32, bfloat16 or float16, router logits; rows may lie at any stride.
            E from 1 to 4096, T may be 0. `+inf` counts as the largest finite number.
        k: int, experts per token, up to E and 32.
        scoring: "softmax", "sigmoid" or "sqrtsoftplus".
        bias: `[E]` float32 or None: added to the scores to choose by, never part of a weight
            (DeepSeek's `e_score_correction_bias`). An expert with bias `-inf` is chosen only where
            no other is left, with weight 0.
        num_groups: int, up to 64; None, 0 or 1: no groups. Experts are cut into that many groups of
            equal size, and only the best `topk_groups` of them take part. The score of a group is
            the sum of its two best biased scores; equal groups go to the lower index.
        topk_groups: int, from 1 to num_groups; they must hold k experts. Not used without groups.
        renormalize: bool.
        scale: float, factor of all weights (DeepSeek's `routed_scaling_factor`).
        hash_ids: `[T]` int64 or int32, token ids, with `hash_table`; None: experts are chosen by
            score.
        hash_table: `[V, k]` int32: the experts of each token id, taken as they stand (order and
            repetitions included). Weights are those of their scores as above. Neither `bias` nor
            groups can be given.
        shared_expert_weight: float or None. If given, each row gets one more slot at its end, with
            id E and this weight, which no other rule touches.
        return_status: bool, return a `Routing` with the status of each row.

    Returns:
        `(ids, weights)`, `[T, S]` int32 and `[T, S]` float32, S = k, or k + 1 with a shared expert;
        with `return_status` a `Routing`, whose `status` `[T]` int32 has the bits

        * `NAN_ROW` 1: a logit or biased score of the row is NaN (NaN in the bias: every row);
        * `EMPTY_ROW` 4: no logit of the row is above `-inf`. Scores are 0 and ids follow the bias;
        * `INVALID_ID` 16: the token id is outside `[0, V)` or its table row has an id outside
          `[0, E)`.

        A row with `NAN_ROW` or `INVALID_ID` (`DEAD_ROW`) has the ids 0 .. k-1 and weights 0, the
        shared expert's included: it gives nothing, and its ids are distinct and in range.

    Raises:
        RuntimeError: a shape, dtype or number does not fit; the message names the argument.

    Source: DeepSeek-V3 report section 2.1.2 (bias, groups), DeepSeek-V4 (sqrtsoftplus, hash
    layers).
    """
    result = _ops.route(
        logits,
        k,
        scoring,
        bias,
        0 if num_groups is None else num_groups,
        0 if topk_groups is None else topk_groups,
        renormalize,
        scale,
        hash_ids,
        hash_table,
        shared_expert_weight,
    )
    return Routing(*result) if return_status else (result[0], result[1])
