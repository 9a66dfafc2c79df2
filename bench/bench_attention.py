"""attention and the decoder layers against torch's, shapes of SmolLM2-135M, on a CPU.

python bench/bench_attention.py [--only attention] [--json bench/results/attention.json]
python bench/bench_attention.py --grow L,B

Six rows of a request (an anchor and five drafts) see the same context. SDPA is torch's
scaled_dot_product_attention with grouped heads on the same keys, in float32: it takes a query in
the dtype of the keys.
"""

import harness
import torch
from growth import Growth
from torch.nn import functional as F

from dspark_ext import attention, decoder

HEADS, KV_HEADS, SIZE, ROWS = 9, 3, 64, 6


def attention_case(batch: int, context: int, dtype: torch.dtype = torch.float32) -> harness.Case:
    rows = batch * ROWS

    def make_inputs():
        cache = (batch, context, KV_HEADS, SIZE)
        return (
            torch.randn(rows, HEADS, SIZE),
            torch.randn(cache).to(dtype),
            torch.randn(cache).to(dtype),
            torch.arange(batch, dtype=torch.int32).repeat_interleave(ROWS),
            torch.zeros(rows, dtype=torch.int32),
            torch.full((rows,), context, dtype=torch.int32),
        )

    def run(*inputs):
        return attention.attention(*inputs, SIZE**-0.5)

    def baseline(query, keys, values, *_):
        q = query.view(batch, ROWS, HEADS, SIZE).transpose(1, 2)
        k, v = keys.float().transpose(1, 2), values.float().transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return out.transpose(1, 2).reshape(rows, HEADS, SIZE)

    size = 2 * batch * context * KV_HEADS * SIZE * dtype.itemsize + 8 * rows * HEADS * SIZE
    return harness.Case(
        name=f"attention {str(dtype)[6:]} B={batch} R={ROWS} L={context} h={HEADS} D={SIZE}",
        make_inputs=make_inputs,
        run=run,
        baseline=baseline,
        baseline_name="SDPA",
        check=lambda inputs: torch.testing.assert_close(
            run(*inputs), baseline(*inputs), atol=1e-4, rtol=1e-4
        ),
        floor_bytes=size,
        moved_bytes=size,
    )


def rms_norm_case(rows: int, width: int = 576) -> harness.Case:
    def baseline(x, weight):
        return F.rms_norm(x, (width,), weight, 1e-5)

    def run(x, weight):
        return decoder.rms_norm(x, weight, 1e-5)

    return layer_case(
        f"rms_norm fp32 N={rows} d={width}",
        lambda: (torch.randn(rows, width), torch.rand(width) + 0.5),
        run,
        baseline,
        8 * rows * width + 4 * width,
    )


def silu_mul_case(rows: int, width: int = 1536) -> harness.Case:
    def baseline(gate_up):
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate) * up

    return layer_case(
        f"silu_mul fp32 N={rows} d={width}",
        lambda: (torch.randn(rows, 2 * width),),
        decoder.silu_mul,
        baseline,
        12 * rows * width,
    )


def rope_store_case(rows: int, context: int = 1024) -> harness.Case:
    slots = max(1, rows // ROWS)

    def make_inputs():
        angles = torch.arange(context)[:, None] * torch.logspace(0, -4, SIZE // 2)
        angles = torch.cat([angles, angles], -1)
        cache = (slots, context, KV_HEADS, SIZE)
        return (
            torch.randn(rows, HEADS + 2 * KV_HEADS, SIZE),
            angles.cos(),
            angles.sin(),
            torch.arange(rows) % ROWS + context // 2,
            (torch.arange(rows) // ROWS % slots).int(),
            torch.zeros(cache),
            torch.zeros(cache),
        )

    def run(*inputs):
        return decoder.rope_store(*inputs, num_heads=HEADS)

    def baseline(qkv, cos, sin, positions, slots, keys, values):
        q, k, v = qkv.split([HEADS, KV_HEADS, KV_HEADS], 1)

        def rotate(x):
            low, high = x.chunk(2, -1)
            c, s = (table[positions][:, None].chunk(2, -1)[0] for table in (cos, sin))
            return torch.cat([low * c - high * s, high * c + low * s], -1)

        keys[slots.long(), positions] = rotate(k)
        values[slots.long(), positions] = v
        return rotate(q)

    return layer_case(
        f"rope_store fp32 N={rows} h={HEADS} D={SIZE}",
        make_inputs,
        run,
        baseline,
        8 * rows * (HEADS + 2 * KV_HEADS) * SIZE,
    )


def layer_case(name: str, make_inputs, run, baseline, size: int) -> harness.Case:
    return harness.Case(
        name=name,
        make_inputs=make_inputs,
        run=run,
        baseline=baseline,
        baseline_name="eager torch",
        check=lambda inputs: torch.testing.assert_close(
            run(*inputs), baseline(*inputs), atol=1e-5, rtol=1e-4
        ),
        floor_bytes=size,
        moved_bytes=size,
    )


def make_cases(quick: bool = False) -> list[harness.Case]:
    batches, context = ((2,), 16) if quick else ((1, 8, 64), 1024)
    cases = [attention_case(b, context) for b in batches]
    cases += [attention_case(b, context, torch.bfloat16) for b in batches]
    layers = (rms_norm_case, silu_mul_case, rope_store_case)
    return cases + [make(b * ROWS) for make in layers for b in batches]


GROWTHS = {
    "L": [
        Growth(
            "attention float32 B=8 R=6",
            (128, 256, 512, 1024, 2048, 4096),
            lambda value: attention_case(8, value),
        )
    ],
    "B": [
        Growth(
            "attention float32 R=6 L=1024",
            (1, 2, 4, 8, 16, 32, 64),
            lambda value: attention_case(value, 1024),
        )
    ],
}


if __name__ == "__main__":
    torch.manual_seed(0)
    harness.main(__doc__.partition("\n")[0], make_cases, GROWTHS)
