"""What operators and a whole DSpark step have to do, in bytes, flops and launches; no times.

Two models, from their published configurations (docs/numerics.md has the bytes of each operator):

- the drafter of DeepSeek-V4.1-Flash: three stages of width 5120, 128 experts of which 3, a Markov
  head of rank 256 over 129280 tokens, five drafts, experts in mxfp4, dense weights in fp8;
- the target DeepSeek-V4-Flash, 284 billion weights in 43 layers of width 4096, 256 experts of which
  6. Left out because its sizes are not public: the compressor, the indexer and the keys of a long
  context. So a verification pass of this model is a floor, for short contexts.
"""

import dataclasses

import counts

VOCAB, RANK, DRAFTS = 129280, 256, 5
CONTEXT_ROWS = 4  # rows a request takes in per round: those that were kept, 3.5 of 6, rounded up
FORMAT_BITS = {"bf16": 16, "fp8": 8, "mxfp4": 4.25}


@dataclasses.dataclass(frozen=True)
class Work:
    """What an operator does. `format` names the weights of experts, which have limits of their own
    (machines.py)."""

    bytes: float
    flops: float = 0.0
    unit: str = "fp32"
    launches: float = 1
    format: str = ""
    collectives: float = 0


@dataclasses.dataclass(frozen=True)
class Drafter:
    width: int = 5120
    stages: int = 3
    attention_weights: float = 126.6e6  # of a stage
    feature_weights: float = 3 * 5120 * 5120  # main_proj
    key_value_size: int = 512
    heads: int = 64
    window: int = 128
    record_bytes: int = 584  # of a token's keys and values
    experts: int = 128
    slots: int = 3
    inner: int = 2304


@dataclasses.dataclass(frozen=True)
class Target:
    width: int = 4096
    layers: int = 43
    # q down and up, kv, grouped output down, output up
    attention_weights: float = (
        4096 * 1024 + 1024 * 64 * 512 + 4096 * 512 + 64 * 512 * 1024 + 8 * 1024 * 4096
    )
    experts: int = 256
    slots: int = 6
    inner: int = 2048
    launches_per_layer: int = 25  # a guess


def touched(experts: int, slots: int, rows: float) -> float:
    """Experts that at least one of `rows` tokens chose, if they choose evenly."""
    return experts * (1 - (1 - slots / experts) ** rows)


# ---- operators of this package ------------------------------------------------------------------


def rejection_sample(batch: int, drafts: int = DRAFTS, vocab: int = VOCAB) -> Work:
    """The block rule on bfloat16 logits."""
    flops, unit = counts.flops("rejection_sample block", {"B": batch, "K": drafts, "V": vocab})
    size = batch * counts.rejection_rows("block", drafts) * vocab * 2
    return Work(size, flops, unit, counts.LAUNCHES["rejection_sample"])


def sample(rows: int, vocab: int = VOCAB, element: int = 2) -> Work:
    flops, unit = counts.flops("sample", {"N": rows, "V": vocab})
    return Work(rows * vocab * element, flops, unit, counts.LAUNCHES["sample"])


def markov_sample(batch: int, drafts: int = DRAFTS, vocab: int = VOCAB, rank: int = RANK) -> Work:
    """All drafts, one after the other; whole tiles of 16 requests in matrix units."""
    size = drafts * 2 * (vocab * rank + 2 * batch * vocab)
    tiles = -(-batch // 16) * 16
    return Work(size, drafts * 2 * vocab * rank * tiles, "bf16", 1 + drafts)


def confidence(batch: int, drafts: int = DRAFTS, width: int = 5120) -> Work:
    flops, unit = counts.flops("confidence", {"B": batch, "K": drafts, "d": width, "r": RANK})
    return Work(2 * batch * drafts * (width + RANK), flops, unit, 1)


def schedule(batch: int, drafts: int = DRAFTS) -> Work:
    """schedule and pack."""
    launches = counts.schedule_launches(batch, drafts) + counts.LAUNCHES["pack"]
    return Work(batch * (drafts + 1) * 60, 0, "fp32", launches)


def commit(batch: int, drafts: int = DRAFTS) -> Work:
    return Work(batch * (44 + drafts + 1))


def route(rows: int, experts: int, slots: int) -> Work:
    flops, unit = counts.flops("route", {"T": rows, "E": experts, "k": slots})
    return Work(4 * rows * experts + 8 * rows * slots, flops, unit, counts.LAUNCHES["route"])


def plan(rows: int, experts: int, slots: int) -> Work:
    launches = counts.plan_launches(rows * slots, experts)
    return Work(24 * rows * slots + 16 * experts, 0, "fp32", launches)


def fused_moe(rows: int, experts: int, slots: int, width: int, inner: int, format: str) -> Work:
    """Weights of the experts that were chosen, once; whole tiles of 16 rows."""
    chosen = touched(experts, slots, rows)
    size = chosen * 3 * width * inner * FORMAT_BITS[format] / 8
    per_expert = rows * slots / chosen
    tile_rows = chosen * 16 * max(1.0, per_expert / 16 + 0.5 * (per_expert > 1))
    flops = 6 * max(rows * slots, tile_rows) * width * inner
    size += 2 * rows * slots * (2 * width + 2 * inner) + 4 * rows * width
    launches = counts.LAUNCHES["fused_moe"] + counts.plan_launches(rows * slots, experts)
    return Work(size, flops, "bf16", launches, format)


def linear(rows: float, weights: float, format: str = "bf16", launches: int = 1) -> Work:
    """Rows times a dense weight."""
    return Work(weights * FORMAT_BITS[format] / 8, 2 * max(rows, 16) * weights, "bf16", launches)


# ---- a step -------------------------------------------------------------------------------------


def draft_backbone(batch: int, model: Drafter | None = None) -> list[Work]:
    """Features of the kept tokens, context keys, three stages; without the output head."""
    m = model or Drafter()
    rows, context = batch * DRAFTS, batch * CONTEXT_ROWS
    work = [
        linear(context, m.feature_weights, "fp8", 3),
        linear(context, m.stages * m.width * m.key_value_size, "fp8", 2),
    ]
    keys = batch * (m.window + DRAFTS) * m.record_bytes
    scores = 4 * rows * m.heads * (m.window + DRAFTS) * m.key_value_size
    streams = 2 * 4 * 2 * rows * m.width  # four bfloat16 streams, read and written
    for _ in range(m.stages):
        work += [
            Work(2 * streams, 2 * 2 * 24 * 4 * m.width * rows, "fp32", 6),  # hyper-connections
            linear(rows, m.attention_weights, "fp8", 8),
            Work(keys, scores, "bf16", 2),
            linear(rows, m.experts * m.width, "bf16"),
            route(rows, m.experts, m.slots),
            fused_moe(rows, m.experts, m.slots, m.width, m.inner, "mxfp4"),
            linear(rows, 3 * m.width * m.inner, "fp8", 3),  # the shared expert
        ]
    return work


def draft_head(batch: int, model: Drafter | None = None) -> Work:
    """Base logits of all drafts."""
    m = model or Drafter()
    head = linear(batch * DRAFTS, VOCAB * m.width)
    return dataclasses.replace(head, bytes=head.bytes + 2 * batch * DRAFTS * VOCAB)


def verification(rows: int, gpus: int = 8, model: Target | None = None) -> list[Work]:
    """A pass of the target, its weights spread evenly over `gpus`; what one of them does."""
    m = model or Target()
    layer = [
        linear(rows, m.attention_weights / gpus, "fp8", m.launches_per_layer - 7),
        fused_moe_share(rows, m, gpus),
        linear(rows, 3 * m.width * m.inner / gpus, "fp8", 3),
        Work(0, launches=0, collectives=2),
    ]
    return layer * m.layers + [linear(rows, VOCAB * m.width / gpus)]


def fused_moe_share(rows: int, m: Target, gpus: int) -> Work:
    """Experts spread over GPUs: each has its part of those that were chosen."""
    whole = fused_moe(rows, m.experts, m.slots, m.width, m.inner, "mxfp4")
    return dataclasses.replace(whole, bytes=whole.bytes / gpus, flops=whole.flops / gpus)


def step(batch: int, gpus: int = 8) -> dict[str, list[Work]]:
    """The parts of a step of `batch` requests that verify all of their drafts."""
    return {
        "draft: backbone": draft_backbone(batch),
        "draft: output head": [draft_head(batch)],
        "draft: Markov head, 5 drafts": [markov_sample(batch)],
        "confidence": [confidence(batch)],
        "schedule, pack": [schedule(batch)],
        "verification pass (target)": verification(batch * (DRAFTS + 1), gpus),
        "rejection_sample (block)": [rejection_sample(batch)],
        "commit": [commit(batch)],
    }


# Parts that are operators of this package alone.
OURS = (
    *("draft: Markov head, 5 drafts", "confidence", "schedule, pack"),
    *("rejection_sample (block)", "commit"),
)
