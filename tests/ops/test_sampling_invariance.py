"""The same request gives the same bits whatever stands around it and whatever it runs on."""

import hashlib
import os
import subprocess
import sys

import pytest
import torch
from kit import METHODS, NEG_INF, bits_equal, random_batch, same, starts, verify

from dspark_ext import _C, sampling

NUM_DRAFTS = [3, 0, 5, 1, 0, 4, 2, 5, 3, 1]
WIDTH = 5


def batch(vocab: int, dtype=torch.float32) -> dict:
    generator = torch.Generator().manual_seed(vocab)
    target, ids, draft = random_batch(generator, NUM_DRAFTS, vocab, WIDTH, dtype)
    near = torch.randn(draft.shape, generator=generator) * 0.5
    begin = starts(NUM_DRAFTS).tolist()
    for b, n in enumerate(NUM_DRAFTS):  # drafts close to the target, so that blocks get long
        draft[b, :n] = target[begin[b] : begin[b] + n] + near[b, :n].to(dtype)
        ids[b, :n] = draft[b, :n].float().argmax(-1)
    ids[7, 2] = -1
    target[begin[8] + 1, vocab // 2] = float("nan")
    target[begin[9], 1:] = NEG_INF
    count = len(NUM_DRAFTS)
    return {
        "target_logits": target,
        "draft_token_ids": ids,
        "draft_logits": draft,
        "num_drafts": NUM_DRAFTS,
        "temperature": torch.tensor([1, 0, 0.7, 1.3, 1, 1, 0, 1, 1, 1.0]),
        "draft_temperature": torch.tensor([1, 1, 0.7, 0, 1, 1, 1, 2, 1, 1.0]),
        "top_k": torch.tensor([0, 5, 0, 50, 0, 0, 3, 0, 0, 0], dtype=torch.int32),
        "top_p": torch.tensor([1, 1, 0.9, 1, 0.5, 0.95, 1, 1, 1, 1.0]),
        "min_p": torch.tensor([0, 0, 0, 0, 0.1, 0, 0, 0.01, 0, 0.0]),
        "seeds": torch.arange(count) * 1_000_003 - 7,
        "positions": torch.arange(count) * 97,
    }


PER_REQUEST = [
    "draft_token_ids", "draft_logits", "draft_probs", "temperature", "draft_temperature", "top_k",
    "top_p", "min_p", "seeds", "positions", "uniforms",
]  # fmt: skip


def select(inputs: dict, requests: list[int]) -> dict:
    """The same requests as another batch."""
    begin = starts(inputs["num_drafts"]).tolist()
    chosen = dict(inputs)
    chosen["num_drafts"] = [inputs["num_drafts"][b] for b in requests]
    rows = [r for b in requests for r in range(begin[b], begin[b + 1])]
    chosen["target_logits"] = inputs["target_logits"][rows]
    for key in PER_REQUEST:
        if chosen.get(key) is not None:
            chosen[key] = chosen[key][requests]
    return chosen


def run(inputs: dict, method: str):
    return verify(**inputs, method=method, return_logprobs=True)


def pick(out, requests):
    return [x[requests] for x in out]


@pytest.mark.parametrize("vocab", [31, 4097, 12288], ids=lambda v: f"V={v}")
@pytest.mark.parametrize("method", [*METHODS, "greedy"])
class TestBatch:
    def test_permutation(self, method, vocab):
        inputs = batch(vocab)
        order = [7, 2, 9, 0, 4, 1, 8, 3, 6, 5]
        assert same(pick(run(inputs, method), order), run(select(inputs, order), method))

    def test_splitting(self, method, vocab):
        inputs = batch(vocab)
        whole = run(inputs, method)
        for requests in ([0, 1, 2], [3, 4, 5, 6, 7, 8], [9], *([b] for b in range(10))):
            assert same(pick(whole, requests), run(select(inputs, requests), method))

    def test_repetition(self, method, vocab):
        inputs = batch(vocab)
        whole = run(inputs, method)
        many = run(select(inputs, list(range(10)) * 7), method)
        for copy in range(7):
            assert same(whole, pick(many, slice(10 * copy, 10 * copy + 10)))

    def test_neighbours_without_drafts(self, method, vocab):
        inputs = batch(vocab)
        order = [1, 0, 4, 4, 2, 1]
        out = run(select(inputs, order), method)
        assert same(pick(run(inputs, method), order), out)

    def test_padding_rows_are_not_read(self, method, vocab):
        inputs = batch(vocab)
        whole = run(inputs, method)
        padding = torch.full((9, vocab), float("nan"))
        inputs["target_logits"] = torch.cat([inputs["target_logits"], padding])
        assert same(whole, run(inputs, method))

    def test_unused_slots_are_not_read(self, method, vocab):
        inputs = batch(vocab)
        whole = run(inputs, method)
        for b, n in enumerate(NUM_DRAFTS):
            inputs["draft_token_ids"][b, n:] = 2**50
            inputs["draft_logits"][b, n:] = float("nan")
        assert same(whole, run(inputs, method))

    def test_wider_draft_table(self, method, vocab):
        """More (unused) slots per request change nothing but the width of the output."""
        inputs = batch(vocab)
        whole = run(inputs, method)
        wide = torch.nn.functional.pad
        inputs["draft_token_ids"] = wide(inputs["draft_token_ids"], (0, 3), value=1)
        inputs["draft_logits"] = wide(inputs["draft_logits"], (0, 0, 0, 3))
        out = run(inputs, method)
        assert bits_equal(out.token_ids[:, : WIDTH + 1], whole.token_ids)
        assert (out.token_ids[:, WIDTH + 1 :] == -1).all()
        assert same(whole[1:5], out[1:5])


def test_row_ops_do_not_depend_on_the_batch():
    inputs = batch(4097)
    rows = inputs["target_logits"]
    options = {"temperature": 0.9, "top_p": 0.9, "top_k": 100}
    probs = sampling.target_probs(rows, **options)
    n = len(rows)
    seeds, positions = torch.arange(n), torch.arange(n) * 3
    ids, logprobs = sampling.sample(rows, seeds=seeds, positions=positions, **options)
    for i in range(n):
        part = slice(i, i + 1)
        assert bits_equal(sampling.target_probs(rows[part], **options), probs[part])
        alone = sampling.sample(rows[part], seeds=seeds[part], positions=positions[part], **options)
        assert same((ids[part], logprobs[part]), alone)


def test_scalar_parameters_broadcast():
    inputs = batch(31)
    for key, value in {
        "temperature": 0.8, "draft_temperature": 0.9, "top_k": 7, "top_p": 0.9, "min_p": 0.01
    }.items():  # fmt: skip
        inputs[key] = torch.full_like(inputs[key], value)
        scalar = {**inputs, key: value}
        assert same(run(inputs, "block"), run(scalar, "block")), key


def test_parameters_default_to_off():
    inputs = batch(31)
    for key in ("top_k", "top_p", "min_p"):
        inputs[key] = torch.zeros_like(inputs[key]) + (1 if key == "top_p" else 0)
    inputs["draft_temperature"] = inputs["temperature"]
    bare = {
        k: v for k, v in inputs.items() if k not in ("top_k", "top_p", "min_p", "draft_temperature")
    }
    assert same(run(inputs, "block"), run(bare, "block"))


@pytest.mark.parametrize("method", METHODS)
def test_hook_with_the_documented_draws_changes_nothing(method):
    """`uniforms` filled with the Philox draws of docs/numerics.md section 5."""
    inputs = batch(4097)
    whole = run(inputs, method)
    count = len(NUM_DRAFTS)
    uniforms = torch.zeros(count, WIDTH + 1, dtype=torch.float64)
    for b in range(count):
        seed, position = int(inputs["seeds"][b]), int(inputs["positions"][b])
        for i in range(WIDTH):
            uniforms[b, i] = _C.uniform(seed, position + i, 1, i)
        uniforms[b, WIDTH] = _C.uniform(seed, position + int(whole.num_accepted[b]), 2, 0)
    assert same(whole, run({**inputs, "uniforms": uniforms}, method))


def test_token_is_an_alias_of_standard():
    inputs = batch(31)
    assert same(run(inputs, "token"), run(inputs, "standard"))


# --- threads and instruction sets ----------------------------------------------------------------


def digest() -> str:
    """Every op on many inputs, hashed."""
    sha = hashlib.sha256()

    def add(tensors):
        for tensor in tensors:
            sha.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())

    for vocab, dtype in [
        (31, torch.float32), (257, torch.bfloat16), (4097, torch.float16), (12288, torch.float32),
        (50_001, torch.bfloat16),
    ]:  # fmt: skip
        inputs = batch(vocab, dtype)
        for method in (*METHODS, "greedy"):
            add(run(inputs, method))
        probs = dict(inputs, draft_probs=inputs["draft_logits"].float().softmax(-1).nan_to_num())
        add(run(dict(probs, draft_logits=None), "block"))
        add(run(dict(inputs, draft_logits=None), "block"))
        rows = inputs["target_logits"]
        add([sampling.target_probs(rows, temperature=0.7, top_k=30, top_p=0.8, min_p=0.01)])
        seeds, positions = torch.arange(len(rows)), torch.arange(len(rows))
        add(sampling.sample(rows, temperature=1.1, top_p=0.95, seeds=seeds, positions=positions))
        blocks = {
            k: inputs[k] for k in ("target_logits", "draft_token_ids", "draft_logits", "top_p")
        }
        add(
            sampling.block_acceptance(
                **blocks, query_start_loc=starts(NUM_DRAFTS), temperature=inputs["temperature"]
            )
        )
    return sha.hexdigest()


@pytest.fixture(scope="module")
def digest_here() -> str:
    return digest()


def digest_elsewhere(**environment) -> tuple[str, str]:
    """(instruction set, digest) of a fresh process."""
    here = os.path.dirname(os.path.abspath(__file__))
    code = "import test_sampling_invariance as t; print(t._C.cpu_isa(), t.digest())"
    paths = [here, os.path.dirname(here), *sys.path]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p), **environment}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return tuple(done.stdout.split())


def supported_isas() -> list[str]:
    order = ["baseline", "avx2", "avx512"]
    return order[: order.index(_C.cpu_isa()) + 1]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_thread_count_does_not_matter(threads, digest_here):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert digest() == digest_here
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("isa", supported_isas())
def test_instruction_set_does_not_matter(isa, digest_here):
    assert digest_elsewhere(DSPARK_CPU_ISA=isa, OMP_NUM_THREADS="2") == (isa, digest_here)


def test_flush_to_zero_does_not_matter(digest_here):
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU has no flush-to-zero mode")
    try:
        assert digest() == digest_here
    finally:
        torch.set_flush_denormal(False)


def test_digest_sees_a_single_bit(digest_here, monkeypatch):
    """Negative control: one logit moved by one ulp changes the digest."""
    original = random_batch

    def nudged(*args):
        target, ids, draft = original(*args)
        target[0, 0] = target[0, 0].nextafter(torch.tensor(9.0, dtype=target.dtype))
        return target, ids, draft

    monkeypatch.setattr(sys.modules[__name__], "random_batch", nudged)
    assert digest() != digest_here
