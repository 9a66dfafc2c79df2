"""hypothesis: the float64 reference and the op decide alike, away from their boundaries."""

import hypothesis.strategies as st
import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from kit import METHODS, starts

from dspark_ext import sampling
from dspark_ext.reference import sampling as reference

settings.register_profile(
    "sampling", max_examples=120, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
QUIET = settings.get_profile("sampling")
MARGIN = 1e-5


@st.composite
def batches(draw):
    vocab = draw(st.sampled_from([2, 3, 5, 17, 64]))
    width = draw(st.integers(0, 4))
    num_drafts = draw(st.lists(st.integers(0, width), min_size=1, max_size=4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    batch, rows = len(num_drafts), sum(num_drafts) + len(num_drafts)
    target = rng.standard_normal((rows, vocab)) * draw(st.sampled_from([0.3, 1.5, 5]))
    target[rng.random((rows, vocab)) < draw(st.sampled_from([0, 0.2]))] = -np.inf
    target[:, rng.integers(vocab)] = 0
    draft = rng.standard_normal((batch, width, vocab))
    inputs = {
        "target_logits": torch.tensor(target).float(),
        "draft_token_ids": torch.tensor(rng.integers(-1, vocab + 1, (batch, width))),
        "query_start_loc": starts(num_drafts),
        "temperature": torch.tensor(rng.choice([0, 0.5, 1.0, 2.0], batch)).float(),
        "top_k": torch.tensor(rng.integers(0, vocab + 2, batch)).int(),
        "top_p": torch.tensor(rng.choice([1.0, 0.7, 0.4], batch)).float(),
        "min_p": torch.tensor(rng.choice([0.0, 0.13], batch)).float(),
    }
    kind = draw(st.sampled_from(["logits", "probs", "none"]))
    if kind == "logits":
        inputs["draft_logits"] = torch.tensor(draft).float()
    elif kind == "probs":
        inputs["draft_probs"] = torch.tensor(draft).float().softmax(-1)
    uniforms = torch.tensor(rng.random((batch, width + 1)))
    return inputs, uniforms


def call(module, inputs, method, uniforms):
    batch = len(inputs["draft_token_ids"])
    zeros = torch.zeros(batch, dtype=torch.int64)
    return module.rejection_sample(
        **inputs,
        method=method,
        uniforms=uniforms,
        seeds=zeros,
        positions=zeros,
        return_logprobs=True,
    )


def is_clear(inputs, method, uniforms) -> torch.Tensor:
    """[B]: no uniform moved by MARGIN changes what the reference emits."""
    clear = torch.ones(len(uniforms), dtype=torch.bool)
    base = call(reference, inputs, method, uniforms).token_ids
    for column in range(uniforms.shape[1]):
        for shift in (-MARGIN, MARGIN):
            moved = uniforms.clone()
            moved[:, column] += shift
            clear &= (call(reference, inputs, method, moved).token_ids == base).all(1)
    return clear


def filters_are_clear(inputs) -> bool:
    """No top-p or min-p cut within MARGIN of an entry: what is kept does not change."""
    begin = inputs["query_start_loc"].tolist()
    for b, (start, stop) in enumerate(zip(begin, begin[1:], strict=False)):
        options = {"temperature": float(inputs["temperature"][b]), "top_k": int(inputs["top_k"][b])}
        kept = []
        for scale in (1 - MARGIN, 1 + MARGIN):
            top_p = float(inputs["top_p"][b])
            probs = reference.target_probs(
                inputs["target_logits"][start:stop], **options,
                top_p=top_p * scale if top_p < 1 else 1.0,
                min_p=float(inputs["min_p"][b]) * scale,
            )  # fmt: skip
            kept.append(probs > 0)
        if not torch.equal(*kept):
            return False
    return True


@settings(QUIET)
@given(batches(), st.sampled_from([*METHODS, "greedy"]))
def test_rejection_sample_equals_reference(batch, method):
    inputs, uniforms = batch
    if not filters_are_clear(inputs):
        return
    want, got = call(reference, inputs, method, uniforms), call(sampling, inputs, method, uniforms)
    clear = is_clear(inputs, method, uniforms)
    for x, y in zip(want[:5], got[:5], strict=True):
        assert torch.equal(x[clear], y[clear])
    torch.testing.assert_close(
        got.logprobs[clear].double(), want.logprobs[clear], atol=2e-6, rtol=1e-5
    )


@settings(QUIET)
@given(batches())
def test_target_probs_equal_reference(batch):
    inputs, _ = batch
    if not filters_are_clear(inputs):
        return
    lengths = inputs["query_start_loc"].diff()
    options = {
        key: inputs[key].repeat_interleave(lengths)
        for key in ("temperature", "top_k", "top_p", "min_p")
    }
    want = reference.target_probs(inputs["target_logits"], **options)
    got = sampling.target_probs(inputs["target_logits"], **options)
    torch.testing.assert_close(got.double(), want, atol=1e-6, rtol=1e-5)


@settings(QUIET)
@given(batches())
def test_block_acceptance_equals_reference(batch):
    inputs, _ = batch
    inputs["temperature"] = inputs["temperature"].clamp(min=0.5)
    if not filters_are_clear(inputs):
        return
    want, got = reference.block_acceptance(**inputs), sampling.block_acceptance(**inputs)
    torch.testing.assert_close(got[0], want[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(got[1], want[1], atol=1e-5, rtol=1e-5)


@settings(QUIET)
@given(batches())
def test_logprobs_are_of_the_filtered_target(batch):
    """log p, never of the residual; exact to float64 for what is kept."""
    inputs, uniforms = batch
    if not filters_are_clear(inputs):
        return
    out = call(sampling, inputs, "block", uniforms)
    begin = inputs["query_start_loc"].tolist()
    for b, n in enumerate(out.num_emitted.tolist()):
        options = {key: inputs[key][b].item() for key in ("temperature", "top_k", "top_p", "min_p")}
        probs = reference.target_probs(inputs["target_logits"][begin[b] : begin[b] + n], **options)
        want = probs[torch.arange(n), out.token_ids[b, :n]].log()
        torch.testing.assert_close(out.logprobs[b, :n].double(), want, atol=2e-6, rtol=1e-5)
        assert (out.logprobs[b, n:] == 0).all()
