"""Random inputs of markov_sample, what it must give for them, and comparison to the bit."""

from types import SimpleNamespace

import torch

from dspark_ext import draft
from dspark_ext.reference import draft as reference
from dspark_ext.reference import numerics

HEADS = ("vanilla", "gated", "rnn")


def head(
    batch,
    steps,
    vocab,
    rank,
    *,
    kind="vanilla",
    width=40,
    dtype=torch.float32,
    weights=None,
    target=None,
    seed=0,
):
    """Random inputs; with `target` the drafter's vocabulary is `vocab` ids out of `target`;
    `width`: size of the hidden rows that the heads other than vanilla read."""
    generator = torch.Generator().manual_seed(seed)
    weights = dtype if weights is None else weights
    embeddings = vocab if target is None else target
    it = SimpleNamespace(
        base_logits=(torch.randn(batch, steps, vocab, generator=generator) * 2).to(dtype),
        anchor=torch.randint(0, embeddings, (batch,), generator=generator),
        w1=torch.randn(embeddings, rank, generator=generator).to(weights),
        w2=torch.randn(vocab, rank, generator=generator).to(weights),
        seeds=torch.randint(-(2**63), 2**63 - 1, (batch,), generator=generator),
        positions=torch.randint(0, 2**40, (batch,), generator=generator),
        temperature=torch.rand(batch, generator=generator) + 0.3,
        d2t=None,
        head=kind,
        hidden=None,
        head_weight=None,
        head_bias=None,
    )
    if target is not None:
        ids = torch.randperm(target, generator=generator)[:vocab].sort().values
        it.d2t = ids - torch.arange(vocab)
    if kind != "vanilla":
        shape = (rank, width + rank) if kind == "gated" else (3 * rank, 2 * rank + width)
        it.hidden = torch.randn(batch, steps, width, generator=generator).to(weights)
        it.head_weight = (torch.randn(shape, generator=generator) / shape[1] ** 0.5).to(weights)
        it.head_bias = torch.randn(shape[0], generator=generator).to(weights)
    return it


def sample(it, rows=None, **changes):
    """On the exact path unless told otherwise: the one with the same bits on every machine."""
    rows = slice(None) if rows is None else rows
    arguments = {
        "exact": True,
        "temperature": it.temperature[rows],
        "seeds": it.seeds[rows],
        "positions": it.positions[rows],
        "d2t": it.d2t,
        "head": it.head,
        "hidden": None if it.hidden is None else it.hidden[rows],
        "head_weight": it.head_weight,
        "head_bias": it.head_bias,
        **changes,
    }
    return draft.markov_sample(it.base_logits[rows], it.anchor[rows], it.w1, it.w2, **arguments)


# --- what the definition gives -------------------------------------------------------------------


def reference_head(it):
    return reference.Head(it.head, it.head_weight, it.head_bias)


def for_each_step(it, ids, visit, step=reference.head_step):
    """visit(b, k, u) with the input of w2 along the drafted ids."""
    for b in range(ids.shape[0]):
        previous, state = it.anchor[b], torch.zeros(it.w1.shape[1])
        for k in range(ids.shape[1]):
            hidden = None if it.hidden is None else it.hidden[b, k]
            u, state = step(reference_head(it), it.w1[previous], hidden, state)
            visit(b, k, u)
            previous = ids[b, k]


def expected_logits(it, ids, vocab):
    """Recomputed along the drafted ids, to the bit."""
    logits = torch.empty(*ids.shape, vocab, dtype=it.base_logits.dtype)

    def visit(b, k, u):
        row = reference.step_logits(it.base_logits[b, k], u, it.w2)
        logits[b, k] = reference.scatter_to_target(row, it.d2t, vocab)

    for_each_step(it, ids, visit)
    return logits


def row_temperatures(it, steps, method="probabilistic"):
    heat = it.temperature if method == "probabilistic" else torch.zeros_like(it.temperature)
    return (heat + 0.0)[:, None].expand(-1, steps)


def expected_ids(it, logits, method="probabilistic"):
    """Redrawn from the kept logits with the documented uniforms."""
    ids = torch.empty(logits.shape[:2], dtype=torch.int64)
    heat = row_temperatures(it, ids.shape[1], method)
    for b, k in ((b, k) for b in range(logits.shape[0]) for k in range(logits.shape[1])):
        law = numerics.row_statistics(logits[b, k].float().numpy(), float(heat[b, k]))
        u = numerics.uniform(int(it.seeds[b]), int(it.positions[b]) + k, "draft", k)
        ids[b, k] = 0 if law.is_empty else numerics.draw(law.weight, law.tile_totals(), u)
    return ids


def expected_statistics(logits, temperatures):
    """What the rows themselves give, [B, n, V] under [B, n]."""
    tiles = numerics.tiles(logits.shape[-1])
    shape = (*logits.shape[:2], len(tiles))
    tile_max, tile_sum = torch.empty(shape), torch.zeros(shape)
    tile_nan = torch.empty(shape, dtype=torch.uint8)
    for b, k in ((b, k) for b in range(shape[0]) for k in range(shape[1])):
        law = numerics.row_statistics(logits[b, k].float().numpy(), float(temperatures[b, k]))
        for t, part_of_row in enumerate(tiles):
            tile_max[b, k, t] = float(law.x[part_of_row].max())
            tile_nan[b, k, t] = bool(logits[b, k, part_of_row].isnan().any())
            if temperatures[b, k] > 0:
                tile_sum[b, k, t] = float(numerics.tile_sum(law.weight[part_of_row]))
    return draft.RowStatistics(temperatures.contiguous(), tile_max, tile_sum, tile_nan)


def check_block(it, output, method="probabilistic"):
    """Every tensor of the result, to the bit."""
    ids = output.token_ids
    expected = expected_logits(it, ids, output.logits.shape[-1])
    assert torch.equal(bits(output.logits), bits(expected))
    assert ids.tolist() == expected_ids(it, output.logits, method).tolist()
    previous = torch.cat([it.anchor[:, None], ids[:, :-1]], 1)
    assert torch.equal(output.prev_embed, it.w1[previous[:, : ids.shape[1]]])
    heat = row_temperatures(it, ids.shape[1], method)
    expected = expected_statistics(output.logits, heat)
    for name, a, b in zip(expected._fields, output.statistics, expected):
        assert a.dtype == b.dtype and torch.equal(bits(a), bits(b)), name


# --- results -------------------------------------------------------------------------------------


def flat(output):
    """Every tensor of a DraftOutput by name."""
    names = ("token_ids", "logits", "prev_embed")
    return {**dict(zip(names, output)), **output.statistics._asdict()}


def part(output, index):
    """Some requests (or, with a tuple, drafts) of a DraftOutput."""
    statistics = draft.RowStatistics(*(tensor[index] for tensor in output.statistics))
    return draft.DraftOutput(*(tensor[index] for tensor in output[:3]), statistics)


def joined(outputs):
    """The requests of several DraftOutputs."""
    statistics = zip(*(output.statistics for output in outputs))
    statistics = draft.RowStatistics(*(torch.cat(tensors) for tensors in statistics))
    return draft.DraftOutput(
        *(torch.cat(tensors) for tensors in zip(*(output[:3] for output in outputs))), statistics
    )


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def assert_same(one, two):
    """To the bit; `two` may lack the statistics."""
    one, two = flat(one), two._asdict() if "statistics" not in two._fields else flat(two)
    for name, b in two.items():
        a = one[name]
        assert a.dtype == b.dtype and a.shape == b.shape and torch.equal(bits(a), bits(b)), name
