"""The sequential heads of a draft: Markov bias on the base logits, and confidence."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .. import draft
from .config import DraftHeadConfig


class MarkovHead(nn.Module):
    """Factors of the bias that the previous token puts on the base logits.

    embedding  name of w1, the module that holds [V, r]: "markov_w1", or "embed" in V4.1
    output     name of w2, [V_draft, r]: "markov_w2", or "head" in V4.1
    kind       "vanilla", "gated" (gate_proj [r, d+r]) or "rnn" (joint_proj [3r, 2r+d]), with biases
    """

    def __init__(
        self,
        config: DraftHeadConfig,
        embedding: str = "markov_w1",
        output: str = "markov_w2",
        device=None,
        dtype=None,
    ) -> None:
        super().__init__()
        c, place = config, {"device": device, "dtype": dtype}
        rank = c.markov_rank
        self._embedding, self._output, self.kind = embedding, output, c.markov_head_type
        self.add_module(embedding, nn.Embedding(c.vocab_size, rank, **place))
        self.add_module(output, nn.Linear(rank, c.draft_vocab_size, bias=False, **place))
        if self.kind == "gated":
            self.gate_proj = nn.Linear(c.hidden_size + rank, rank, **place)
        elif self.kind == "rnn":
            self.joint_proj = nn.Linear(2 * rank + c.hidden_size, 3 * rank, **place)

    @property
    def w1(self) -> Tensor:
        return self.get_submodule(self._embedding).weight

    @property
    def w2(self) -> Tensor:
        return self.get_submodule(self._output).weight

    def arguments(self, hidden: Tensor) -> dict:
        """What `draft.markov_sample` takes for this kind, besides base logits and anchor."""
        factors = {"w1": self.w1.detach(), "w2": self.w2.detach(), "head": self.kind}
        if self.kind == "vanilla":
            return factors
        linear = self.gate_proj if self.kind == "gated" else self.joint_proj
        more = {"head_weight": linear.weight.detach(), "head_bias": linear.bias.detach()}
        return {**factors, "hidden": hidden, **more}


class NoMarkovHead(nn.Module):
    """Of a draft without one: a bias of zeros, so that the same sampler serves it."""

    def __init__(self, config: DraftHeadConfig, device=None, dtype=None) -> None:
        super().__init__()
        for name, rows in (("w1", config.vocab_size), ("w2", config.draft_vocab_size)):
            zeros = torch.zeros(rows, 1, device=device, dtype=dtype)
            self.register_buffer(name, zeros, persistent=False)

    def arguments(self, hidden: Tensor) -> dict:
        return {"w1": self.w1, "w2": self.w2, "head": "vanilla"}


class ConfidenceHead(nn.Module):
    """proj [1, d + r] on [h_k ; w1[x_{k-1}]], or [1, d] on h_k alone; kept in float32."""

    def __init__(self, config: DraftHeadConfig, *, markov: bool, bias: bool, device=None) -> None:
        super().__init__()
        self.markov = markov
        width = config.hidden_size + (config.markov_rank if markov else 0)
        self.proj = nn.Linear(width, 1, bias=bias, device=device, dtype=torch.float32)

    def forward(self, hidden: Tensor, prev_embed: Tensor, temperatures=None) -> Tensor:
        """float32 [B, K] of hidden [B, K, d] and prev_embed [B, K, r]; see `draft.confidence`."""
        embed = prev_embed if self.markov else prev_embed[..., :0]
        bias = None if self.proj.bias is None else self.proj.bias.detach()
        return draft.confidence(hidden, embed, self.proj.weight.detach(), bias, temperatures)
