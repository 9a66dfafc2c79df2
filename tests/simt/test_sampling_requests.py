"""Parameters out of range on a device: no error, and no other request is touched."""

import emulated
import pytest
import sampling_sweep as sweep
import torch
from graph_steps import STEPS, live_part, step_inputs
from kit import METHODS, bits_equal, random_batch, same, starts

from dspark_ext import sampling

NAN, INFINITY = float("nan"), float("inf")
COUNTS, V, K = [2, 3, 0, 3, 1, 3], 300, 3
B, N = len(COUNTS), sum(COUNTS) + len(COUNTS)
VICTIM = 3
WRONG_VALUES = [
    ("temperature", -1.0), ("temperature", NAN), ("temperature", INFINITY), ("temperature", -1e-40),
    ("draft_temperature", -0.5), ("draft_temperature", NAN), ("draft_temperature", INFINITY),
    ("top_p", NAN), ("min_p", NAN),
]  # fmt: skip


def good(method: str = "block", filters: bool = False) -> dict:
    generator = torch.Generator().manual_seed(5)
    target, ids, draft = random_batch(generator, COUNTS, V, K)
    inputs = {
        "target_logits": target,
        "draft_token_ids": ids,
        "draft_logits": draft,
        "query_start_loc": starts(COUNTS),
        "temperature": torch.full((B,), 0.9),
        "draft_temperature": torch.full((B,), 1.1),
        "seeds": torch.arange(B),
        "positions": torch.arange(B) * 10,
        "method": method,
    }
    if filters:
        inputs |= {"top_p": torch.full((B,), 0.95), "min_p": torch.full((B,), 0.001)}
    return inputs


def assert_invalid(out, b: int) -> None:
    assert out.token_ids[b].tolist() == [0] + [-1] * K
    assert (out.num_accepted[b], out.num_emitted[b], out.last_token[b]) == (0, 1, 0)
    assert out.status[b] == sampling.STATUS_INVALID_REQUEST
    assert out.logprobs[b].tolist() == [-INFINITY] + [0.0] * K


def assert_others(got, want, but: list[int]) -> None:
    kept = [b for b in range(B) if b not in but]
    for x, y in zip(got, want, strict=True):
        assert bits_equal(x[kept], y[kept])


@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES[1:])
@pytest.mark.parametrize("method", [*METHODS, "greedy"])
@pytest.mark.parametrize(("name", "value"), WRONG_VALUES)
def test_values_out_of_range(name, value, method, warp_size):
    inputs = good(method, filters=name in ("top_p", "min_p"))
    want = sampling.rejection_sample(**inputs, return_logprobs=True)
    masses = sampling.block_acceptance(**sweep.acceptance_case(inputs))
    inputs[name][VICTIM] = value
    with pytest.raises(RuntimeError, match=name):
        sampling.rejection_sample(**inputs)
    with emulated.operators(warp_size=warp_size, level=emulated.FULL):
        out = sampling.rejection_sample(**inputs, return_logprobs=True)
        got = sampling.block_acceptance(**sweep.acceptance_case(inputs))
    assert_invalid(out, VICTIM)
    assert_others(out, want, [VICTIM])
    assert all((x[VICTIM] == 0).all() for x in got)
    assert_others(got, masses, [VICTIM])


@pytest.mark.parametrize("method", METHODS)
def test_rows_out_of_range(method):
    """Whatever query_start_loc holds, nothing but the rows of valid requests is read."""
    inputs = good(method)
    want = sampling.rejection_sample(**inputs, return_logprobs=True)
    bounds = inputs["query_start_loc"]
    for entry in (1, VICTIM, B - 1, B):
        for value in (-1, 0, N, N + 1, 2**31 - 1, -(2**31), int(bounds[entry]) + K + 2):
            changed = bounds.clone()
            changed[entry] = value
            with emulated.operators(level=emulated.FULL):
                inputs["query_start_loc"] = changed
                out = sampling.rejection_sample(**inputs, return_logprobs=True)
            lengths = changed.diff()
            for b in (entry - 1, entry):
                if b == B:
                    continue
                inside = 0 <= changed[b] and changed[b + 1] <= N
                if lengths[b] == 0:
                    assert out.status[b] == 0 and out.num_emitted[b] == 0
                elif not (inside and 1 <= lengths[b] <= K + 1):
                    assert_invalid(out, b)
                else:
                    assert out.status[b] == 0 and out.num_emitted[b] >= 1
            assert_others(out, want, [entry - 1, entry])


def test_query_start_loc_of_64_bits():
    inputs = good()
    inputs["query_start_loc"] = inputs["query_start_loc"].long()
    inputs["query_start_loc"][VICTIM + 1] = 2**62
    inputs["query_start_loc"][VICTIM] = -(2**62)
    with emulated.operators(level=emulated.FULL):
        out = sampling.rejection_sample(**inputs, return_logprobs=True)
    for b in (VICTIM - 1, VICTIM, VICTIM + 1):
        assert_invalid(out, b)


@pytest.mark.parametrize("filters", [False, True])
@pytest.mark.parametrize("method", [*METHODS, "greedy"])
def test_br024_unused_requests_of_a_graph(method, filters):
    """Slots without rows, the last entry of query_start_loc repeated, and padding rows."""
    for seed, counts in enumerate(STEPS):
        inputs, live = step_inputs(seed, counts, filters), len(counts)
        options = {"method": method, "return_logprobs": True}
        want = sampling.rejection_sample(**live_part(inputs, live), **options)
        with emulated.operators(warp_size=(32, 64)[seed % 2], seed=seed):
            out = sampling.rejection_sample(**inputs, **options)
        assert same([x[:live] for x in out], want), counts
        assert same(out, sampling.rejection_sample(**inputs, **options))
        assert (out.num_emitted[live:] == 0).all() and (out.num_accepted[live:] == 0).all()
        assert (out.token_ids[live:] == -1).all() and (out.last_token[live:] == -1).all()
        assert (out.status[live:] == 0).all() and (out.logprobs[live:] == 0).all()


@pytest.mark.parametrize(("name", "value"), [x for x in WRONG_VALUES if "draft" not in x[0]])
def test_rows_with_values_out_of_range(name, value):
    inputs = {
        "logits": good()["target_logits"], "temperature": torch.full((N,), 0.9),
    }  # fmt: skip
    if name != "temperature":
        inputs |= {"top_p": torch.full((N,), 0.9), "min_p": torch.full((N,), 0.01)}
    draws = {"seeds": torch.arange(N), "positions": torch.arange(N)}
    want, probs = sampling.sample(**inputs, **draws), sampling.target_probs(**inputs)
    inputs[name][[0, 4]] = value
    with emulated.operators(level=emulated.FULL):
        got, got_probs = sampling.sample(**inputs, **draws), sampling.target_probs(**inputs)
    kept = [i for i in range(N) if i not in (0, 4)]
    assert bits_equal(got.ids[kept], want.ids[kept])
    assert bits_equal(got.logprobs[kept], want.logprobs[kept])
    assert bits_equal(got_probs[kept], probs[kept])
    assert got.ids[[0, 4]].tolist() == [-1, -1]
    nan = 0x7FC00000
    assert (got.logprobs.view(torch.int32)[[0, 4]] == nan).all()
    assert (got_probs.view(torch.int32)[[0, 4]] == nan).all()


# ---- the launch path itself ---------------------------------------------------------------------


def test_sizes_past_the_limits_are_refused():
    one = torch.zeros(1, dtype=torch.int64)
    with emulated.operators():
        with pytest.raises(RuntimeError, match=r"target_probs: logits: .* at most V on a GPU"):
            sampling.target_probs(torch.zeros(1, 1024 * 4096 + 1))
        with pytest.raises(RuntimeError, match=r"draft_token_ids: .* at most K on a GPU=256"):
            sampling.rejection_sample(
                torch.zeros(1, 4), torch.zeros(1, 257, dtype=torch.int64), temperature=1.0,
                query_start_loc=torch.tensor([0, 1]), seeds=one, positions=one,
            )  # fmt: skip


@pytest.mark.slow
def test_more_blocks_than_a_grid_has_are_refused():
    rows, vocab = 16384, 1024 * 4096
    index = torch.zeros(rows, dtype=torch.int64)
    with emulated.operators(), pytest.raises(RuntimeError, match="sample: logits: .* tiles"):
        sampling.sample(torch.zeros(1, vocab).expand(rows, vocab), seeds=index, positions=index)


def test_shapes_and_dtypes_are_refused_as_on_the_cpu():
    for name, value in [
        ("temperature", torch.ones(B + 1)), ("seeds", torch.zeros(B)),
        ("target_logits", torch.zeros(N)), ("query_start_loc", torch.zeros(B)),
        ("draft_logits", torch.zeros(B, K, V + 1)),
    ]:  # fmt: skip
        messages = []
        for settings in (None, {}):
            with pytest.raises(RuntimeError) as error:
                if settings is None:
                    sampling.rejection_sample(**{**good(), name: value})
                else:
                    with emulated.operators(**settings):
                        sampling.rejection_sample(**{**good(), name: value})
            messages.append(str(error.value))
        assert messages[0] == messages[1] and name in messages[0]


def test_largest_number_of_drafts():
    width = 256
    generator = torch.Generator().manual_seed(2)
    target, _, _ = random_batch(generator, [width], 16, width)
    ids = target[:width].argmax(1)[None]
    options = {
        "query_start_loc": starts([width]), "temperature": 0.05, "seeds": 1, "positions": 0,
        "return_logprobs": True,
    }  # fmt: skip
    want = sampling.rejection_sample(target, ids, **options)
    with emulated.operators():
        got = sampling.rejection_sample(target, ids, **options)
    assert want.num_accepted > 100
    assert all(bits_equal(x, y) for x, y in zip(got, want, strict=True))


@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES)
def test_empty_calls_launch_nothing_wrong(warp_size):
    with emulated.operators(warp_size=warp_size, level=emulated.FULL):
        assert sampling.target_probs(torch.zeros(0, 5)).shape == (0, 5)
        none = torch.zeros(0, dtype=torch.int64)
        assert sampling.sample(torch.zeros(0, 5), seeds=none, positions=none).ids.shape == (0,)
        for width in (0, 3):
            out = sampling.rejection_sample(
                torch.zeros(2, 5), torch.zeros(0, width, dtype=torch.int64), temperature=1.0,
                query_start_loc=torch.zeros(1, dtype=torch.int32), seeds=none, positions=none,
            )  # fmt: skip
            assert out.token_ids.shape == (0, width + 1)
