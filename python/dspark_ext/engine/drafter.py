"""What the engine asks of a drafter, and the drafter for a compact draft head."""

import dataclasses
import functools
from typing import Protocol

import torch

from ..draft import RowStatistics, confidence, markov_sample
from ..draft_head.compact import CompactDraftHead, DraftStage
from . import lean, slot_state
from .cache import KVCache
from .capture_check import drafter_obstacle
from .identity import fingerprint
from .packing import pack


@dataclasses.dataclass
class DraftBatch:
    """Requests that want drafts.

    anchor            int64 [B], x_0, the last emitted token
    anchor_positions  int64 [B], its absolute position P; x_1 will stand at P + 1
    slots             int64 [B], cache slots
    temperature       fp32 [B]; 0 = argmax
    seeds             int64 [B]
    """

    anchor: torch.Tensor
    anchor_positions: torch.Tensor
    slots: torch.Tensor
    temperature: torch.Tensor
    seeds: torch.Tensor


@dataclasses.dataclass
class Draft:
    """Proposals.

    token_ids     int64 [B, K]
    logits        [B, K, V], what they were drawn from; None: they are argmaxes or looked up, and
                  are to be judged as one-hot
    confidence    fp32 [B, K], P(x_k accepted | x_1 .. x_{k-1} accepted)
    statistics    of the logits, so that verification need not measure them again
    num_proposed  int64 [B], drafts that a request has at all, None = K each. It may depend on
                  nothing that was drawn for this block; token_ids behind it are -1.
    """

    token_ids: torch.Tensor
    logits: torch.Tensor | None
    confidence: torch.Tensor
    statistics: RowStatistics | None = None
    num_proposed: torch.Tensor | None = None


class Drafter(Protocol):
    """A model that proposes.

    block_size    the most drafts it makes
    num_features  entries of the target's features that it reads; 0 = it reads none, and serves any
                  target

    It may have `release(slot)`, called when the request of a slot has ended, and
    `observe(slots, verify_lens, num_accepted)`, all int64 [B], called after each verification with
    how many drafts of each request were verified and accepted.
    """

    block_size: int
    num_features: int
    max_requests: int
    max_len: int

    def append(
        self,
        features: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        token_ids: torch.Tensor,
    ) -> None:
        """Take in verified and kept tokens: the target's features [T, F]; positions, slots and
        ids of its rows int64 [T]. The rows of a slot come in order, without gaps; position 0 begins
        another request."""

    def draft(self, batch: DraftBatch, num_drafts: int, method: str) -> Draft:
        """Propose `num_drafts` tokens per request. All positions below an anchor were appended."""


class DSparkDrafter:
    """A `CompactDraftHead` with its context cache, its linears packed and, on a CPU, its passes
    row-invariant. It computes where `embedding` is: on a CPU by our operators, else by torch's.

    The block [x_0, noise, ..] stands at positions P .. P+K-1; its keys and values go into the cache
    behind the context and are overwritten by the context of the next round. Every row of the block
    sees the whole block and the `sliding_window` context positions before P.

    head            what to serve; its weights are copied (packed)
    embedding       fp32 or bf16 [V, d], the target's
    lm_head_weight  [V, d], the target's
    weight_dtype    torch.float32 or torch.bfloat16: dtype of the matrices

    Source: the DSpark paper, section 3; the names are those of `CompactDraftHead`.
    """

    method = "dspark"
    chains_blocks = True  # a block may start behind one that is not verified yet

    def __init__(
        self,
        head: CompactDraftHead,
        embedding: torch.Tensor,
        lm_head_weight: torch.Tensor,
        *,
        max_requests: int,
        max_len: int,
        weight_dtype: torch.dtype = torch.float32,
    ) -> None:
        config = self.config = head.config
        expected = (config.vocab_size, config.hidden_size)
        for name, weight in (("embedding", embedding), ("lm_head_weight", lm_head_weight)):
            if tuple(weight.shape) != expected:
                raise ValueError(
                    f"dspark_ext.engine.DSparkDrafter: {name}: expected shape {list(expected)}, "
                    f"got {list(weight.shape)}"
                )
        self.block_size = config.dspark_block_size
        self.num_features = config.hidden_size * len(config.dspark_target_layer_ids)
        self.max_requests = max_requests
        self.max_len = max_len
        self.device = device = embedding.device
        self._embedding = embedding
        self._noise = _kept(head.noise_embed, device)
        self._main_proj = pack([head.main_proj.weight], weight_dtype, device=device)
        self._main_norm = _kept(head.main_norm.weight, device)
        self._stages = [_Stage(stage, weight_dtype, device) for stage in head.stages]
        self._norm = _kept(head.norm.weight, device)
        drafted = lm_head_weight[head.draft_token_ids.to(lm_head_weight.device)]
        self._lm_head = pack([drafted], weight_dtype, device=device)
        factors = head.markov_w1_full(), head.markov_w2
        self._markov_w1, self._markov_w2 = (
            each.detach().to(device, weight_dtype).contiguous() for each in factors
        )
        self._d2t = head.d2t.detach().to(device)
        self._confidence_weight = _kept(head.confidence_weight, device)
        self._confidence_bias = _kept(head.confidence_bias, device)
        length = max_len + self.block_size
        cos, sin = (table.flatten(1) for table in head.rotary(torch.arange(length, device="cpu")))
        self._cos, self._sin = (_kept(table, device).repeat(1, 2) for table in (cos, sin))
        sizes = config.num_key_value_heads, config.head_dim
        self.cache = KVCache(len(self._stages), max_requests, length, *sizes, device)
        self.identity = {
            "class": type(self).__name__,
            "weights": fingerprint(head),
            "weight_dtype": str(weight_dtype),
        }

    @classmethod
    def for_target(
        cls, head: CompactDraftHead, target, weight_dtype: torch.dtype = torch.float32
    ) -> "DSparkDrafter":
        """A drafter that shares the embedding, the output matrix and the sizes of `target`."""
        return cls(
            head,
            target.embedding,
            target.lm_head_weight,
            max_requests=target.max_requests,
            max_len=target.max_len,
            weight_dtype=weight_dtype,
        )

    @functools.cached_property
    def capture_obstacle(self) -> str | None:
        """Why drafts cannot be captured as a graph, None if they can; see `capture_check`."""
        return drafter_obstacle(self, self.device)

    @property
    def capturable(self) -> bool:
        """Whether drafts can be captured as graphs."""
        return self.capture_obstacle is None

    @torch.inference_mode()
    def append(
        self,
        features: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        token_ids: torch.Tensor | None = None,
    ) -> None:
        """See `Drafter.append`; token_ids are not read."""
        context = lean.rms_norm(
            self._main_proj(features), self._main_norm, self.config.rms_norm_eps
        )
        for index, stage in enumerate(self._stages):
            self._store(index, stage.key_value(context), positions, slots.int(), num_heads=0)

    @torch.inference_mode()
    def draft(self, batch: DraftBatch, num_drafts: int, method: str) -> Draft:
        """See `Drafter.draft`; `method` is "probabilistic" or "greedy"."""
        hidden = self._backbone(batch)
        shape = (len(batch.anchor), self.block_size, -1)
        drawn = markov_sample(
            self._lm_head(hidden).view(shape),
            batch.anchor,
            self._markov_w1,
            self._markov_w2,
            method=method,
            temperature=batch.temperature,
            seeds=batch.seeds,
            positions=batch.anchor_positions + 1,
            d2t=self._d2t,
            num_drafts=num_drafts,
            vocab_size=self.config.vocab_size,
        )
        conditional = confidence(
            hidden.view(shape)[:, :num_drafts],
            drawn.prev_embed,
            self._confidence_weight,
            self._confidence_bias,
        )
        if method == "greedy":
            return Draft(drawn.token_ids, None, conditional)
        return Draft(drawn.token_ids, drawn.logits, conditional, drawn.statistics)

    def export_slot(self, slot: int, length: int) -> dict[str, torch.Tensor]:
        """What a block at position `length` sees of its context, see `handover`."""
        stores = slot_state.flat_stores(self.cache.keys, self.cache.values)
        return slot_state.copy_out(stores, self._visible_cells(slot, length))

    def check_slot(self, tensors: dict[str, torch.Tensor], token_ids) -> None:
        """HandoverError unless `import_slot` can take them."""
        stores = slot_state.flat_stores(self.cache.keys, self.cache.values)
        count = min(len(token_ids), self.config.sliding_window)
        slot_state.check_rows(stores, tensors, count, "drafter")

    @torch.inference_mode()
    def import_slot(self, slot: int, tensors: dict[str, torch.Tensor], token_ids) -> None:
        """Make what `export_slot` gave the slot's; token_ids of its positions."""
        self.check_slot(tensors, token_ids)
        stores = slot_state.flat_stores(self.cache.keys, self.cache.values)
        slot_state.copy_in(stores, self._visible_cells(slot, len(token_ids)), tensors)

    def _visible_cells(self, slot: int, length: int) -> torch.Tensor:
        if not 0 <= slot < self.max_requests or not 0 <= length <= self.max_len:
            raise ValueError(
                f"dspark_ext.engine.DSparkDrafter: expected a slot below {self.max_requests} and a "
                f"length of at most {self.max_len}, got {slot} and {length}"
            )
        return self.cache.cells(slot, max(0, length - self.config.sliding_window), length)

    def _backbone(self, batch: DraftBatch) -> torch.Tensor:
        """Normed hidden rows [B * K, d] of the block."""
        config, size = self.config, self.block_size
        first = self._embedding[batch.anchor].float()[:, None]
        noise = self._noise.expand(len(batch.anchor), size - 1, -1)
        hidden = torch.cat([first, noise], 1).flatten(0, 1)
        steps = torch.arange(size, device=batch.anchor.device)
        positions = (batch.anchor_positions[:, None] + steps).flatten()
        slots = batch.slots.int().repeat_interleave(size)
        anchor_positions = batch.anchor_positions.int().repeat_interleave(size)
        key_start = (anchor_positions - config.sliding_window).clamp_(min=0)
        key_end = anchor_positions + size
        for index, stage in enumerate(self._stages):
            normed = lean.rms_norm(hidden, stage.attention_norm, config.rms_norm_eps)
            query = self._store(
                index, stage.qkv(normed), positions, slots, config.num_attention_heads
            )
            mixed = lean.block_attention(
                query,
                self.cache.keys[index],
                self.cache.values[index],
                slots,
                key_start,
                key_end,
                config.head_dim**-0.5,
                block=size,
                most_keys=config.sliding_window + size,
            )
            hidden = hidden + stage.out(mixed.flatten(1))
            normed = lean.rms_norm(hidden, stage.ffn_norm, config.rms_norm_eps)
            hidden = hidden + stage.experts(normed, config)
        return lean.rms_norm(hidden, self._norm, config.rms_norm_eps)

    def _store(self, index, qkv, positions, slots, num_heads):
        stage = self._stages[index]
        return lean.rope_store(
            qkv.view(len(qkv), -1, self.config.head_dim),
            self._cos,
            self._sin,
            positions,
            slots,
            self.cache.keys[index],
            self.cache.values[index],
            num_heads=num_heads,
            query_norm=stage.query_norm,
            key_norm=stage.key_norm,
            eps=self.config.rms_norm_eps,
        )


class _Stage:
    """Packed weights of one draft stage; q/k/v are one matrix, and k/v another for the context."""

    def __init__(self, stage: DraftStage, dtype: torch.dtype, device: torch.device) -> None:
        attn, ffn = stage.attn, stage.ffn
        self.attention_norm = _kept(stage.attn_norm.weight, device)
        self.ffn_norm = _kept(stage.ffn_norm.weight, device)
        self.query_norm = _kept(attn.q_norm.weight, device)
        self.key_norm = _kept(attn.k_norm.weight, device)
        self.qkv = pack([attn.q_proj.weight, attn.kv_proj.weight], dtype, device=device)
        self.key_value = pack([attn.kv_proj.weight], dtype, device=device)
        self.out = pack([attn.o_proj.weight], dtype, device=device)
        self.gate_up = pack([ffn.w13.weight], dtype, device=device)
        self.down = pack([ffn.w2.weight], dtype, device=device)
        self.router = pack([ffn.gate_weight], torch.float32, device=device)
        self.router_bias = _kept(ffn.gate_bias, device)
        self.expert_size = ffn.expert_size

    def experts(self, x: torch.Tensor, config) -> torch.Tensor:
        activated = lean.routed_silu_mul(
            self.gate_up(x),
            self.router(x),
            self.router_bias,
            expert_size=self.expert_size,
            top_k=config.dspark_num_experts_per_tok,
            scaling=config.routed_scaling_factor,
            limit=config.swiglu_limit,
        )
        return self.down(activated)


def _kept(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor.detach().to(device, torch.float32)
