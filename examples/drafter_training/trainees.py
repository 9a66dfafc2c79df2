"""The flavours of draft head that can be trained, behind one face."""

from __future__ import annotations

import copy
import os
import shutil
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dspark_ext.draft_head import Qwen3DraftHead, make_draft_head, save_draft_head
from dspark_ext.draft_head.compact import CompactDraftHead
from dspark_ext.draft_head.layers import rotate_halves

from .attention import block_attention, context_mask
from .samples import Batch
from .settings import SettingsError


class States(NamedTuple):
    """What the heads read of N = R*A*K drafted positions, the text's tokens before each.

    hidden      [N, d], times the output matrix = base logits
    bias_input  [N, r], times W2 = the Markov bias
    confidence  [N], logits, or None
    """

    hidden: Tensor
    bias_input: Tensor
    confidence: Tensor | None


class Trainee:
    """A draft head in float32, bound to its target, for training.

    Which weights the gradient reaches: all but the target's embedding and output matrix.
    """

    flavour: str
    file_name: str  # of what `save` writes into the folder of a run

    def __init__(self, head: nn.Module):
        self.head = head
        vocab_size = head.config.vocab_size
        self.draft_token_ids = torch.arange(head.config.draft_vocab_size)
        if head.d2t is not None:
            self.draft_token_ids = self.draft_token_ids + head.d2t
        self._draft_ids = torch.full((vocab_size,), -1)
        self._draft_ids[self.draft_token_ids] = torch.arange(len(self.draft_token_ids))

    def draft_ids(self, token_ids: Tensor) -> Tensor:
        """Draft id of target ids; -1 for those that cannot be drafted."""
        return self._draft_ids[token_ids]

    def parameters(self) -> dict[str, nn.Parameter]:
        """Those that are trained."""
        named = self.head.named_parameters()
        return {name: value for name, value in named if value.requires_grad}

    def twin(self) -> Trainee:
        """A copy that shares the target's matrices."""
        shared = {id(value): value for value in self.target_matrices()}
        return type(self)(copy.deepcopy(self.head, shared))


class CompactTrainee(Trainee):
    flavour, file_name = "compact", "drafter.safetensors"

    num_drafts = property(lambda self: self.head.config.dspark_block_size)
    num_features = property(lambda self: self.head.main_proj.in_features)
    w2 = property(lambda self: self.head.markov_w2)
    vocab_weight = property(lambda self: self.head.lm_head.weight)

    def target_matrices(self) -> list[Tensor]:
        return [self.head.embed_weight, self.head.lm_head.weight]

    def states(self, batch: Batch) -> States:
        head, shape = self.head, batch.valid.shape
        length = batch.features.shape[1]
        context = head.context_kv(
            head.combine(batch.features), torch.arange(length).expand(shape[0], -1)
        )
        mask = context_mask(batch.anchor_positions, length, head.config.sliding_window)

        def attend(stage: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            blocks = (each.unflatten(0, shape[:2]) for each in (query, key, value))
            return block_attention(*blocks, context[stage], mask).flatten(0, 1)

        anchors, positions = batch.token_ids[:, :, 0].flatten(), batch.anchor_positions.flatten()
        hidden = head.backbone(anchors, positions, attend).float().flatten(0, 1)
        embed = head.markov_w1[head.markov_rows(batch.token_ids[:, :, :-1].flatten())].float()
        read = torch.cat([hidden, embed], -1)
        confidence = (read * head.confidence_weight).sum(-1) + head.confidence_bias
        return States(hidden, embed, confidence)

    def muon_blocks(self) -> list[tuple[str, int, int]]:
        """(name, dimension that is cut, number of blocks) of every matrix in the backbone."""
        config = self.head.config
        blocks = [("main_proj.weight", 0, config.num_attention_heads)]
        for index, stage in enumerate(self.head.stages):
            attn, ffn = stage.attn, stage.ffn
            experts = ffn.num_experts + 1 if ffn.shared_size == ffn.expert_size else 1
            blocks += [
                (f"stages.{index}.attn.q_proj.weight", 0, attn.num_heads),
                (f"stages.{index}.attn.kv_proj.weight", 0, 2 * attn.num_kv_heads),
                (f"stages.{index}.attn.o_proj.weight", 1, attn.num_heads),
                (f"stages.{index}.ffn.w13.weight", 0, 2 * experts),
                (f"stages.{index}.ffn.w2.weight", 1, experts),
            ]
        return blocks

    def save(self, folder: Path) -> Path:
        """One file, fp8 with a scale per row."""
        path = folder / self.file_name
        self.head.save(folder / f"{self.file_name}.part")
        os.replace(folder / f"{self.file_name}.part", path)
        return path


class Qwen3Trainee(Trainee):
    flavour, file_name = "qwen3", "drafter"

    num_drafts = property(lambda self: self.head.config.trained_drafts)
    num_features = property(lambda self: self.head.config.num_features)
    w2 = property(lambda self: self.head.markov.w2)
    vocab_weight = property(lambda self: self.head.output_weight)

    def __init__(self, head: Qwen3DraftHead):
        if not head.config.sample_from_anchor or not head.config.markov_rank:
            raise SettingsError("qwen3: trained are heads that sample from the anchor, rank >= 1")
        super().__init__(head)

    def target_matrices(self) -> list[Tensor]:
        return [self.head.embedding_weight, self.head.output_weight]

    def states(self, batch: Batch) -> States:
        head, length = self.head, batch.features.shape[1]
        inputs = torch.full_like(batch.token_ids[:, :, 1:], head.config.mask_token)
        inputs[:, :, 0] = batch.token_ids[:, :, 0]
        places = batch.anchor_positions[:, :, None] + torch.arange(self.num_drafts)
        x = head.embed(inputs)
        combined = head.combine(batch.features.to(head.dtype))
        context_places = torch.arange(length).expand(len(combined), -1)
        mask = context_mask(batch.anchor_positions, length, head.config.window)
        for layer in head.layers:
            attention = layer.self_attn
            context = attention.keys_values(combined, context_places)
            normed = layer.input_layernorm(x)
            query = attention.q_norm(
                attention.q_proj(normed).unflatten(-1, (-1, attention.head_dim))
            )
            query = rotate_halves(query, *attention.rotary(places))
            key, value = attention.keys_values(normed, places)
            mixed = block_attention(query, key, value, context, mask)
            x = x + attention.o_proj(mixed.flatten(-2))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        hidden = head.norm(x).float()
        embed = head.markov.w1[batch.token_ids[:, :, :-1]].float()
        bias_input = markov_input(head.markov, hidden, embed).float()
        confidence = None
        if head.confidence is not None:
            read = torch.cat([hidden, embed], -1) if head.confidence.markov else hidden
            proj = head.confidence.proj
            confidence = ((read * proj.weight[0]).sum(-1) + proj.bias).flatten()
        return States(hidden.flatten(0, 2), bias_input.flatten(0, 2), confidence)

    def muon_blocks(self) -> list[tuple[str, int, int]]:
        """(name, dimension that is cut, number of blocks) of every matrix in the backbone."""
        config = self.head.config
        heads, groups = config.num_attention_heads, config.num_key_value_heads
        inner = next(n for n in range(max(config.intermediate_size // 64, 1), 0, -1)
                     if config.intermediate_size % n == 0)  # fmt: skip
        blocks = [("fc.weight", 0, heads if config.hidden_size % heads == 0 else 1)]
        for index in range(config.num_layers):
            attn, mlp = f"layers.{index}.self_attn", f"layers.{index}.mlp"
            blocks += [
                (f"{attn}.q_proj.weight", 0, heads),
                (f"{attn}.k_proj.weight", 0, groups),
                (f"{attn}.v_proj.weight", 0, groups),
                (f"{attn}.o_proj.weight", 1, heads),
                (f"{mlp}.gate_proj.weight", 0, inner),
                (f"{mlp}.up_proj.weight", 0, inner),
                (f"{mlp}.down_proj.weight", 1, inner),
            ]
        return blocks

    def save(self, folder: Path) -> Path:
        """A directory as released: bf16, without the target's matrices."""
        path, unfinished = folder / self.file_name, folder / f"{self.file_name}.part"
        shutil.rmtree(unfinished, ignore_errors=True)
        narrow = make_draft_head(self.head.config)
        own, values = narrow.state_dict(), self.head.state_dict()
        for name in own.keys() - {"embed_tokens.weight", "lm_head.weight"}:
            own[name].copy_(values[name])
        save_draft_head(narrow, unfinished, embeddings=False)
        shutil.rmtree(path, ignore_errors=True)
        os.replace(unfinished, path)
        return path


def markov_input(markov: nn.Module, hidden: Tensor, embed: Tensor) -> Tensor:
    """What W2 reads of hidden [..., K, d] and embed [..., K, r] = W1 of the tokens before; the
    state of an rnn runs along K. See `dspark_ext.draft.markov_sample`."""
    if markov.kind == "vanilla":
        return embed
    if markov.kind == "gated":
        return torch.sigmoid(markov.gate_proj(torch.cat([hidden, embed], -1))) * embed
    state, outputs = torch.zeros_like(embed[..., 0, :]), []
    for k in range(embed.shape[-2]):
        read = torch.cat([state, embed[..., k, :], hidden[..., k, :]], -1)
        gate, candidate, output = markov.joint_proj(read).chunk(3, -1)
        gate = torch.sigmoid(gate)
        state = gate * state + (1 - gate) * torch.tanh(candidate)
        outputs.append(torch.tanh(output))
    return torch.stack(outputs, -2)


def make_trainee(head: nn.Module) -> Trainee:
    """Of a bound head in float32."""
    if isinstance(head, CompactDraftHead):
        return CompactTrainee(head)
    if isinstance(head, Qwen3DraftHead):
        return Qwen3Trainee(head)
    raise SettingsError(f"training: expected a compact or qwen3 head, got {type(head).__name__}")
