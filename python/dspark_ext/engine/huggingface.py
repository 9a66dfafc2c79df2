"""A Hugging Face Llama-family model as a target, with a forward pass lean enough for a CPU.

The weights, the RoPE table and the layer structure come from the loaded model; the pass itself is
rewritten. In transformers one pass over 30 layers costs about 7 ms of Python and small operators
whatever the model's size, and its operators round a row differently with the number of rows. Here a
layer is a dozen operators, and each of them is row-invariant.

Weights are kept in `weight_dtype`, and what a matrix reads is rounded to it; the residual stream,
norms, RoPE and the cache are fp32 (in bf16 too, a small model loses the thread).
"""

from collections.abc import Sequence

import torch

from .. import decoder
from ..attention import attention
from . import slot_state
from .cache import CacheRows, KVCache, PagedKVCache
from .identity import fingerprint
from .packing import PackedMatrix, pack
from .paging import make_pool
from .rope import check_rope
from .target import TargetBatch, TargetOutput

SUPPORTED_MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")


class HuggingFaceTarget:
    """Serve `model` (a transformers causal LM of a supported model type) with our own KV cache.

    model         its weights are copied (packed); it may be dropped afterwards
    taps          0-based decoder layers whose outputs are the features, in this order; the
                  drafter's `dspark_target_layer_ids`
    max_requests  cache slots
    max_len       positions per slot
    weight_dtype  torch.float32 or torch.bfloat16: dtype of the matrices and of the embedding
    block_size    None = dense cache, `max_len` positions for every slot; else positions per block
                  of a paged one, which gives the same bits
    num_blocks    blocks of the paged cache; default: enough for all slots to be full

    Row-invariant: the bits of a row do not depend on the rows beside it.

    Raises ValueError for another model type, another activation, a model that is not on a CPU, a
    tap that is no layer, or a RoPE whose frequencies change within `max_len`.
    """

    row_invariant = True

    def __init__(
        self,
        model: torch.nn.Module,
        taps: Sequence[int],
        *,
        max_requests: int,
        max_len: int,
        weight_dtype: torch.dtype = torch.float32,
        block_size: int | None = None,
        num_blocks: int | None = None,
    ) -> None:
        config = model.config
        _check_supported(config, taps)
        check_rope(type(self).__name__, model, config, max_len)
        _check_device(model)
        base = model.model
        self.hidden_size = config.hidden_size
        self.vocab_size = config.vocab_size
        self.num_heads = config.num_attention_heads
        self.num_kv_heads = config.num_key_value_heads
        self.head_dim = base.layers[0].self_attn.head_dim
        self.max_requests = max_requests
        self.max_len = max_len
        self.num_features = len(taps) * config.hidden_size

        self.embedding = base.embed_tokens.weight.detach().to(weight_dtype)
        self.lm_head_weight = model.lm_head.weight.detach().to(weight_dtype)
        self._lm_head = pack([self.lm_head_weight], weight_dtype)
        self._layers = [_Layer(layer, weight_dtype) for layer in base.layers]
        self._final_norm = base.norm.weight.detach().float()
        self._eps = config.rms_norm_eps
        self._scale = float(base.layers[0].self_attn.scaling)
        self._taps = {layer: index for index, layer in enumerate(taps)}
        self._windows = _sliding_windows(config)
        self._cos, self._sin = _rope_table(base, max_len)
        self.pool = make_pool(max_requests, max_len, block_size, num_blocks)
        sizes = (self.num_kv_heads, self.head_dim)
        if block_size is None:
            self.cache = KVCache(len(self._layers), max_requests, max_len, *sizes)
        else:
            self.cache = PagedKVCache(len(self._layers), self.pool, *sizes)
        self.identity = {
            "model_type": config.model_type,
            "weights": fingerprint(model),
            "weight_dtype": str(weight_dtype),
        }

    def reserve(self, slot: int, length: int) -> bool:
        """Room for `length` positions of a slot; False while there is none."""
        return self.pool.reserve(slot, length)

    def release(self, slot: int) -> None:
        """The request of a slot has ended."""
        self.pool.release(slot)

    def export_slot(self, slot: int, length: int) -> dict[str, torch.Tensor]:
        """Keys and values of positions 0 .. length-1, see `handover`."""
        stores = slot_state.flat_stores(self.cache.keys, self.cache.values)
        return slot_state.copy_out(stores, self.cache.cells(slot, 0, length))

    def check_slot(self, tensors: dict[str, torch.Tensor], token_ids: Sequence[int]) -> None:
        """HandoverError unless `import_slot` can take them."""
        stores = slot_state.flat_stores(self.cache.keys, self.cache.values)
        slot_state.check_rows(stores, tensors, len(token_ids), "target")

    @torch.inference_mode()
    def import_slot(
        self, slot: int, tensors: dict[str, torch.Tensor], token_ids: Sequence[int]
    ) -> None:
        """Make what `export_slot` gave the slot's; token_ids of its positions."""
        self.check_slot(tensors, token_ids)
        count = len(token_ids)
        positions = torch.arange(count, device="cpu")
        self.pool.grow(torch.full_like(positions, slot), positions)
        stores = slot_state.flat_stores(self.cache.keys, self.cache.values)
        slot_state.copy_in(stores, self.cache.cells(slot, 0, count), tensors)

    @torch.inference_mode()
    def forward(self, batch: TargetBatch) -> TargetOutput:
        """One pass over the rows of `batch`; see `TargetBatch` and `TargetOutput`."""
        positions = batch.positions
        rows = self.cache.begin(batch.slots, positions, self._cos, self._sin)
        key_end = (positions + 1).int()
        key_start = {None: torch.zeros_like(key_end)}
        for window in set(self._windows) - {None}:
            key_start[window] = (key_end - window).clamp_(min=0)

        hidden = self.embedding[batch.input_ids].float()
        features = hidden.new_empty(len(positions), len(self._taps), self.hidden_size)
        for index, layer in enumerate(self._layers):
            bounds = key_start[self._windows[index]], key_end
            hidden = hidden + self._attend(index, layer, hidden, rows, bounds)
            normed = decoder.rms_norm(hidden, layer.mlp_norm, self._eps)
            hidden = hidden + layer.down(decoder.silu_mul(layer.gate_up(normed)))
            if index in self._taps:
                features[:, self._taps[index]] = hidden
        wanted = decoder.rms_norm(hidden[batch.logit_rows], self._final_norm, self._eps)
        return TargetOutput(self._lm_head(wanted), features.flatten(1))

    def _attend(self, index, layer, hidden, rows: CacheRows, bounds):
        qkv = layer.qkv(decoder.rms_norm(hidden, layer.attention_norm, self._eps))
        qkv = qkv.view(len(hidden), -1, self.head_dim)
        query = decoder.rope_store(
            qkv,
            rows.cos,
            rows.sin,
            rows.positions,
            rows.slots,
            *self.cache.stores(index),
            num_heads=self.num_heads,
            query_norm=layer.query_norm,
            key_norm=layer.key_norm,
            eps=self._eps,
        )
        keys, values = self.cache.read(index, rows)
        mixed = attention(query, keys, values, rows.read_slots, *bounds, self._scale)
        return layer.out(mixed.flatten(1))


class _Layer:
    """Packed weights of one decoder layer; q/k/v and gate/up are one matrix each."""

    def __init__(self, layer: torch.nn.Module, weight_dtype: torch.dtype) -> None:
        attention_module, mlp = layer.self_attn, layer.mlp
        self.qkv = _pack(
            [attention_module.q_proj, attention_module.k_proj, attention_module.v_proj],
            weight_dtype,
        )
        self.out = _pack([attention_module.o_proj], weight_dtype)
        self.gate_up = _pack([mlp.gate_proj, mlp.up_proj], weight_dtype)
        self.down = _pack([mlp.down_proj], weight_dtype)
        self.attention_norm = layer.input_layernorm.weight.detach().float()
        self.mlp_norm = layer.post_attention_layernorm.weight.detach().float()
        self.query_norm = self.key_norm = None
        if hasattr(attention_module, "q_norm"):
            self.query_norm = attention_module.q_norm.weight.detach().float()
            self.key_norm = attention_module.k_norm.weight.detach().float()


def _pack(linears: Sequence[torch.nn.Linear], dtype: torch.dtype) -> PackedMatrix:
    weights, biases = zip(*((linear.weight, linear.bias) for linear in linears), strict=True)
    return pack(weights, dtype, biases)


def _check_supported(config, taps: Sequence[int]) -> None:
    if config.model_type not in SUPPORTED_MODEL_TYPES:
        raise ValueError(
            "dspark_ext.engine.HuggingFaceTarget: model: expected a model type of "
            f"{', '.join(SUPPORTED_MODEL_TYPES)}, got {config.model_type!r}"
        )
    if config.hidden_act != "silu":
        raise ValueError(
            f"dspark_ext.engine.HuggingFaceTarget: model: expected hidden_act 'silu', got "
            f"{config.hidden_act!r}"
        )
    for tap in taps:
        if not 0 <= tap < config.num_hidden_layers:
            raise ValueError(
                "dspark_ext.engine.HuggingFaceTarget: taps: expected layers in [0, "
                f"{config.num_hidden_layers}), got {tap}"
            )


def _check_device(model: torch.nn.Module) -> None:
    device = model.lm_head.weight.device
    if device.type != "cpu":
        raise ValueError(
            f"dspark_ext.engine.HuggingFaceTarget: model: expected one on a CPU, got {device}; its "
            "operators have no kernels there: use target_for, which takes CausalLMTarget then"
        )


def _sliding_windows(config) -> list[int | None]:
    """Window of each layer, None where it sees everything."""
    window = getattr(config, "sliding_window", None)
    if window is None or not getattr(config, "use_sliding_window", True):
        return [None] * config.num_hidden_layers
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    return [window if kind == "sliding_attention" else None for kind in kinds]


def _rope_table(base: torch.nn.Module, max_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos, sin fp32 [max_len, head_dim] as the model's own rotary embedding computes them."""
    with torch.inference_mode():
        positions = torch.arange(max_len, device="cpu")[None]
        cos, sin = base.rotary_emb(torch.empty(1, dtype=torch.float32, device="cpu"), positions)
    return cos[0].float().contiguous(), sin[0].float().contiguous()
