"""Fake kernels, opcheck and torch.compile."""

import pytest
import torch
from kit import METHODS, random_batch, same, starts

from dspark_ext import sampling

OPCHECKS = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
OPS = torch.ops.dspark_ext


def arguments(method="block", draft="logits", logprobs=True, batch=3, width=2, vocab=17) -> tuple:
    generator = torch.Generator().manual_seed(6)
    target, ids, rows = random_batch(generator, [width] * batch, vocab, width)
    return (
        target, ids, rows if draft == "logits" else None,
        rows.softmax(-1) if draft == "probs" else None, starts([width] * batch), method,
        torch.full((batch,), 0.9), None, torch.full((batch,), 5, dtype=torch.int32), None, None,
        torch.arange(batch), torch.arange(batch),
        torch.full((width,), 0.5) if method == "synthetic" else None, None,
        logprobs,
    )  # fmt: skip


@pytest.mark.parametrize("draft", ["logits", "probs", "none"])
@pytest.mark.parametrize("method", [*METHODS, "greedy", "synthetic"])
def test_opcheck_rejection_sample(method, draft):
    for logprobs in (True, False):
        torch.library.opcheck(
            OPS.rejection_sample.default, arguments(method, draft, logprobs), test_utils=OPCHECKS
        )


def test_opcheck_empty():
    torch.library.opcheck(OPS.rejection_sample.default, arguments(batch=0), test_utils=OPCHECKS)
    torch.library.opcheck(OPS.rejection_sample.default, arguments(width=0), test_utils=OPCHECKS)


def test_opcheck_rejection_sample_out():
    *inputs, _ = arguments()
    outputs = OPS.rejection_sample(*inputs, True)
    names = ("token_ids", "num_accepted", "num_emitted", "last_token", "status", "logprobs")
    torch.library.opcheck(
        OPS.rejection_sample.out, tuple(inputs), dict(zip(names, outputs, strict=True)),
        test_utils=OPCHECKS[:2],
    )  # fmt: skip


def test_opcheck_rows():
    logits, temperature = torch.randn(4, 33), torch.ones(4)
    filters = (torch.full((4,), 5, dtype=torch.int32), torch.full((4,), 0.9), torch.full((4,), 0.1))
    index = torch.arange(4)
    torch.library.opcheck(
        OPS.target_probs.default, (logits, temperature, *filters), test_utils=OPCHECKS
    )
    torch.library.opcheck(
        OPS.target_probs.out, (logits, temperature, *filters), {"probs": torch.empty(4, 33)},
        test_utils=OPCHECKS[:2],
    )  # fmt: skip
    inputs = (logits, temperature, *filters, index, index, "draft", None)
    torch.library.opcheck(OPS.sample.default, inputs, test_utils=OPCHECKS)
    outputs = {"ids": torch.empty(4, dtype=torch.int64), "logprobs": torch.empty(4)}
    torch.library.opcheck(OPS.sample.out, inputs, outputs, test_utils=OPCHECKS[:2])


def test_opcheck_block_acceptance():
    target, ids, rows, _, bounds, _, temperature, *_ = arguments()
    torch.library.opcheck(
        OPS.block_acceptance.default,
        (target, ids, rows, None, bounds, temperature, None, None, None, None),
        test_utils=OPCHECKS,
    )


def test_compile_fullgraph_with_a_dynamic_batch():
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
        return *out, drawn, logprobs, sampling.target_probs(target, temperature=0.5, top_k=3)

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch in (2, 5, 9, 1):
        target, ids, rows, _, bounds, _, temperature, _, _, _, _, seeds, positions, *_ = arguments(
            batch=batch
        )
        inputs = (target, ids, rows, bounds, temperature, seeds, positions)
        assert same(step(*inputs), compiled(*inputs))


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
