"""Cases of whole expert layers, for bench_moe.py.

The baseline is torch's loop over the experts that were chosen, in bfloat16, which decodes the codes
of each. Every layer is measured with weights as checkpoints have them and prepared, by the default
path, and once with exact sums.

The floor is what a step has to read: the weights of the experts that its tokens chose, once, and
its rows. "moved/floor" counts an expert's weights once for every tile of its rows: while it stays
near 1, the weights are read once.
"""

import functools
import itertools

import harness
import torch
import torch.nn.functional as F

from dspark_ext import formats, moe
from dspark_ext.moe import fused

# experts, slots, width, inner width: the layer of a DSpark drafter (128 experts, 3 of them), at a
# width of which two sets of 16-bit weights fit into 16 GB; and one of few large experts.
DRAFTER = (128, 3, 2048, 768)
FEW = (8, 2, 1024, 512)
TOKENS = (5, 40, 160, 640)
FORMATS = ("bf16", "fp8_e4m3", "mxfp4")
BITS = {"bf16": 16, "fp8_e4m3": 8, "mxfp4": 4.25}  # of a weight, scales included
LIMIT = 10.0


def make_ids(tokens: int, experts: int, k: int) -> torch.Tensor:
    return torch.rand(tokens, experts).argsort(1)[:, :k].int()


# ---- weights ------------------------------------------------------------------------------------


def random_part(format: str, shape: tuple) -> tuple:
    """(weight, scales) of about unit rows; codes are drawn as they are, which is fast."""
    experts, rows, columns = shape
    if format == "bf16":
        weight = torch.empty(shape, dtype=torch.bfloat16).normal_(0, columns**-0.5)
        return weight, None
    if format == "mxfp4":
        codes = torch.randint(0, 256, (experts, rows, columns // 2), dtype=torch.uint8)
        exponent = -round(torch.tensor(columns * 8.0).log2().item() / 2)  # fp4 has mean square 8
        shape = (experts, rows, -(-columns // 32))
    else:
        signs = torch.randint(0, 2, shape, dtype=torch.uint8) << 7
        codes = torch.randint(0x28, 0x48, shape, dtype=torch.uint8) | signs  # 0.25 .. 4
        exponent = -round(torch.tensor(columns * 3.0).log2().item() / 2)
        shape = formats.scale_shape(shape, formats.DEFAULT_BLOCKS[format])
    scales = torch.full(shape, 127 + exponent, dtype=torch.uint8)
    return codes, scales


@functools.lru_cache(maxsize=1)
def layer_weights(format: str, layer: tuple, prepared: bool) -> tuple:
    """(weights as they are, weights to be measured); of one case at a time."""
    experts, _, width, inner = layer
    torch.manual_seed(1)
    w13, w13_scales = random_part(format, (experts, 2 * inner, width))
    w2, w2_scales = random_part(format, (experts, width, inner))
    name = None if format == "bf16" else format
    rows = moe.ExpertWeights(w13, w2, w13_scales, w2_scales, name)
    return rows, moe.prepare_weights(rows) if prepared else rows


# ---- layers -------------------------------------------------------------------------------------


def run_layer(x, ids, weights, experts: moe.ExpertWeights, exact: bool) -> torch.Tensor:
    w13, w2, *rest = experts
    how = dict(zip(moe.ExpertWeights._fields[2:], rest, strict=True))
    return moe.fused_moe(x, w13, w2, ids, weights, swiglu_limit=LIMIT, exact=exact, **how)


def torch_layer(x, ids, weights, experts: moe.ExpertWeights) -> torch.Tensor:
    """A loop over the experts, bfloat16 throughout but for the sum."""

    def dense(codes, scales, expert: int) -> torch.Tensor:
        if scales is None:
            return codes[expert]
        return formats.dequantize(
            codes[expert], scales[expert], experts.format, dtype=torch.bfloat16
        )

    total = torch.zeros(x.shape)
    for expert in ids.unique().tolist():
        token, slot = (ids == expert).nonzero(as_tuple=True)
        w13 = dense(experts.w13, experts.w13_scales, expert)
        gate, up = F.linear(x[token], w13).float().chunk(2, 1)
        hidden = F.silu(gate.clamp(max=LIMIT)) * up.clamp(-LIMIT, LIMIT)
        w2 = dense(experts.w2, experts.w2_scales, expert)
        total.index_add_(
            0, token, F.linear(hidden.bfloat16(), w2).float() * weights[token, slot, None]
        )
    return total.bfloat16()


def weight_bytes(format: str, layer: tuple) -> int:
    """Of an expert."""
    _, _, width, inner = layer
    return int(3 * width * inner * BITS[format] / 8)


def layer_case(tokens: int, layer: tuple, format: str, how: str) -> harness.Case:
    """`how`: "exact", "rows" or "prepared"."""
    experts, k, width, inner = layer
    torch.manual_seed(tokens)
    counts = make_ids(tokens, experts, k).flatten().bincount(minlength=experts)
    touched = int((counts > 0).sum())
    tiles = int((counts / fused.TILE_ROWS_CPU).ceil().sum())
    rows = 4 * tokens * width
    sets = itertools.count()

    def inputs() -> tuple:
        """All sets of inputs share the weights, but choose other experts of them."""
        own = layer_weights(format, layer, how == "prepared")
        torch.manual_seed(tokens)
        ids = (make_ids(tokens, experts, k) + 15 * next(sets)) % experts
        return torch.randn(tokens, width).bfloat16(), ids, torch.rand(tokens, k), *own

    def run(x, ids, weights, plain, measured):
        return run_layer(x, ids, weights, measured, how == "exact")

    def baseline(x, ids, weights, plain, measured):
        return torch_layer(x, ids, weights, plain)

    def check(given: tuple) -> None:
        got, want = run(*given).float(), baseline(*given).float()
        if not (got - want).norm() < 2e-2 * want.norm():
            raise AssertionError(f"moe_layers: fused_moe {format} {how} is wrong")

    return harness.Case(
        name=f"fused_moe {format} {how} T={tokens} E={experts} k={k} d={width} N={inner}",
        make_inputs=inputs,
        run=run,
        baseline=baseline,
        baseline_name="torch loop",
        check=check,
        floor_bytes=touched * weight_bytes(format, layer) + rows,
        moved_bytes=tiles * weight_bytes(format, layer)
        + rows
        + 2 * tokens * k * (2 * inner + 2 * width),
    )


def make_cases() -> list[harness.Case]:
    """Those of the same weights one after the other."""
    return [
        *(
            layer_case(tokens, DRAFTER, format, how)
            for format in FORMATS
            for how in ("exact", "rows", "prepared")
            for tokens in TOKENS
        ),
        *(
            layer_case(512, FEW, format, how)
            for format in FORMATS
            for how in ("exact", "rows", "prepared")
        ),
    ]
