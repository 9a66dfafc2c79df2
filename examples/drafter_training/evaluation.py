"""How well a head drafts text it was not trained on."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .loss import draft_rows
from .samples import Samples, collate
from .trainees import Trainee


@torch.no_grad()
def evaluate(
    trainee: Trainee,
    held_out: Samples,
    stride: int = 1,
    groups: Callable[[dict], str] | None = None,
    precision: str = "bf16",
    anchors_at_once: int = 256,
) -> dict:
    """Teacher-forced acceptance at temperature 1, and the exact greedy walk over greedy rows.

    stride  every so many anchors of sampled rows, every so many greedy rows
    groups  a row -> the name of its group, beside "all"

    `tau` counts the tokens of one target pass, bonus included: `tau_t1` is its expected value under
    the token rule, `tau_greedy` counts.
    """
    num_drafts = trainee.num_drafts
    vocab_weight = trainee.vocab_weight.detach()
    vocab_weight = vocab_weight.bfloat16() if precision == "bf16" else vocab_weight
    sums: dict[str, dict] = {}
    for chunk, i in held_out.index:
        row = chunk.row(i)
        greedy = row["temperature"] == 0
        if stride > 1 and greedy and i % stride:
            continue
        anchors = torch.arange(row["response_start"], row["length"], 1 if greedy else stride)
        parts = [
            _row(trainee, row, some, num_drafts, vocab_weight, precision)
            for some in anchors.split(anchors_at_once)
        ]
        acceptance, best, confidence, valid, following = map(torch.cat, zip(*parts))
        entries = [sums.setdefault(name, {}) for name in {"all", groups(row) if groups else "all"}]

        def add(key: str, value: float, entries=entries) -> None:
            for entry in entries:
                entry[key] = entry.get(key, 0.0) + float(value)

        if greedy:
            # The tokens that follow are the target's greedy choices: teacher forcing is exact here.
            run = ((best == following) & valid).cumprod(-1).sum(-1).tolist()
            position = 0
            while position < len(run):
                add("greedy_tokens", min(run[position] + 1, len(run) - position))
                add("greedy_cycles", 1)
                position += run[position] + 1
        else:
            add("tau_sum", (1 + acceptance.cumprod(-1).sum(-1)).sum())
            add("anchors", len(acceptance))
            for k in range(num_drafts):
                add(f"accept{k + 1}", acceptance[:, k].sum())
                add(f"count{k + 1}", valid[:, k].sum())
            add("confidence_error", ((confidence - acceptance).abs() * valid).sum())
            add("confidence_count", valid.sum())
    result = {name: _summary(entry, num_drafts) for name, entry in sums.items()}
    return result["all"] if set(result) == {"all"} else result


def _row(trainee, row, anchors, num_drafts, vocab_weight, precision):
    """(acceptance, best target id, confidence, valid, the text's tokens), each [A, K]."""
    batch = collate([row], anchors[None], num_drafts)
    weight = torch.ones(batch.valid.numel())
    _, rows, confidence = draft_rows(
        trainee, batch, vocab_weight, weight, (0.0, 0.0, 1.0), precision
    )
    valid, shape = batch.valid[0], batch.valid.shape[1:]
    acceptance = rows.acceptance.view(shape).float() * valid
    certain = torch.ones(shape) if confidence is None else torch.sigmoid(confidence).view(shape)
    best = trainee.draft_token_ids[rows.best].view(shape)
    return acceptance, best, certain, valid, batch.token_ids[0, :, 1:]


def _summary(entry: dict, num_drafts: int) -> dict:
    values = {}
    if "greedy_cycles" in entry:
        values["tau_greedy"] = round(entry["greedy_tokens"] / entry["greedy_cycles"], 4)
    if "anchors" in entry:
        values["tau_t1"] = round(entry["tau_sum"] / entry["anchors"], 4)
        values["accept"] = [
            round(entry[f"accept{k + 1}"] / max(entry[f"count{k + 1}"], 1), 4)
            for k in range(num_drafts)
        ]
        values["confidence_mae"] = round(entry["confidence_error"] / entry["confidence_count"], 4)
    return values
