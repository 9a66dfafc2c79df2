"""Fake kernels, opcheck, torch.compile and torch.export."""

import pytest
import torch
from kit import METHODS, random_batch, same, starts

from dspark_ext import sampling

OPCHECKS = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
OPS = torch.ops.dspark_ext


def on(device, values):
    return tuple(x.to(device) if isinstance(x, torch.Tensor) else x for x in values)


def arguments(
    method="block", draft="logits", logprobs=True, batch=3, width=2, vocab=17, device="cpu"
) -> tuple:
    generator = torch.Generator().manual_seed(6)
    target, ids, rows = random_batch(generator, [width] * batch, vocab, width)
    values = (
        target, ids, rows if draft == "logits" else None,
        rows.softmax(-1) if draft == "probs" else None, starts([width] * batch), method,
        torch.full((batch,), 0.9), None, torch.full((batch,), 5, dtype=torch.int32), None, None,
        torch.arange(batch), torch.arange(batch),
        torch.full((width,), 0.5) if method == "synthetic" else None, None, [],
        logprobs,
    )  # fmt: skip
    return on(device, values)


@pytest.mark.parametrize("draft", ["logits", "probs", "none"])
@pytest.mark.parametrize("method", [*METHODS, "greedy", "synthetic"])
def test_opcheck_rejection_sample(method, draft, device):
    for logprobs in (True, False):
        inputs = arguments(method, draft, logprobs, device=device)
        torch.library.opcheck(OPS.rejection_sample.default, inputs, test_utils=OPCHECKS)


def test_opcheck_empty(device):
    for size in ("batch", "width"):
        inputs = arguments(device=device, **{size: 0})
        torch.library.opcheck(OPS.rejection_sample.default, inputs, test_utils=OPCHECKS)


def test_opcheck_rejection_sample_out(device):
    *inputs, _ = arguments(device=device)
    outputs = OPS.rejection_sample(*inputs, True)
    names = ("token_ids", "num_accepted", "num_emitted", "last_token", "status", "logprobs")
    torch.library.opcheck(
        OPS.rejection_sample.out, tuple(inputs), dict(zip(names, outputs, strict=True)),
        test_utils=OPCHECKS[:2],
    )  # fmt: skip


def row_arguments(device, rows=4, vocab=33) -> tuple:
    generator = torch.Generator().manual_seed(3)
    values = (
        torch.randn(rows, vocab, generator=generator), torch.ones(rows),
        torch.full((rows,), 5, dtype=torch.int32), torch.full((rows,), 0.9),
        torch.full((rows,), 0.1),
    )  # fmt: skip
    return on(device, values)


def draw_arguments(device, rows=4) -> tuple:
    index = torch.arange(rows, device=device)
    return (*row_arguments(device, rows), index, index, "draft", None, index)


def acceptance_arguments(device, **sizes) -> tuple:
    target, ids, rows, _, bounds, _, temperature, *_ = arguments(device=device, **sizes)
    return (target, ids, rows, None, bounds, temperature, None, None, None, None)


def test_opcheck_rows(device):
    rows = row_arguments(device)
    torch.library.opcheck(OPS.target_probs.default, rows, test_utils=OPCHECKS)
    torch.library.opcheck(
        OPS.target_probs.out, rows, {"probs": torch.empty(4, 33, device=device)},
        test_utils=OPCHECKS[:2],
    )  # fmt: skip
    inputs = draw_arguments(device)
    torch.library.opcheck(OPS.sample.default, inputs, test_utils=OPCHECKS)
    outputs = {
        "ids": torch.empty(4, dtype=torch.int64, device=device),
        "logprobs": torch.empty(4, device=device),
    }
    torch.library.opcheck(OPS.sample.out, inputs, outputs, test_utils=OPCHECKS[:2])


def test_opcheck_block_acceptance(device):
    torch.library.opcheck(
        OPS.block_acceptance.default, acceptance_arguments(device), test_utils=OPCHECKS
    )


def test_br059_compile_fullgraph_with_a_dynamic_batch(device):
    def step(target, ids, rows, bounds, temperature, seeds, positions):
        out = sampling.rejection_sample(
            target, ids, rows, query_start_loc=bounds, temperature=temperature, seeds=seeds,
            positions=positions, top_p=0.9, return_logprobs=True,
        )  # fmt: skip
        drawn, logprobs = sampling.sample(
            target,
            temperature=1.0,
            seeds=out.token_ids.new_zeros(len(target)),
            positions=out.token_ids.new_zeros(len(target)),
        )
        masses = sampling.block_acceptance(target, ids, rows, query_start_loc=bounds)
        probs = sampling.target_probs(target, temperature=0.5, top_k=3)
        return *out, *masses, drawn, logprobs, probs

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch in (2, 5, 9, 1):
        values = arguments(batch=batch, device=device)
        inputs = tuple(values[i] for i in (0, 1, 2, 4, 6, 11, 12))
        assert same(step(*inputs), compiled(*inputs))


def test_br059_one_compilation_serves_every_batch(device):
    compilations = []

    def count(graph, _):
        compilations.append(graph)
        return graph.forward

    def step(target, ids, rows, bounds, temperature, seeds, positions):
        return sampling.rejection_sample(
            target, ids, rows, query_start_loc=bounds, temperature=temperature, seeds=seeds,
            positions=positions,
        ).token_ids  # fmt: skip

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend=count)
    for batch in (7, 5, 9, 11):  # no size that another one has, which would tie the two
        values = arguments(batch=batch, device=device)
        compiled(*(values[i] for i in (0, 1, 2, 4, 6, 11, 12)))
    assert len(compilations) == 1


class Calls(torch.nn.Module):
    """One operator as a module, for torch.export."""

    def __init__(self, operator, fixed: dict):
        super().__init__()
        self.operator, self.fixed = operator, fixed

    def forward(self, *tensors):
        given = iter(tensors)
        count = len(tensors) + len(self.fixed)
        values = [self.fixed[i] if i in self.fixed else next(given) for i in range(count)]
        out = self.operator(*values)
        return out if isinstance(out, torch.Tensor) else tuple(out)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("rejection_sample", lambda device: arguments(device=device)),
        ("target_probs", row_arguments),
        ("sample", draw_arguments),
        ("block_acceptance", acceptance_arguments),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_br059_export(name, make, device):
    values = make(device)
    tensors = [x for x in values if isinstance(x, torch.Tensor)]
    fixed = {i: x for i, x in enumerate(values) if not isinstance(x, torch.Tensor)}
    module = Calls(getattr(OPS, name).default, fixed)
    exported = torch.export.export(module, tuple(tensors)).module()
    want, got = module(*tensors), exported(*tensors)
    assert same(*((x,) if isinstance(x, torch.Tensor) else x for x in (want, got)))


@pytest.mark.parametrize("place", ["cpu", "cuda", "cuda:1"])
def test_fakes_are_on_the_device_of_the_inputs(place):
    """Needs no such device."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():

        def fake(values):
            return [
                torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=place)
                if isinstance(x, torch.Tensor)
                else x
                for x in values
            ]

        outputs = [
            *OPS.rejection_sample(*fake(arguments())), *OPS.sample(*fake(draw_arguments("cpu"))),
            *OPS.block_acceptance(*fake(acceptance_arguments("cpu"))),
            OPS.target_probs(*fake(row_arguments("cpu"))),
        ]  # fmt: skip
        kind = torch.device(place).type
        assert {x.device.type for x in outputs} == {kind}
        mixed = fake(row_arguments("cpu"))
        mixed[1] = torch.empty(4, device="cpu" if kind == "cuda" else "cuda")
        with pytest.raises(RuntimeError, match="target_probs: temperature: expected device"):
            OPS.target_probs(*mixed)


def test_fake_shapes_follow_the_inputs():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        fakes = [
            mode.from_tensor(x) if isinstance(x, torch.Tensor) else x
            for x in arguments(batch=4, width=3)
        ]
        out = OPS.rejection_sample(*fakes)
    real = OPS.rejection_sample(*arguments(batch=4, width=3))
    assert [(x.shape, x.dtype) for x in out] == [(x.shape, x.dtype) for x in real]
