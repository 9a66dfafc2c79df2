"""Sampling a draft block from base logits with a Markov head, and how sure the drafter is of it.

B requests, K rows of base logits per request, r Markov rank, V target vocabulary, V_draft rows of
the drafter's head. Arithmetic: docs/numerics.md section 10.
"""

from typing import NamedTuple

import torch

from . import _operators as _ops
from ._integers import as_int64
from ._parameters import floats, integers

__all__ = [
    "DraftOutput",
    "DraftStep",
    "RowStatistics",
    "calibrate",
    "confidence",
    "draw_shard",
    "markov_logits",
    "markov_sample",
    "row_statistics",
]


class RowStatistics(NamedTuple):
    """What a pass over rows of logits yields under a temperature, tiles = ceil(V / 4096) per row:
    docs/numerics.md sections 1 to 3.

    temperature: float32 [B, n], what the row was drawn with; 0: greedy.
    tile_max: float32 [B, n, tiles], m_t: the largest logit as it is read; -inf for an empty tile.
    tile_sum: float32 [B, n, tiles], S_t: the canonical sum of the weights; 0 on greedy rows.
    tile_nan: uint8 [B, n, tiles], 1 where the tile holds a NaN.
    """

    temperature: torch.Tensor
    tile_max: torch.Tensor
    tile_sum: torch.Tensor
    tile_nan: torch.Tensor


class DraftOutput(NamedTuple):
    """Result of `markov_sample`, n drafts per request.

    token_ids: int64 [B, n], x_1..x_n, target ids.
    logits: [B, n, V] in the dtype of base_logits: exactly what each id was drawn from, before the
        temperature; `rejection_sample` takes them as draft_logits.
    prev_embed: [B, n, r] in the dtype of w1: w1[x_{k-1}], what `confidence` reads.
    statistics: `RowStatistics` of the logits, those that the draws went by.
    """

    token_ids: torch.Tensor
    logits: torch.Tensor
    prev_embed: torch.Tensor
    statistics: RowStatistics


def markov_sample(
    base_logits: torch.Tensor,
    anchor: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    *,
    head: str = "vanilla",
    hidden: torch.Tensor | None = None,
    head_weight: torch.Tensor | None = None,
    head_bias: torch.Tensor | None = None,
    method: str = "probabilistic",
    temperature: torch.Tensor | float,
    seeds: torch.Tensor | int,
    positions: torch.Tensor | int,
    d2t: torch.Tensor | None = None,
    num_drafts: int | None = None,
    exact: bool = False,
    vocab_size: int | None = None,
) -> DraftOutput:
    """Draws x_1..x_n one after the other from logits_k = base_k + w2 u_k.

    With e = w1[x_{k-1}] and h = hidden_k, u_k is, by head:

    - vanilla: e
    - gated: sigmoid(W [h ; e] + bias) * e
    - rnn: tanh(o), where (g, c, o) = W [s ; e ; h] + bias in thirds and the state s, zeros before
      x_1, becomes sigmoid(g) * s + (1 - sigmoid(g)) * tanh(c).

    The logits are rounded to the dtype of base_logits first and the draw reads the rounded ones, so
    the distribution that verification recomputes from them is the one sampled from. The draw
    depends on the request's own logits, seed and position only, not on its place in the batch.

    Args:
        base_logits: [B, K, V_draft] float32, bfloat16 or float16; -inf excludes an id. K may be
            more or fewer rows than the head was trained for.
        anchor: int64 [B] (other integers are converted), x_0, in [0, V).
        w1: [V, r], embedding of the previous token, by target id.
        w2: [V_draft, r], its effect on each draft id. float32, bfloat16 or float16, each of them.
        head: "vanilla", "gated" or "rnn". The other two need `hidden` and `head_weight`.
        hidden: [B, K, d], rows of the draft backbone, as the head was trained on them.
        head_weight: W: gated [r, d + r], columns in the order [h ; e]; rnn [3r, 2r + d], columns
            [s ; e ; h], rows [g ; c ; o]. DeepSpec's `gate_proj`, `joint_proj`.
        head_bias: [r] or [3r]; None: zeros. Each of the three float32, bfloat16 or float16.
        method: "probabilistic" draws (argmax on rows of temperature 0); "greedy" takes the argmax
            on every row (pass no draft_logits to `rejection_sample` then: the proposal is one-hot).
            Ties go to the lowest id.
        temperature: float32 [B] or a number, >= 0.
        seeds: int64 [B] or an int, one per request.
        positions: int64 [B] or an int, absolute position of x_1. x_k is drawn from the stream DRAFT
            at positions + k - 1, slot k - 1.
        d2t: int64 [V_draft], target_id = draft_id + d2t[draft_id], distinct; for a drafter with a
            reduced vocabulary. Ids without a draft id get -inf.
        num_drafts: n, 0..K; default K.
        exact: also on devices with matrix units, take the bias product in the fixed order of
            docs/numerics.md, section 10, which gives the same bits everywhere. False: matrix units
            may take it, u rounded to the dtype of w2; a request's bits then depend on the kind of
            device, still not on the batch. On a CPU without AMX, and for a float32 w2, there is one
            order and this changes nothing.
        vocab_size: V, width of the logits kept; default V_draft, with d2t the rows of w1.

    Raises RuntimeError for shapes, dtypes, a head without its parts and, on a CPU, a token without
    an embedding, colliding d2t, negative or non-finite temperatures. A GPU reads no values on the
    host: there a token without an embedding has the zero embedding; a request with such a
    temperature gets ids -1 and its statistics a NaN temperature; a draft id whose target lies
    outside [0, V) is dropped; d2t that collide are the caller's to avoid.

    Source: DSpark paper section 3.1; DeepSpec markov_head.py.
    """
    op = "markov_sample"
    _check_dim(op, "base_logits", base_logits, ("B", "K", "V_draft"))
    _check_dim(op, "w1", w1, ("V", "r"))
    _, num_rows, width = base_logits.shape
    if num_drafts is None:
        num_drafts = num_rows
    if vocab_size is None:
        vocab_size = width if d2t is None else w1.shape[0]
    token_ids, logits, prev_embed, *statistics = _ops.markov_sample(
        base_logits,
        as_int64(op, "anchor", anchor),
        w1,
        w2,
        head,
        hidden,
        head_weight,
        head_bias,
        method,
        floats(op, "temperature", temperature, base_logits, base_logits),
        integers(op, "seeds", seeds, base_logits, base_logits),
        integers(op, "positions", positions, base_logits, base_logits),
        None if d2t is None else as_int64(op, "d2t", d2t),
        num_drafts,
        vocab_size,
        exact,
    )
    return DraftOutput(token_ids, logits, prev_embed, RowStatistics(*statistics))


class DraftStep(NamedTuple):
    """Result of `markov_logits`.

    logits: [B, V_draft] in the dtype of base_logits.
    prev_embed: [B, r] in the dtype of w1.
    state: float32 [B, r], what the next step of an rnn head is given; None for the others.
    """

    logits: torch.Tensor
    prev_embed: torch.Tensor
    state: torch.Tensor | None


def markov_logits(
    base_logits: torch.Tensor,
    anchor: torch.Tensor,
    w1: torch.Tensor,
    w2: torch.Tensor,
    *,
    head: str = "vanilla",
    hidden: torch.Tensor | None = None,
    head_weight: torch.Tensor | None = None,
    head_bias: torch.Tensor | None = None,
    state: torch.Tensor | None = None,
    exact: bool = False,
) -> DraftStep:
    """The logits of one draft, as `markov_sample` has them: for loops that change them before the
    draw, or whose vocabulary is spread over processes.

    Args:
        base_logits: [B, V_draft], of this draft; the logits of a column depend on that column of
            base_logits and that row of w2 alone, so both may be a part of the vocabulary.
        anchor: int64 [B], the token before this draft.
        w1, w2, head, head_weight, head_bias, exact: as in `markov_sample`.
        hidden: [B, d], of this draft.
        state: float32 [B, r], of an rnn head, from the step before; None: zeros, before x_1.

    Raises RuntimeError as `markov_sample` does.

    Source: DSpark paper section 3.1; DeepSpec markov_head.py.
    """
    op = "markov_logits"
    _check_dim(op, "base_logits", base_logits, ("B", "V_draft"))
    if hidden is not None:
        _check_dim(op, "hidden", hidden, ("B", "d"))
    logits, prev_embed, next_state = _ops.markov_logits(
        base_logits.unsqueeze(1),
        as_int64(op, "anchor", anchor),
        w1,
        w2,
        head,
        None if hidden is None else hidden.unsqueeze(1),
        head_weight,
        head_bias,
        state,
        exact,
    )
    return DraftStep(
        logits.squeeze(1), prev_embed.squeeze(1), next_state if head == "rnn" else None
    )


def row_statistics(logits: torch.Tensor, temperature: torch.Tensor | float) -> RowStatistics:
    """Statistics of rows on their own, by the arithmetic of `markov_sample`.

    Args:
        logits: [N, V] float32, bfloat16 or float16.
        temperature: float32 [N] or a number, >= 0; 0: greedy, no sums.

    Returns `RowStatistics` of [N] and [N, tiles]. Of a part of a vocabulary that begins at a
    multiple of 4096, they are that part of the statistics of the whole. Raises RuntimeError for
    shapes, dtypes, negative or non-finite temperatures; on a GPU the statistics of such a row have
    the temperature NaN and no sums.

    Source: docs/numerics.md, sections 1 to 3.
    """
    _check_dim("row_statistics", "logits", logits, ("N", "V"))
    heat = floats("row_statistics", "temperature", temperature, logits, logits)
    statistics = _ops.row_statistics(logits, heat)
    # On a CPU the operator has refused what would become NaN; what is left is the sign of a zero.
    drawn = heat.abs() if heat.is_cpu else _drawn_temperature(heat)
    return RowStatistics(drawn, *statistics)


def draw_shard(
    logits: torch.Tensor,
    first_tile: int,
    statistics: RowStatistics,
    *,
    seeds: torch.Tensor | int,
    positions: torch.Tensor | int,
    slot: int,
) -> torch.Tensor:
    """int64 [N]: the draw from rows of which only some tiles are here; -1 where the tile that is
    drawn from is elsewhere. The largest over all processes is the draw of the whole row, to the
    bit: every process finds the same tile, its holder finds the entry.

    Args:
        logits: [N, width], tiles first_tile, first_tile + 1, ... of the rows, whole ones but for
            the last of the row. width 0: none of them is here.
        first_tile: of the rows' tiles of 4096 entries.
        statistics: of the whole rows, [N] and [N, tiles].
        seeds, positions: int64 [N] or an int; the token to draw. Stream DRAFT.
        slot: place of the token in its block, 0 for x_1.

    A row without an entry above -inf gives 0. Raises RuntimeError for shapes, dtypes, tiles that
    are not whole and temperatures that are negative or not finite; on a GPU such a row gives -1.
    A GPU takes rows of up to 1024 tiles.

    Source: docs/numerics.md, section 6.
    """
    op = "draw_shard"
    _check_dim(op, "logits", logits, ("N", "width"))
    return _ops.draw_shard(
        logits,
        first_tile,
        statistics.tile_max,
        statistics.tile_sum,
        statistics.temperature,
        integers(op, "seeds", seeds, logits, logits),
        integers(op, "positions", positions, logits, logits),
        slot,
    )


def confidence(
    hidden: torch.Tensor,
    prev_embed: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | float | None = None,
    temperatures: torch.Tensor | None = None,
) -> torch.Tensor:
    """float32 [B, K]: probability that x_k is accepted if x_1..x_{k-1} were.

    sigmoid((weight . [hidden_k ; prev_embed_k] + bias) / temperature_k), accumulated in float32 in
    a fixed order. CONDITIONAL: the survival of x_k is the product over 1..k that `schedule` forms.

    Args:
        hidden: [B, K, d] float32, bfloat16 or float16, rows of the draft backbone (before or after
            its final norm, as the head was trained).
        prev_embed: [B, K, r], w1[x_{k-1}], from `markov_sample`; never the embedding of x_k itself.
        weight: [d + r] or [1, d + r].
        bias: one number, or None.
        temperatures: float32 [K] of sequential temperature scaling, > 0; None: uncalibrated. Read
            at each call, so they may be changed in place.

    A NaN among the inputs gives NaN, which `schedule` counts as 0. Raises RuntimeError for shapes,
    dtypes and temperatures that are not finite and > 0; on a GPU such a temperature gives NaN.

    Source: DSpark paper section 3.2 and 5; DeepSpec confidence_head.py.
    """
    if bias is not None:
        if not isinstance(bias, torch.Tensor):
            bias = torch.full((1,), bias, dtype=torch.float32, device=hidden.device)
        elif bias.dim() != 1:
            bias = bias.reshape(-1)
    if weight.dim() == 2 and weight.shape[0] == 1:
        weight = weight[0]
    return _ops.confidence(
        hidden, prev_embed, weight, bias, _as_temperatures(temperatures, hidden.device)
    )


def calibrate(conf_logits: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """sigmoid(conf_logits / temperatures), float32, by the arithmetic of `confidence`.

    Args:
        conf_logits: [..., K] logits of the confidence head, converted to float32; the result has
            this shape.
        temperatures: float32 [K], finite and > 0. Ones are the identity; the order of requests at
            one position does not change (values may come to tie by rounding).

    Raises RuntimeError for shapes and temperatures; on a GPU a temperature out of range gives NaN.

    Source: sequential temperature scaling, DSpark paper section 5.
    """
    if conf_logits.dim() == 0:
        raise RuntimeError("dspark_ext.calibrate: conf_logits: expected shape [..., K], got []")
    rows = conf_logits if conf_logits.dtype == torch.float32 else conf_logits.to(torch.float32)
    if rows.dim() == 2:
        return _ops.calibrate(rows, _as_temperatures(temperatures, rows.device))
    rows = rows.unsqueeze(0).flatten(0, -2)
    result = _ops.calibrate(rows, _as_temperatures(temperatures, rows.device))
    return result.reshape(conf_logits.shape)


def _as_temperatures(temperatures, device: torch.device) -> torch.Tensor | None:
    if temperatures is None:
        return None
    if isinstance(temperatures, torch.Tensor) and temperatures.dtype == torch.float32:
        return temperatures if temperatures.device == device else temperatures.to(device)
    return torch.as_tensor(temperatures, dtype=torch.float32, device=device)


def _check_dim(op: str, name: str, tensor: torch.Tensor, dims: tuple[str, ...]) -> None:
    if tensor.dim() != len(dims):
        raise RuntimeError(
            f"dspark_ext.{op}: {name}: expected shape [{', '.join(dims)}], got {list(tensor.shape)}"
        )


def _drawn_temperature(temperature: torch.Tensor) -> torch.Tensor:
    """What rows are drawn with: +0 for -0, NaN for what is negative or not finite."""
    is_valid = (temperature >= 0) & (temperature < torch.inf)
    return (temperature + 0.0).masked_fill(~is_valid, torch.nan)
