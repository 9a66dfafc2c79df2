"""Norms, activations, rotary embedding and linear layers beside peers, on a CPU.

python bench/compare/layers.py [--threads 1] [--repeats 15] [--markdown FILE] [--json FILE]

Shapes of a small llama (SmolLM2-135M) and of a layer of width 4096. Rows are fp32, as the engine
keeps its residual stream; linear layers are bfloat16 throughout, which is what peers have.
vLLM's rotary embedding does not store keys and values; torch's indexed copy is added to it.
"""

import torch
import torch.nn.functional as F
from turns import Contender, Work, close, main

from dspark_ext import decoder
from dspark_ext.linear import linear, pack_linear

EPS = 1e-5
ROWS = (1, 6, 96)
WIDTHS = (576, 4096)
HEADS, KV_HEADS, HEAD_DIM = 9, 3, 64
SLOTS, LENGTH = 96, 256
LINEARS = ((576, 1536), (576, 49152))  # in, out


def vllm_ops():
    """vLLM's compiled operators."""
    import vllm._C  # noqa: F401

    return torch.ops._C


# ---- rms_norm -----------------------------------------------------------------------------------


def vllm_rms_norm():
    ops = vllm_ops()

    def call(x, weight):
        out = torch.empty_like(x)
        ops.rms_norm(out, x, weight, EPS)
        return out

    return call


def rms_norm_works() -> list[Work]:
    contenders = [
        Contender("dspark_ext", lambda: lambda x, w: decoder.rms_norm(x, w, EPS), ours=True),
        Contender("torch", lambda: lambda x, w: F.rms_norm(x, w.shape, w, EPS)),
        Contender("vllm rms_norm", vllm_rms_norm),
    ]
    return [
        Work(
            f"rms_norm N={rows} d={width}",
            lambda device, n=rows, d=width: (
                torch.randn(n, d, device=device),
                torch.rand(d, device=device),
            ),
            contenders,
            close(1e-6),
        )
        for width in WIDTHS
        for rows in ROWS
    ]


# ---- silu_mul -----------------------------------------------------------------------------------


def vllm_silu():
    ops = vllm_ops()

    def call(x):
        out = x.new_empty(x.shape[0], x.shape[1] // 2)
        ops.silu_and_mul(out, x)
        return out

    return call


def torch_silu():
    def call(x):
        gate, up = x.chunk(2, 1)
        return F.silu(gate) * up

    return call


def silu_works() -> list[Work]:
    contenders = [
        Contender("dspark_ext", lambda: decoder.silu_mul, ours=True),
        Contender("torch", torch_silu),
        Contender("vllm silu_and_mul", vllm_silu),
    ]
    return [
        Work(
            f"silu_mul N={rows} F={width}",
            lambda device, n=rows, d=width: (torch.randn(n, 2 * d, device=device),),
            contenders,
            close(1e-6),
        )
        for width in (1536, 11008)
        for rows in ROWS
    ]


# ---- rotary embedding and store -----------------------------------------------------------------


def rope_inputs(device: str, rows: int, caches: tuple) -> tuple:
    angles = torch.outer(torch.arange(LENGTH), 1e5 ** -torch.arange(0, 1, 2 / HEAD_DIM))
    return (
        torch.randn(rows, HEADS + 2 * KV_HEADS, HEAD_DIM, device=device),
        angles.to(device),
        torch.randint(LENGTH, (rows,), device=device),
        torch.randperm(SLOTS, device=device)[:rows],
        *caches,
    )


class Rope:
    """Tables are made once, from the first inputs."""

    tables = None

    def __call__(self, qkv, angles, positions, slots, keys, values):
        if self.tables is None:
            self.tables = self.make_tables(angles)
        return self.run(qkv, positions, slots, keys, values)


class OurRope(Rope):
    @staticmethod
    def make_tables(angles):
        both = torch.cat([angles, angles], 1)
        return both.cos(), both.sin()

    def run(self, qkv, positions, slots, keys, values):
        return decoder.rope_store(
            qkv, *self.tables, positions, slots.int(), keys, values, num_heads=HEADS
        )


class TorchRope(OurRope):
    def run(self, qkv, positions, slots, keys, values):
        cos, sin = (table[positions][:, None] for table in self.tables)
        rotated = qkv[:, : HEADS + KV_HEADS]
        low, high = rotated.chunk(2, -1)
        rotated = rotated * cos + torch.cat([-high, low], -1) * sin
        keys[slots, positions] = rotated[:, HEADS:]
        values[slots, positions] = qkv[:, HEADS + KV_HEADS :]
        return rotated[:, :HEADS]


class VllmRope(Rope):
    def __init__(self):
        self.ops = vllm_ops()

    @staticmethod
    def make_tables(angles):
        return torch.cat([angles.cos(), angles.sin()], 1)

    def run(self, qkv, positions, slots, keys, values):
        query, key, value = (
            part.flatten(1).contiguous() for part in qkv.split([HEADS, KV_HEADS, KV_HEADS], 1)
        )
        self.ops.rotary_embedding(positions, query, key, HEAD_DIM, self.tables, True)
        keys[slots, positions] = key.unflatten(1, (KV_HEADS, HEAD_DIM))
        values[slots, positions] = value.unflatten(1, (KV_HEADS, HEAD_DIM))
        return query.unflatten(1, (HEADS, HEAD_DIM))


def rope_works() -> list[Work]:
    contenders = [
        Contender("dspark_ext", OurRope, ours=True),
        Contender("torch", TorchRope),
        Contender("vllm rotary_embedding, torch store", VllmRope),
    ]
    caches = tuple(torch.randn(SLOTS, LENGTH, KV_HEADS, HEAD_DIM) for _ in range(2))
    return [
        Work(
            f"rope and store N={rows}",
            lambda device, n=rows: rope_inputs(device, n, caches),
            contenders,
            close(1e-6),
        )
        for rows in ROWS
    ]


# ---- linear -------------------------------------------------------------------------------------


class Linear:
    """Weights are packed by whoever reads them, before the clock starts."""

    weight = None

    def __call__(self, x, weight):
        if self.weight is None:
            self.out_features = len(weight)
            self.weight = self.packed(weight)
        return self.run(x)


class OurLinear(Linear):
    @staticmethod
    def packed(weight):
        return pack_linear(weight)

    def run(self, x):
        return linear(x, self.weight, None, self.out_features)


class TorchLinear(Linear):
    @staticmethod
    def packed(weight):
        return weight

    def run(self, x):
        return F.linear(x, self.weight)


class VllmOneDnn(Linear):
    def __init__(self):
        from vllm import _custom_ops

        self.ops = _custom_ops

    def packed(self, weight):
        return self.ops.create_onednn_mm(weight.t(), 128)

    def run(self, x):
        return self.ops.onednn_mm(self.weight, x, None)


class VllmPacked(Linear):
    def __init__(self):
        self.ops = vllm_ops()

    def packed(self, weight):
        return self.ops.convert_weight_packed(weight)

    def run(self, x):
        out = x.new_empty(x.shape[0], self.out_features)
        self.ops.weight_packed_linear(out, x, self.weight, None, True)
        return out


def linear_works() -> list[Work]:
    found = []
    for width, outputs in LINEARS:
        weight = torch.randn(outputs, width).mul_(width**-0.5).bfloat16()
        contenders = [
            Contender("dspark_ext", OurLinear, ours=True),
            Contender("torch", TorchLinear),
            Contender("vllm onednn_mm", VllmOneDnn),
            Contender("vllm weight_packed_linear", VllmPacked),
        ]
        found += [
            Work(
                f"linear M={rows} {width}x{outputs} bf16",
                lambda device, n=rows, d=width, w=weight: (torch.randn(n, d).bfloat16(), w),
                contenders,
                close(1e-2),
            )
            for rows in ROWS
        ]
    return found


def works() -> list[Work]:
    return rms_norm_works() + silu_works() + rope_works() + linear_works()


if __name__ == "__main__":
    main(__doc__, works)
