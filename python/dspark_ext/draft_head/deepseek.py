"""Draft heads inside DeepSeek-V4 and V4.1 checkpoints: MoE stages on hyper-connections.

Names are those of the checkpoint's `mtp.{i}.*` tensors. Source: DSpark paper section 5.1 and the
released V4 and V4.1 checkpoints.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from . import hyper_connections as hc
from .base import DSparkDraftHead
from .config import DeepSeekDraftConfig
from .context import BlockView
from .heads import ConfidenceHead, MarkovHead
from .latent_attention import LatentAttention
from .layers import RMSNorm
from .moe import MoE
from .quantized import QuantizedLinear


class DeepSeekStage(nn.Module):
    """One stage: attention and experts, each reading and writing the copies of the stream."""

    def __init__(self, config: DeepSeekDraftConfig, device=None, dtype=None) -> None:
        super().__init__()
        self.config = config
        self.attn = LatentAttention(config, device, dtype)
        self.attn_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, device)
        self.ffn = MoE(config, device, dtype)
        self.ffn_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, device)
        copies = config.hc_mult
        weights, width = copies * (2 + copies), copies * config.hidden_size
        for sublayer in ("attn", "ffn"):
            for name, shape in (("fn", (weights, width)), ("base", (weights,)), ("scale", (3,))):
                parameter = nn.Parameter(torch.zeros(shape, device=device))
                self.register_parameter(f"hc_{sublayer}_{name}", parameter)

    def mixes(self, sublayer: str, streams: Tensor) -> hc.Mixes:
        parts = (getattr(self, f"hc_{sublayer}_{name}") for name in ("fn", "scale", "base"))
        config = self.config
        return hc.mixes(
            streams, *parts, iterations=config.hc_sinkhorn_iters, eps=config.hc_eps,
            norm_eps=config.rms_norm_eps,
        )  # fmt: skip

    def forward(
        self,
        streams: Tensor,
        delayed: Tensor | None,
        positions: Tensor,
        view: BlockView,
        layer: int,
    ) -> tuple[Tensor, Tensor]:
        """streams [B, R, c, d] -> new streams and the pre-mix of the last sublayer.

        `delayed` is the pre-mix of the sublayer before: V4.1 reads the copies by that one. None
        (V4): by the pre-mix of the sublayer itself.
        """
        for sublayer in ("attn", "ffn"):
            mix = self.mixes(sublayer, streams)
            read = mix.pre if delayed is None else delayed
            x = getattr(self, f"{sublayer}_norm")(hc.collapse(streams, read))
            output = self.attn(x, positions, view, layer) if sublayer == "attn" else self.ffn(x)
            streams = hc.expand(streams, output, mix.post, mix.comb)
            delayed = None if delayed is None else mix.pre
        return streams, mix.pre


class DeepSeekDraftHead(DSparkDraftHead):
    """What V4 and V4.1 share. `mtp.0` also holds main_proj and main_norm, the last stage the final
    norm and the heads. The target's embedding and output matrix are bound, never stored."""

    markov_names = ("markov_w1", "markov_w2")

    def __init__(
        self, config: DeepSeekDraftConfig, *, dtype: torch.dtype = torch.bfloat16, device=None
    ) -> None:
        super().__init__(config, dtype=dtype, device=device)
        size, eps = config.hidden_size, config.rms_norm_eps
        self.mtp = nn.ModuleList(
            DeepSeekStage(config, device, dtype) for _ in range(config.num_layers)
        )
        first, last = self.mtp[0], self.mtp[-1]
        first.main_proj = QuantizedLinear(
            config.num_features, size, format=config.dense_format, block=config.weight_block_size,
            device=device, dtype=dtype,
        )  # fmt: skip
        first.main_norm = RMSNorm(size, eps, device)
        last.norm = RMSNorm(size, eps, device)
        last.markov_head = MarkovHead(config, *self.markov_names, device=device, dtype=dtype)
        last.confidence_head = ConfidenceHead(config, markov=True, bias=False, device=device)
        self.d2t = None
        for name in ("embedding_weight", "output_weight"):
            self.register_buffer(name, None, persistent=False)

    norm = property(lambda self: self.mtp[-1].norm)
    markov = property(lambda self: self.mtp[-1].markov_head)
    confidence = property(lambda self: self.mtp[-1].confidence_head)

    def bind_target(self, embedding: Tensor, lm_head_weight: Tensor) -> None:
        """Share the target's embedding and output matrix, both [V, d]."""
        self._check_target(embedding, lm_head_weight)
        self.embedding_weight = embedding.detach()
        self.output_weight = lm_head_weight.detach()

    def context_entries(self) -> dict[str, tuple[int, ...]]:
        return {"kv": (self.config.head_dim,)}

    def combine(self, features: Tensor) -> Tensor:
        return self.mtp[0].main_norm(self.mtp[0].main_proj(features))

    def context_rows(self, combined: Tensor, positions: Tensor) -> dict[str, Tensor]:
        rows = [stage.attn.key_value(combined, positions) for stage in self.mtp]
        return {"kv": torch.stack(rows)}

    def backbone(self, embedded: Tensor, positions: Tensor, view: BlockView) -> Tensor:
        streams = embedded[..., None, :].expand(*embedded.shape[:-1], self.config.hc_mult, -1)
        pre = self.first_pre_mix(streams)
        for layer, stage in enumerate(self.mtp):
            streams, last = stage(streams, pre, positions, view, layer)
            pre = None if pre is None else last
        return self.collapse(streams, pre)

    def head_state(self, hidden: Tensor, normed: Tensor) -> Tensor:
        return hidden


class DeepSeekV41DraftHead(DeepSeekDraftHead):
    """V4.1: features are the inputs of the target layers; a sublayer reads the copies by the
    pre-mix of the one before it, and so does the end."""

    markov_names = ("embed", "head")

    def __init__(self, config: DeepSeekDraftConfig, **place) -> None:
        super().__init__(config, **place)
        self.optional_names = [f"mtp.{i}.ffn.gate.bias_vl" for i in range(config.num_layers)]

    def first_pre_mix(self, streams: Tensor) -> Tensor:
        return hc.first_copy(streams)

    def collapse(self, streams: Tensor, pre: Tensor) -> Tensor:
        return hc.collapse(streams, pre)


class DeepSeekV4DraftHead(DeepSeekDraftHead):
    """V4: features are the outputs of the target layers; a sublayer reads the copies by its own
    pre-mix, and a learned one (hc_head) reads them at the end."""

    def __init__(self, config: DeepSeekDraftConfig, *, device=None, **place) -> None:
        super().__init__(config, device=device, **place)
        copies, last = config.hc_mult, self.mtp[-1]
        width = copies * config.hidden_size
        for name, shape in (("fn", (copies, width)), ("base", (copies,)), ("scale", (1,))):
            last.register_parameter(
                f"hc_head_{name}", nn.Parameter(torch.zeros(shape, device=device))
            )

    def first_pre_mix(self, streams: Tensor) -> None:
        return None

    def collapse(self, streams: Tensor, pre: None) -> Tensor:
        last, config = self.mtp[-1], self.config
        logits = hc.project(streams, last.hc_head_fn, config.rms_norm_eps)
        logits = logits * last.hc_head_scale.float() + last.hc_head_base.float()
        return hc.collapse(streams, torch.sigmoid(logits) + config.hc_eps)
