"""The training of a draft head on chunks of target samples: batches, loss, schedule, evaluation.

Every anchor is a response token at position P. The head sees the features of the 128 positions before
it and must predict the five tokens after it; the target's distributions are rebuilt from the stored
hidden states. Per drafted position the loss mixes KL divergence with total variation, whose complement
is the acceptance probability.
"""

from __future__ import annotations

import copy
import json
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from muon import optimizers
from target_samples import Chunk
from torch import Tensor

from dspark_ext.draft_head.compact import CompactDraftHead


@dataclass
class Batch:
    features: Tensor  # [R, T, taps*d] bf16, zero after a row's end
    anchor_positions: Tensor  # [R, A]
    token_ids: Tensor  # [R, A, K+1]: the anchor and what followed it
    target_hidden: Tensor  # [R, A, K, d] bf16: what predicts each of the K tokens
    target_logsumexp: Tensor  # [R, A, K]
    valid: Tensor  # [R, A, K]: the row reaches that far


class Samples:
    """The rows of a folder of chunks, picking up new chunks as they are written."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.chunks: dict[str, Chunk] = {}
        self.index: list[tuple[Chunk, int]] = []
        self.refresh()

    def refresh(self) -> None:
        for path in sorted(self.folder.glob("chunk*.safetensors")):
            if path.name not in self.chunks:
                chunk = self.chunks[path.name] = Chunk(path)
                self.index += [(chunk, i) for i in range(len(chunk.rows))]

    @property
    def num_tokens(self) -> int:
        return sum(row["length"] for chunk in self.chunks.values() for row in chunk.rows)

    def prompts(self):
        return (row["prompt"] for chunk in self.chunks.values() for row in chunk.rows)

    def token_counts(self, vocab_size: int) -> Tensor:
        """How often each token occurs inside responses."""
        counts = torch.zeros(vocab_size, dtype=torch.int64)
        for chunk in self.chunks.values():
            for i in range(len(chunk.rows)):
                row = chunk.row(i)
                counts += torch.bincount(
                    row["tokens"][row["response_start"] :], minlength=vocab_size
                )
        return counts

    def random_batch(
        self, generator: random.Random, num_rows: int, num_anchors: int, num_drafts: int
    ) -> Batch:
        rows = [chunk.row(i) for chunk, i in generator.choices(self.index, k=num_rows)]
        anchors = []
        for row in rows:
            start, end = row["response_start"], row["length"]
            anchors.append(sorted(generator.randrange(start, end) for _ in range(num_anchors)))
        return collate(rows, torch.tensor(anchors), num_drafts)


def collate(rows: list[dict], anchors: Tensor, num_drafts: int) -> Batch:
    length = int(anchors.max())
    width = rows[0]["features"].shape[1]
    features = torch.zeros(len(rows), length, width, dtype=torch.bfloat16)
    token_ids, hidden, logsumexp, valid = [], [], [], []
    for row, positions, padded in zip(rows, anchors, features, strict=True):
        used = min(length, row["length"])
        padded[:used] = row["features"][:used]
        reached = positions[:, None] + torch.arange(num_drafts + 1)
        token_ids.append(row["tokens"][reached.clamp(max=row["length"])])
        predicting = reached[:, :-1].clamp(max=row["length"] - 1)
        hidden.append(row["hidden"][predicting])
        logsumexp.append(row["logsumexp"][predicting])
        valid.append(reached[:, :-1] < row["length"])
    return Batch(features, anchors, *map(torch.stack, (token_ids, hidden, logsumexp, valid)))


def block_attention(head: CompactDraftHead, batch: Batch):
    """The ``attend`` of training: a masked dense attention per row over its context and all its blocks."""
    num_rows, length = batch.features.shape[:2]
    num_anchors, num_drafts = batch.valid.shape[1:]
    context = head.combine(batch.features)
    context_kv = head.context_kv(context, torch.arange(length).expand(num_rows, -1))
    distance = batch.anchor_positions[:, :, None] - torch.arange(length)
    in_window = (distance > 0) & (distance <= head.config.sliding_window)
    own_block = torch.eye(num_anchors, dtype=torch.bool).expand(num_rows, -1, -1)
    visible = torch.cat([in_window, own_block.repeat_interleave(num_drafts, 2)], 2)
    mask = torch.zeros(visible.shape).masked_fill_(~visible, -torch.inf)
    mask = mask.repeat_interleave(num_drafts, 1)[:, None]

    def attend(stage: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def per_row(x: Tensor) -> Tensor:  # [R*A, K, H, D] -> [R, H, A*K, D]
            return x.unflatten(0, (num_rows, num_anchors)).flatten(1, 2).transpose(1, 2)

        context_k, context_v = context_kv[stage]
        keys = torch.cat([context_k.transpose(1, 2), per_row(k)], 2)
        values = torch.cat([context_v.transpose(1, 2), per_row(v)], 2)
        group = q.shape[2] // k.shape[2]
        if group > 1:
            keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
        scores = (per_row(q) @ keys.transpose(2, 3)).float() * q.shape[-1] ** -0.5
        out = torch.softmax(scores + mask, -1).to(values.dtype) @ values
        return out.transpose(1, 2).reshape(num_rows * num_anchors, num_drafts, *q.shape[2:])

    return attend


class DraftLoss(torch.autograd.Function):
    """Loss and gradients over the draft vocabulary, a few rows at a time so that logits stay in cache.

    For target probabilities p (the draft vocabulary's share m of them) and q = softmax(z):
    dKL/dz = m q - p and dTV/dz = q (s - [q < p]) with s = sum of q where q < p.
    """

    rows_per_chunk = 128

    @staticmethod
    def forward(
        ctx,
        state,
        w2,
        vocab_weight,
        target_hidden,
        target_logsumexp,
        row_weight,
        kl_share,
        want_best,
    ):
        dtype = vocab_weight.dtype
        split = vocab_weight.shape[1]
        joint = torch.cat([vocab_weight, w2.to(dtype)], 1)
        state_low = state.to(dtype)
        grad_state = torch.empty_like(state_low)
        grad_w2 = torch.zeros_like(w2)
        acceptance, best, entropy = [], [], []
        for start in range(0, len(state), DraftLoss.rows_per_chunk):
            span = slice(start, start + DraftLoss.rows_per_chunk)
            log_p = (
                F.linear(target_hidden[span], vocab_weight)
                .float()
                .sub_(target_logsumexp[span, None])
            )
            log_q = F.linear(state_low[span], joint).float()
            if want_best:
                best.append(log_q.argmax(-1))
            log_q.sub_(log_q.logsumexp(-1, keepdim=True))
            p, q = log_p.exp_(), log_q.exp()
            mass = p.sum(-1, keepdim=True)
            entropy.append(-(p * log_q).sum(-1))
            acceptance.append(torch.minimum(p, q).sum(-1))
            short = torch.where(q < p, q, 0.0)
            grad = torch.lerp(short.sum(-1, keepdim=True) * q - short, mass * q - p, kl_share)
            grad = grad.mul_(row_weight[span, None]).to(dtype)
            grad_state[span] = grad @ joint
            grad_w2 += (grad.T @ state_low[span, split:]).float()
        acceptance, entropy = torch.cat(acceptance), torch.cat(entropy)
        ctx.save_for_backward(grad_state.to(state.dtype), grad_w2)
        loss = (row_weight * torch.lerp(1 - acceptance, entropy, kl_share)).sum()
        ctx.mark_non_differentiable(acceptance)
        best = torch.cat(best) if want_best else torch.empty(0, dtype=torch.int64)
        ctx.mark_non_differentiable(best)
        return loss, acceptance, best

    @staticmethod
    def backward(ctx, grad_loss, *_):
        grad_state, grad_w2 = ctx.saved_tensors
        return grad_state * grad_loss, grad_w2 * grad_loss, None, None, None, None, None, None


def draft_states(head: CompactDraftHead, batch: Batch) -> Tensor:
    """[R*A*K, d + r]: hidden row and Markov embedding of the true previous token."""
    anchors, positions = batch.token_ids[:, :, 0].flatten(), batch.anchor_positions.flatten()
    hidden = head.backbone(anchors, positions, block_attention(head, batch)).float()
    previous = head.markov_w1[head.markov_rows(batch.token_ids[:, :, :-1].flatten())]
    return torch.cat([hidden.flatten(0, 1), previous.float()], -1)


def train_step(
    head: CompactDraftHead, batch: Batch, vocab_weight: Tensor, kl_share: float
) -> dict[str, float]:
    num_drafts = batch.valid.shape[-1]
    position_weight = torch.exp(-torch.arange(num_drafts) / 4.0)
    row_weight = (batch.valid * position_weight).flatten()
    row_weight = row_weight / row_weight.sum()
    with torch.autocast("cpu", torch.bfloat16):
        state = draft_states(head, batch)
    loss, acceptance, _ = DraftLoss.apply(
        state, head.markov_w2, vocab_weight, batch.target_hidden.flatten(0, 2), batch.target_logsumexp.flatten(),
        row_weight, kl_share, False,
    )  # fmt: skip
    confidence = state @ head.confidence_weight + head.confidence_bias
    confidence_loss = F.binary_cross_entropy_with_logits(
        confidence, acceptance.clamp(0, 1), row_weight, reduction="sum"
    )
    (loss + CONFIDENCE_SHARE * confidence_loss).backward()
    return {
        "loss": loss.item(),
        "acceptance": (acceptance * row_weight).sum().item(),
        "confidence": confidence_loss.item(),
    }


CONFIDENCE_SHARE = 0.2


@dataclass
class Schedule:
    """Warm-up, plateau, linear decay, on the wall clock so that a run ends when it must."""

    seconds: float
    decay_seconds: float
    warmup_steps: int = 30
    lr: float = 2e-3
    progress_before: float = 0.0  # share of the loss schedule done by an earlier run
    started: float = field(default_factory=time.time)

    def progress(self) -> float:
        return min((time.time() - self.started) / self.seconds, 1.0)

    def learning_rate(self, step: int) -> float:
        left = self.seconds - (time.time() - self.started)
        return self.lr * min(
            1.0, (step + 1) / self.warmup_steps, max(left / self.decay_seconds, 0.01)
        )

    def kl_share(self) -> float:
        done = self.progress_before + (1 - self.progress_before) * self.progress()
        return max(0.1, 1.0 - 0.9 * done / 0.7)


def train(
    head: CompactDraftHead,
    samples: Samples,
    held_out: Samples,
    out: Path,
    schedule: Schedule,
    *,
    rows_per_step: int = 4,
    anchors_per_row: int = 64,
    evaluate_every: float = 360.0,
    average_decay: float = 0.996,
    seed: int = 0,
) -> CompactDraftHead:
    """Returns the running average of the weights, also saved to ``out`` at every evaluation."""
    out.mkdir(parents=True, exist_ok=True)
    generator = random.Random(seed)
    vocab_weight = head.lm_head.weight.detach().bfloat16()
    muon, adamw = optimizers(head)
    average = copy.deepcopy(head)
    cpu, step, num_anchors, recent, evaluated = time.process_time(), 0, 0, {}, time.time()
    while schedule.progress() < 1.0 and not (out / "stop").exists():
        batch = samples.random_batch(
            generator, rows_per_step, anchors_per_row, head.config.dspark_block_size
        )
        numbers = train_step(head, batch, vocab_weight, schedule.kl_share())
        lr = schedule.learning_rate(step)
        muon.step(lr)
        for group in adamw.param_groups:
            group["lr"] = lr
        adamw.step()
        adamw.zero_grad(set_to_none=True)
        step += 1
        num_anchors += batch.valid.shape[0] * batch.valid.shape[1]
        with torch.no_grad():
            keep = min(average_decay, step / (step + 10))
            for mean, value in zip(average.parameters(), head.parameters(), strict=True):
                if value.requires_grad:
                    mean.lerp_(value, 1 - keep)
            for mean, value in zip(average.buffers(), head.buffers(), strict=True):
                mean.copy_(value)
        recent = {k: 0.95 * recent.get(k, v) + 0.05 * v for k, v in numbers.items()}
        if step % 50 == 0:
            samples.refresh()
            _log(out, step=step, anchors=num_anchors, minutes=schedule.progress() * schedule.seconds / 60,
                 cpu=time.process_time() - cpu, lr=lr, kl=schedule.kl_share(), tokens=samples.num_tokens,
                 **recent)  # fmt: skip
        if time.time() - evaluated > evaluate_every:
            _log(out, step=step, anchors=num_anchors, **evaluate(average, held_out, stride=4))
            average.save(out / "drafter.safetensors")
            torch.save(head.state_dict(), out / "last.pt")
            evaluated = time.time()
    average.save(out / "drafter.safetensors")
    _log(out, step=step, anchors=num_anchors, cpu=time.process_time() - cpu, tokens=samples.num_tokens,
         final=True, **evaluate(average, held_out))  # fmt: skip
    return average


@torch.no_grad()
def evaluate(head: CompactDraftHead, held_out: Samples, stride: int = 1, groups=None) -> dict:
    """Teacher-forced acceptance at temperature 1, and the exact greedy walk over greedy rows.

    ``tau`` counts the tokens of one target pass, bonus included. ``groups`` maps a row to a group name.
    """
    num_drafts = head.config.dspark_block_size
    vocab_weight = head.lm_head.weight.detach().bfloat16()
    sums: dict[str, dict] = {}
    for chunk, i in held_out.index:
        row = chunk.row(i)
        greedy = row["temperature"] == 0
        step = 1 if greedy else stride
        anchors = torch.arange(row["response_start"], row["length"], step)
        if stride > 1 and greedy and i % stride:
            continue
        batch = collate([row], anchors[None], num_drafts)
        with torch.autocast("cpu", torch.bfloat16):
            state = draft_states(head, batch)
        shape = batch.valid.shape[1:]
        _, acceptance, best = DraftLoss.apply(
            state, head.markov_w2, vocab_weight, batch.target_hidden.flatten(0, 2),
            batch.target_logsumexp.flatten(), torch.ones(len(state)), 1.0, True,
        )  # fmt: skip
        confidence = torch.sigmoid(state @ head.confidence_weight + head.confidence_bias)
        valid = batch.valid[0]
        acceptance, confidence = acceptance.view(shape) * valid, confidence.view(shape)
        entries = [sums.setdefault(name, {}) for name in {"all", groups(row) if groups else "all"}]

        def add(key: str, value: float, entries=entries) -> None:
            for entry in entries:
                entry[key] = entry.get(key, 0.0) + float(value)

        if greedy:
            # The tokens that follow are the target's greedy choices: teacher forcing is exact here.
            matches = head.draft_token_ids[best].view(shape) == batch.token_ids[0, :, 1:]
            run = (matches & valid).cumprod(-1).sum(-1).tolist()
            position = 0
            while position < len(run):
                add("greedy_tokens", min(run[position] + 1, len(run) - position))
                add("greedy_cycles", 1)
                position += run[position] + 1
        else:
            add("tau_sum", (1 + acceptance.cumprod(-1).sum(-1)).sum())
            add("anchors", shape[0])
            for k in range(num_drafts):
                add(f"accept{k + 1}", acceptance[:, k].sum())
                add(f"count{k + 1}", valid[:, k].sum())
            add("confidence_error", ((confidence - acceptance).abs() * valid).sum())
            add("confidence_count", valid.sum())
    result = {}
    for name, entry in sums.items():
        values = {}
        if "greedy_cycles" in entry:
            values["tau_greedy"] = round(entry["greedy_tokens"] / entry["greedy_cycles"], 4)
        if "anchors" in entry:
            values["tau_t1"] = round(entry["tau_sum"] / entry["anchors"], 4)
            values["accept"] = [
                round(entry[f"accept{k + 1}"] / entry[f"count{k + 1}"], 4)
                for k in range(num_drafts)
            ]
            values["confidence_mae"] = round(
                entry["confidence_error"] / entry["confidence_count"], 4
            )
        result[name] = values
    return result["all"] if set(result) == {"all"} else result


def _log(out: Path, **values) -> None:
    line = {k: round(v, 5) if isinstance(v, float) else v for k, v in values.items()}
    with (out / "log.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(json.dumps(line), flush=True)
