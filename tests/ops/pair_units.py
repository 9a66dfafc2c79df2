"""Expert products by one pair unit of the CPU; as a script, prints what came out under the
DSPARK_CPU_ISA of its process."""

import hashlib
import json
import pathlib
import sys

import torch

from dspark_ext import _C, moe
from dspark_ext.reference import moe_gemm as reference

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import expert_sweep as sweep  # noqa: E402

KINDS = ("bf16", "fp16", "fp8-128", "fp8-32", "fnuz-128", "mxfp4", *sweep.BLOCK_KINDS)
# Experts, N, K, tokens, tile_rows: tails of both, a tile of 31 rows, K of several chunks.
SHAPES = ((5, 38, 74, 23, 16), (3, 64, 600, 50, 64), (2, 18, 6, 3, 1))
ONE_EXPERT = (3, 48, 256, 90, 90)  # to which every token goes: tiles of more than 64 rows


def prepared(weights: sweep.Weights, in_turns: bool) -> dict:
    """Arguments of grouped_gemm for the weights in pairs; rows of gates and ups lie in turns."""
    experts, rows, columns = weights.exact.shape
    stored = weights.weight.view(torch.uint8).view(experts, rows, -1)
    if in_turns:
        stored = stored.view(experts, 2, rows // 2, -1).transpose(1, 2).reshape(stored.shape)
    row_bytes = -(-columns // 32) * 32 * stored.shape[2] // columns
    padding = (0, row_bytes - stored.shape[2], 0, -rows % 16)
    panels = torch.nn.functional.pad(stored, padding).view(experts, -1, 16, row_bytes // 4, 4)
    dtype = weights.weight.dtype if weights.format is None else torch.uint8
    packed = panels.transpose(2, 3).contiguous().view(dtype)
    how = {**weights.options(), "layout": "pairs", "size": (rows, columns)}
    return {"weight": packed, **how}


def plan_of(shape: tuple) -> moe.DispatchPlan:
    experts, _, _, tokens, tile_rows = shape
    if shape == ONE_EXPERT:
        return moe.plan(torch.ones(tokens, 1, dtype=torch.int64), experts, tile_rows=tile_rows)
    return sweep.make_plan(tokens, 2, experts, 3, tile_rows=tile_rows)


def products(kind: str, dtype: torch.dtype, shape: tuple, layout: str, activation: bool):
    """float32 products, and what float64 makes of them."""
    experts, rows, columns, tokens, _ = shape
    weights = sweep.make_weights(kind, (experts, rows, columns), columns)
    x = sweep.make_rows(tokens, columns, dtype, rows)
    how = {"activation": "swiglu", "limit": 2.0} if activation else {}
    storage = (
        {"weight": weights.weight, **weights.options()}
        if layout == "rows"
        else prepared(weights, activation)
    )
    plan = plan_of(shape)
    got = moe.grouped_gemm(x, plan=plan, dtype=torch.float32, **storage, **how)
    want = reference.grouped_gemm(x, weights.exact, plan)
    return got, reference.swiglu(want, 2.0) if activation else want


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def cases():
    for kind in KINDS:
        dtypes = [torch.bfloat16, torch.float16]
        if kind in ("bf16", "fp16"):
            dtypes = [sweep.described(kind)[0]]
        for dtype in dtypes:
            for shape in (*SHAPES, ONE_EXPERT):
                yield kind, dtype, shape


def results() -> dict:
    """name: digests of rows and pairs, and the larger of their relative errors."""
    found = {}
    for kind, dtype, shape in cases():
        for activation in (False, True):
            rows, want = products(kind, dtype, shape, "rows", activation)
            pairs, _ = products(kind, dtype, shape, "pairs", activation)
            error = max(sweep.relative_error(got, want) for got in (rows, pairs))
            name = f"{kind} {str(dtype)[6:]} {shape} {'swiglu' if activation else ''}"
            found[name] = [digest(rows), digest(pairs), error]
    return found


if __name__ == "__main__":
    unit = _C.cpu_pair_unit()  # raises where the machine lacks what is forced
    print(json.dumps({"unit": unit, "results": results()}))
