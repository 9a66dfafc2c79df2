"""Text sampled from the target, with everything the drafter's training needs beside it.

A lean continuous-batching decode loop over the weights of a ``LlamaForCausalLM``: bf16 linears and KV
cache, float32 residual stream, norms and rotary embedding. For every token it keeps the feature taps,
the final normed hidden state and the logsumexp of the logits, so that training never runs the target.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file

CHUNKS = "chunk[0-9]*.safetensors"
LEAST_ANSWER = 8  # rows with fewer tokens of an answer are not kept


class SamplingError(ValueError):
    """What cannot be sampled, and why."""


@dataclass
class Request:
    """One row to generate: forced tokens first, then samples.

    ``self_asked`` rows sample the user's question too: the first end token closes the question and
    ``answer_prefix`` is forced after it.
    """

    prompt: list[int]
    temperature: float
    self_asked: bool = False
    text: str = ""


@dataclass
class _Slot:
    request: Request
    tokens: list[int]
    num_forced: int
    response_start: int
    asking: bool
    position: int = 0
    idle: bool = False


@dataclass
class _Pending:
    """Finished rows waiting to be written."""

    tokens: list[torch.Tensor] = field(default_factory=list)
    features: list[torch.Tensor] = field(default_factory=list)
    hidden: list[torch.Tensor] = field(default_factory=list)
    logsumexp: list[torch.Tensor] = field(default_factory=list)
    rows: list[dict] = field(default_factory=list)


class TargetLoop:
    """One decode step for a batch of rows, each at its own position."""

    def __init__(self, model, taps: list[int], batch: int, max_length: int):
        config = model.config
        if config.model_type != "llama":
            raise SamplingError(f"sampling: expected a llama model, got {config.model_type!r}")
        self.num_heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = getattr(config, "head_dim", None) or config.hidden_size // self.num_heads
        self.eps, self.taps = config.rms_norm_eps, taps
        self.embed = model.model.embed_tokens.weight.detach().float()
        self.final_norm = model.model.norm.weight.detach().float()
        self.lm_head = model.lm_head.weight.detach().bfloat16().contiguous()
        self.layers = []
        for layer in model.model.layers:
            attention, mlp = layer.self_attn, layer.mlp
            self.layers.append(
                (
                    layer.input_layernorm.weight.detach().float(),
                    _stack(attention.q_proj, attention.k_proj, attention.v_proj),
                    _stack(attention.o_proj),
                    layer.post_attention_layernorm.weight.detach().float(),
                    _stack(mlp.gate_proj, mlp.up_proj),
                    _stack(mlp.down_proj),
                )
            )
        theta = config.rope_parameters["rope_theta"]
        frequencies = theta ** (-torch.arange(0, self.head_dim, 2).double() / self.head_dim)
        angles = torch.arange(max_length).double()[:, None] * frequencies
        self.cos = torch.cat([angles.cos(), angles.cos()], -1).float()
        self.sin = torch.cat([-angles.sin(), angles.sin()], -1).float()
        shape = (len(self.layers), batch, self.num_kv_heads, max_length, self.head_dim)
        self.keys = torch.zeros(shape, dtype=torch.bfloat16)
        self.values = torch.zeros(shape, dtype=torch.bfloat16)
        self.max_length = max_length

    def step(self, tokens: torch.Tensor, positions: torch.Tensor):
        """(logits [B,V], taps [B,n*d] bf16, normed hidden [B,d] bf16) after reading one token a row."""
        rows = torch.arange(len(tokens))
        length = int(positions.max()) + 1
        mask = torch.zeros(len(tokens), 1, 1, length)
        mask.masked_fill_((torch.arange(length) > positions[:, None])[:, None, None], -torch.inf)
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        group = self.num_heads // self.num_kv_heads
        x = self.embed[tokens]
        width = x.shape[1:]
        taps = []
        for index, (norm1, qkv_weight, o_weight, norm2, up_weight, down_weight) in enumerate(
            self.layers
        ):
            n = F.rms_norm(x, width, norm1, self.eps).bfloat16()
            qkv = F.linear(n, qkv_weight).view(len(tokens), -1, self.head_dim)
            qk, v = qkv.split([self.num_heads + self.num_kv_heads, self.num_kv_heads], 1)
            qk = qk.float()
            qk = (qk * cos + qk.roll(self.head_dim // 2, -1) * sin).bfloat16()
            q, k = qk.split([self.num_heads, self.num_kv_heads], 1)
            keys, values = self.keys[index], self.values[index]
            keys[rows, :, positions] = k
            values[rows, :, positions] = v
            # The query heads of a group become query rows of their KV head. Two batched products are
            # three times as fast here as scaled_dot_product_attention with so few query rows.
            q = q.reshape(len(tokens), self.num_kv_heads, group, self.head_dim)
            scores = (q @ keys[:, :, :length].transpose(2, 3)).float()
            weights = torch.softmax(scores * self.head_dim**-0.5 + mask, -1).bfloat16()
            a = weights @ values[:, :, :length]
            x = x + F.linear(a.reshape(len(tokens), -1), o_weight)
            n = F.rms_norm(x, width, norm2, self.eps).bfloat16()
            gate, up = F.linear(n, up_weight).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, down_weight)
            if index in self.taps:
                taps.append(x.bfloat16())
        hidden = F.rms_norm(x, width, self.final_norm, self.eps).bfloat16()
        return F.linear(hidden, self.lm_head).float(), torch.cat(taps, -1), hidden


def sample_ids(
    logits: torch.Tensor, temperatures: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """One id a row by inverse CDF, found block by block so that no full cumulative sum is needed."""
    batch, vocab = logits.shape
    block = 256 if vocab % 256 == 0 else vocab
    peak = logits.amax(-1, keepdim=True)
    weights = ((logits - peak) / temperatures.clamp(min=1e-3)[:, None]).exp_()
    block_sums = weights.view(batch, -1, block).sum(-1)
    block_ends = block_sums.double().cumsum(-1)
    target = torch.rand(batch, 1, generator=generator, dtype=torch.float64) * block_ends[:, -1:]
    chosen = torch.searchsorted(block_ends, target, right=True).clamp(max=block_sums.shape[1] - 1)
    rest = target - (block_ends - block_sums.double()).gather(1, chosen)
    inside = weights.view(batch, -1, block)[torch.arange(batch), chosen[:, 0]].double().cumsum(-1)
    offset = torch.searchsorted(inside, rest, right=True).clamp(max=block - 1)
    ids = (chosen * block + offset)[:, 0]
    return torch.where(temperatures > 0, ids, logits.argmax(-1))


@torch.no_grad()
def generate(
    model,
    requests: Iterator[Request],
    out_dir: Path,
    *,
    prefix: list[int],
    taps: list[int],
    end_id: int | None,
    answer_prefix: list[int],
    batch: int,
    max_length: int,
    max_tokens: int,
    seed: int,
    stop: Callable[[], bool],
    rows_per_chunk: int = 96,
) -> None:
    """Write chunks of finished rows to ``out_dir`` until ``max_tokens``, ``stop()`` or the last request.

    ``batch`` rows at a time, or as many as there are requests. The tokens are a function of the
    arguments; ``stop`` only ends them earlier. Requests whose prompts leave no room for an answer are
    left out. Raises SamplingError; also if ``out_dir`` has rows of ``seed`` already.
    """
    for name, value in (("batch", batch), ("max_tokens", max_tokens)):
        if value < 1:
            raise SamplingError(f"sampling: {name}: expected at least 1, got {value}")
    _check_seed(out_dir, seed)
    requests = _with_room(requests, max_length, len(prefix))
    first = list(itertools.islice(requests, batch))
    if not first:
        raise SamplingError("sampling: there is no request")
    batch = len(first)
    out_dir.mkdir(parents=True, exist_ok=True)
    loop = TargetLoop(model, taps, batch, max_length)
    generator = torch.Generator().manual_seed(seed)
    width = loop.embed.shape[1]
    features = torch.zeros(batch, max_length, len(taps) * width, dtype=torch.bfloat16)
    hidden = torch.zeros(batch, max_length, width, dtype=torch.bfloat16)
    logsumexp = torch.zeros(batch, max_length)
    rows = torch.arange(batch)

    for position, token in enumerate(prefix):
        full = torch.full((batch,), position)
        logits, features[:, position], hidden[:, position] = loop.step(
            torch.full((batch,), token), full
        )
        logsumexp[:, position] = logits.logsumexp(-1)

    def start(request: Request) -> _Slot:
        tokens = prefix + request.prompt
        return _Slot(request, tokens, len(tokens), len(tokens), request.self_asked, len(prefix))

    slots = [start(request) for request in first]
    temperatures = torch.tensor([slot.request.temperature for slot in slots])
    numbers = [path.stem.removeprefix("chunk") for path in out_dir.glob(CHUNKS)]
    last = max((int(number) for number in numbers if number.isdigit()), default=-1)
    pending, num_chunks = _Pending(), last + 1
    num_tokens = num_idle = 0
    begun, cpu = time.time(), time.thread_time()

    while num_tokens < max_tokens and num_idle < batch and not stop():
        # A self-asked row with an empty prompt starts by sampling after the last prefix token again.
        for slot in slots:
            slot.position = min(slot.position, len(slot.tokens) - 1)
        positions = torch.tensor([slot.position for slot in slots])
        tokens = torch.tensor([slot.tokens[slot.position] for slot in slots])
        logits, features[rows, positions], hidden[rows, positions] = loop.step(tokens, positions)
        logsumexp[rows, positions] = logits.logsumexp(-1)
        sampled = sample_ids(logits, temperatures, generator).tolist()
        for row, slot in enumerate(slots):
            slot.position += 1
            is_full = slot.position + 1 >= max_length
            is_forced = slot.position < len(slot.tokens)
            if is_forced and not is_full:
                continue
            if not is_forced:
                slot.tokens.append(sampled[row])
            ended = not is_forced and sampled[row] == end_id
            if ended and slot.asking:
                slot.tokens += answer_prefix
                slot.response_start, slot.asking = len(slot.tokens), False
                ended = False
            if slot.idle:
                slot.position = len(prefix) - 1
                del slot.tokens[len(prefix) :]
            elif ended or is_full:
                length = slot.position
                if slot.response_start + LEAST_ANSWER < length and not slot.asking:
                    pending.tokens.append(
                        torch.tensor(slot.tokens[: length + 1], dtype=torch.int32)
                    )
                    pending.features.append(features[row, :length].clone())
                    pending.hidden.append(hidden[row, :length].clone())
                    pending.logsumexp.append(logsumexp[row, :length].clone())
                    pending.rows.append(
                        {
                            "length": length,
                            "response_start": slot.response_start,
                            "temperature": slot.request.temperature,
                            "self_asked": slot.request.self_asked,
                            "prompt": slot.request.text,
                        }
                    )
                    num_tokens += length
                request = next(requests, None)
                num_idle += request is None
                # With no request left the row runs on without being recorded.
                slots[row] = start(request or Request([], 0.0))
                slots[row].idle = request is None
                temperatures[row] = slots[row].request.temperature
        if len(pending.rows) >= rows_per_chunk:
            _write_chunk(pending, out_dir / f"chunk{num_chunks:04d}.safetensors", seed)
            pending, num_chunks = _Pending(), num_chunks + 1
            print(
                f"{num_chunks} chunks, {num_tokens} tokens, {time.time() - begun:.0f} s, "
                f"{num_tokens / (time.thread_time() - cpu):.0f} tokens/CPU-s",
                flush=True,
            )
    if pending.rows:
        _write_chunk(pending, out_dir / f"chunk{num_chunks:04d}.safetensors", seed)


def _with_room(requests: Iterator[Request], max_length: int, prefix: int) -> Iterator[Request]:
    """Those whose prompts leave room for an answer."""
    room = max_length - prefix - LEAST_ANSWER - 2
    left_out = 0
    for request in requests:
        left_out = 0 if len(request.prompt) <= room else left_out + 1
        if not left_out:
            yield request
        elif left_out == 1000:
            raise SamplingError(
                f"sampling: max_length: {max_length} leaves room for prompts of {room} tokens, and "
                f"1000 in a row are longer"
            )


def _check_seed(out_dir: Path, seed: int) -> None:
    """Equal seeds give equal rows, which would count twice."""
    for path in sorted(out_dir.glob(CHUNKS)):
        with safe_open(path, "pt") as file:
            found = (file.metadata() or {}).get("seed")
        if found == str(seed):
            raise SamplingError(
                f"sampling: {path} has rows of seed {seed} already; to add rows name another seed"
            )


def _write_chunk(pending: _Pending, path: Path, seed: int) -> None:
    partial = path.with_suffix(".partial")
    save_file(
        {
            "tokens": torch.cat(pending.tokens),  # length + 1 a row: the last one has no features
            "features": torch.cat(pending.features),
            "hidden": torch.cat(pending.hidden),
            "logsumexp": torch.cat(pending.logsumexp),
        },
        partial,
        metadata={"rows": json.dumps(pending.rows), "seed": str(seed)},
    )
    partial.rename(path)


class Chunk:
    """The rows of one file, memory-mapped."""

    def __init__(self, path: Path):
        self.path = path
        self.file = safe_open(path, "pt")
        self.rows = json.loads(self.file.metadata()["rows"])
        self.tokens = self.file.get_tensor("tokens").long()
        self.logsumexp = self.file.get_tensor("logsumexp")
        self.features = self.file.get_slice("features")
        self.hidden = self.file.get_slice("hidden")
        start = 0
        for index, row in enumerate(self.rows):
            row["start"], row["token_start"] = start, start + index
            start += row["length"]

    def row_tokens(self, index: int) -> torch.Tensor:
        """One more than the row is long: the last has no features."""
        row = self.rows[index]
        return self.tokens[row["token_start"] : row["token_start"] + row["length"] + 1]

    def row(self, index: int) -> dict:
        row = self.rows[index]
        span = slice(row["start"], row["start"] + row["length"])
        return {
            **row,
            "tokens": self.row_tokens(index),
            "features": self.features[span],
            "hidden": self.hidden[span],
            "logsumexp": self.logsumexp[span],
        }


def _stack(*linears) -> torch.Tensor:
    return torch.cat([linear.weight.detach() for linear in linears]).bfloat16().contiguous()
