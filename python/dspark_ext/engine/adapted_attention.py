"""The cache and the attention that a Hugging Face model is given in place of its own.

The model gets the rows of a pass as one sequence, in the order of the batch, with their absolute
positions. Its attention layers write keys and values through `PassCache` and attend through
`adapted_attention`, registered with transformers as the attention implementation `NAME`; which keys
a row of which layer sees is what the model's own mask functions say of their absolute positions.
"""

import contextlib
import threading

import torch
import transformers
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..attention import attention
from .adapted_pass import Pass
from .target import UnsupportedModelError

NAME = "dspark_ext"
_running = threading.local()


class PassCache(transformers.Cache):
    """What the model takes for its cache: it writes to the store of the running pass."""

    def __init__(self, running: Pass) -> None:
        super().__init__(layers=[])
        self._pass = running

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        return self._pass.write(layer_idx, key_states, value_states)

    def get_seq_length(self, layer_idx: int = 0, *args, **kwargs) -> int:
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, *args, **kwargs) -> tuple[int, int]:
        return self._pass.length, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1


@contextlib.contextmanager
def running_pass(running: Pass):
    """Within it, `adapted_attention` and `adapted_mask` of this thread belong to a pass."""
    before = getattr(_running, "value", None)
    _running.value = running
    try:
        yield
    finally:
        _running.value = before


def adapted_mask(batch_size, q_length, kv_length, q_offset=0, kv_offset=0, **kwargs):
    """The mask function of `NAME`: bool [1, 1, N, length], the model's rule at absolute positions.
    Outside a pass the model is used by others: a plain mask for the whole of it."""
    running = getattr(_running, "value", None)
    if running is None:
        kwargs["allow_is_causal_skip"] = False
        return sdpa_mask(batch_size, q_length, kv_length, q_offset, kv_offset, **kwargs)
    rule = kwargs["mask_function"]
    none = torch.zeros((1, 1, 1, 1), dtype=torch.int64, device=running.device)
    queries = running.positions[None, None, :, None]
    keys = torch.arange(running.length, device=running.device)[None, None, None, :]
    causal = keys <= queries
    return (rule(none, none, queries, keys) & causal).expand(1, 1, len(running.positions), -1)


def adapted_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """The attention function of `NAME`: query [1, Hq, N, D] of the pass's rows over their keys.

    On a CPU, where every row sees an unbroken range and nothing is done to the scores, by the
    row-invariant `attention`; else, and in fixed shapes, by torch, with softcap and sinks where the
    model has them.
    """
    if kwargs.get("position_bias") is not None:
        raise UnsupportedModelError(
            f"dspark_ext.engine.CausalLMTarget: {type(module).__name__} adds a position bias to "
            "its scores"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    running = getattr(_running, "value", None)
    if running is None:
        mixed = _softmax_attention(query, key, value, attention_mask, scale, softcap, s_aux)
        return mixed.transpose(1, 2), None
    rows, gathers = query[0].transpose(0, 1), running.store.gathers
    if gathers:
        shape = (len(running.blocks), running.length)
        keys, values = (each[0].transpose(0, 1).unflatten(0, shape) for each in (key, value))
    else:
        keys, values = running.stores_of(key)
    plain = softcap is None and s_aux is None and not running.fixed_shapes
    if plain and rows.device.type == "cpu" and _fits_operator(rows, keys, values):
        bounds = running.ranges(attention_mask)
        if bounds is not None:
            mixed = _row_invariant(running, rows, keys, values, bounds, scale)
            return mixed.to(query.dtype)[None], None
    visible = running.padded(running.visible(attention_mask))
    visible[..., 0] |= ~visible.any(-1)  # an empty row of the layout must not divide by zero
    if not gathers:
        keys, values = running.gathered(keys), running.gathered(values)
    queries, keys, values = (each.transpose(1, 2) for each in (running.padded(rows), keys, values))
    mixed = _softmax_attention(queries, keys, values, visible[:, None], scale, softcap, s_aux)
    return mixed.transpose(1, 2)[running.request_of, running.columns][None], None


def _fits_operator(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> bool:
    return (
        keys.dtype == values.dtype
        and keys.dtype in (torch.float32, torch.bfloat16)
        and query.shape[-1] == values.shape[-1] <= 256
        and query.shape[1] % keys.shape[2] == 0
    )


def _row_invariant(running: Pass, query, keys, values, bounds, scale: float) -> torch.Tensor:
    slots = running.request_of.int()
    if running.store.gathers:
        keys, values = keys.contiguous(), values.contiguous()
    elif running.row_blocks is not None:
        slots = running.row_blocks
    else:
        keys, values = running.gathered(keys), running.gathered(values)
    return attention(query.float().contiguous(), keys, values, slots, *bounds, scale)


def _softmax_attention(query, key, value, mask, scale, softcap, s_aux) -> torch.Tensor:
    """query [R, Hq, T, D], key and value [R, Hkv, L, ...], mask bool or additive, broadcast to
    [R, 1, T, L] -> [R, Hq, T, Dv]."""
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (each.repeat_interleave(groups, 1) for each in (key, value))
    if softcap is None and s_aux is None:
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scale, is_causal=False
        )
    scores = torch.einsum("rhtd,rhld->rhtl", query.float(), key.float()) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -torch.inf)
    elif mask is not None:
        scores = scores + mask
    if s_aux is not None:
        sinks = s_aux.float().view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, sinks], -1)
    weights = scores.softmax(-1)[..., : key.shape[2]].to(value.dtype)
    return torch.einsum("rhtl,rhld->rhtd", weights, value)


def register() -> None:
    """Make `NAME` known to transformers."""
    ALL_ATTENTION_FUNCTIONS.register(NAME, adapted_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, adapted_mask)
