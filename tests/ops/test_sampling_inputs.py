"""What the operators refuse, what they leave alone, what they fill."""

import pytest
import torch
from kit import METHODS, bits_equal, random_batch, same, starts, verify

from dspark_ext import sampling

B, K, V = 3, 2, 40
N = B * (K + 1)


def good() -> dict:
    generator = torch.Generator().manual_seed(4)
    target, ids, draft = random_batch(generator, [K] * B, V, K)
    return {
        "target_logits": target,
        "draft_token_ids": ids,
        "draft_logits": draft,
        "query_start_loc": starts([K] * B),
        "temperature": torch.ones(B),
        "draft_temperature": torch.ones(B),
        "top_k": torch.zeros(B, dtype=torch.int32),
        "top_p": torch.ones(B),
        "min_p": torch.zeros(B),
        "seeds": torch.arange(B),
        "positions": torch.arange(B),
        "uniforms": torch.full((B, K + 1), 0.5, dtype=torch.float64),
    }


def int32(*values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


HOSTILE = {
    # argument: [values that must be refused]
    "target_logits": [
        torch.zeros(N), torch.zeros(N, V, 1), torch.zeros(N, V, dtype=torch.float64),
        torch.zeros(N, V, dtype=torch.int32), torch.zeros(N, 0), torch.zeros(N - 1, V),
        torch.zeros(N, V - 1),
    ],
    "draft_token_ids": [
        torch.zeros(B), torch.zeros(B, K), torch.zeros(B, dtype=torch.int64),
        torch.zeros(B + 1, K, dtype=torch.int64), torch.zeros(B, K, 1, dtype=torch.int64),
        torch.zeros(B, K - 1, dtype=torch.int64), torch.zeros(B, K, dtype=torch.int16),
    ],
    "draft_logits": [
        torch.zeros(B, K), torch.zeros(B, K - 1, V), torch.zeros(B - 1, K, V),
        torch.zeros(B, K, V + 1), torch.zeros(B, K, 0), torch.zeros(B, K, V, dtype=torch.float64),
        torch.zeros(B, K, V, dtype=torch.int64),
    ],
    "query_start_loc": [
        torch.zeros(B + 1), int32(0, 3, 6), int32(0, 3, 6, 9, 12),
        int32(1, 3, 6, 9), int32(0, 3, 3, 9), int32(0, 6, 3, 9), int32(0, 3, 6, 10),
        int32(0, 1, 5, 8), int32(0, 3, 6, -9), int32(-3, 0, 3, 6), int32(0, 3, 6, 2**31 - 1),
    ],
    "temperature": [
        torch.ones(B + 1), torch.ones(B, 1), torch.tensor([1, -1.0, 1]), -0.5, float("nan"),
        torch.tensor([1, float("nan"), 1]), torch.tensor([1, float("inf"), 1]),
    ],
    "draft_temperature": [torch.ones(B + 1), torch.tensor([1, -1.0, 1]), float("nan")],
    "top_k": [torch.zeros(B + 1, dtype=torch.int32), torch.zeros(B)],
    "top_p": [torch.ones(B - 1), torch.ones(B, 1)],
    "min_p": [torch.ones(2 * B), torch.ones(1, B)],
    "seeds": [torch.zeros(B), torch.zeros(B + 1, dtype=torch.int64)],
    "positions": [torch.zeros(B), torch.zeros(B - 1, dtype=torch.int64)],
    "uniforms": [
        torch.zeros(B, K, dtype=torch.float64), torch.zeros(B, K + 2, dtype=torch.float64),
        torch.zeros(B, K + 1), torch.zeros(B * (K + 1), dtype=torch.float64),
    ],
    "synthetic_acceptance_rates": [
        torch.zeros(K - 1), torch.zeros(B, K), torch.zeros(K, dtype=torch.float64),
    ],
    "method": ["", "blocks", "BLOCK", "none"],
}  # fmt: skip


def describe(value) -> str:
    if isinstance(value, torch.Tensor):
        shape = "x".join(map(str, value.shape))
        text = f"{str(value.dtype)[6:]}[{shape}]"
        small = not value.is_meta and 0 < value.numel() <= 5
        return text + (f"={value.tolist()}" if small else "")
    return repr(value)


CASES = [
    pytest.param(argument, value, id=f"{argument}={describe(value)}")
    for argument, values in HOSTILE.items()
    for value in values
]


@pytest.mark.parametrize(("argument", "value"), CASES)
def test_rejection_sample_refuses(argument, value):
    inputs = good()
    inputs[argument] = value
    if argument == "synthetic_acceptance_rates":
        inputs["method"] = "synthetic"
    names = [argument]
    if argument == "target_logits":  # a wrong size of one argument may be blamed on its partner
        names += ["draft_logits", "query_start_loc"]
    if argument == "draft_token_ids":
        names += ["query_start_loc", "draft_logits"]
    if argument == "query_start_loc":
        names += ["target_logits", "draft_token_ids"]
    with pytest.raises((RuntimeError, ValueError, TypeError, NotImplementedError)) as error:
        sampling.rejection_sample(**inputs)
    message = str(error.value)
    assert any(name in message for name in names), message
    assert "rejection_sample" in message or "dspark_ext" in message, message


def test_rejection_sample_refuses_contradictions():
    inputs = good()
    with pytest.raises((RuntimeError, ValueError), match="draft_probs"):
        sampling.rejection_sample(**inputs, draft_probs=inputs["draft_logits"].softmax(-1))
    with pytest.raises((RuntimeError, ValueError), match="synthetic_acceptance_rates"):
        sampling.rejection_sample(**inputs, method="synthetic")


ROW_HOSTILE = [
    ("logits", torch.zeros(N)), ("logits", torch.zeros(N, V, dtype=torch.float64)),
    ("logits", torch.zeros(N, 0)), ("temperature", torch.ones(N + 1)),
    ("temperature", torch.full((N,), -1.0)), ("top_k", torch.zeros(N + 1, dtype=torch.int32)),
    ("top_p", torch.ones(N + 2)), ("min_p", torch.ones(1, N)),
]  # fmt: skip
DRAW_HOSTILE = [
    ("seeds", torch.zeros(N)), ("seeds", torch.zeros(N + 1, dtype=torch.int64)),
    ("positions", torch.zeros(N - 1, dtype=torch.int64)), ("stream", "noise"),
    ("uniforms", torch.zeros(N)), ("uniforms", torch.zeros(N + 1, dtype=torch.float64)),
]  # fmt: skip


@pytest.mark.parametrize(("argument", "value"), [*ROW_HOSTILE, *DRAW_HOSTILE], ids=describe)
def test_sample_refuses(argument, value):
    inputs = {
        "logits": torch.zeros(N, V), "temperature": 1.0, "seeds": torch.arange(N),
        "positions": torch.arange(N),
    }  # fmt: skip
    with pytest.raises((RuntimeError, ValueError, TypeError), match=argument):
        sampling.sample(**{**inputs, argument: value})


@pytest.mark.parametrize(("argument", "value"), ROW_HOSTILE, ids=describe)
def test_target_probs_refuses(argument, value):
    with pytest.raises((RuntimeError, ValueError, TypeError), match=argument):
        sampling.target_probs(**{"logits": torch.zeros(N, V), "temperature": 1.0, argument: value})


@pytest.mark.parametrize("length", [-1.0, 0.5, 4.5, float("nan"), float("inf")])
def test_synthetic_rates_refuse_impossible_lengths(length):
    with pytest.raises(ValueError, match="length"):
        sampling.synthetic_acceptance_rates(length, 3)


@pytest.mark.parametrize(
    ("length", "num_drafts", "rates"),
    [
        (3.5, 5, [1, 1, 0.5, 0, 0]), (1.0, 3, [0, 0, 0]), (4.0, 3, [1, 1, 1]),
        (3.51, 5, [1, 1, 0.51, 0, 0]), (1.25, 2, [0.25, 0]),
    ],
)  # fmt: skip
def test_synthetic_rates(length, num_drafts, rates):
    got = torch.as_tensor(sampling.synthetic_acceptance_rates(length, num_drafts)).double()
    torch.testing.assert_close(got, torch.tensor(rates, dtype=torch.float64), atol=1e-6, rtol=0)


def test_synthetic_mean_length():
    rounds = 20_000
    rates = sampling.synthetic_acceptance_rates(3.51, 5)
    out = verify(
        torch.zeros(6, 8).repeat(rounds, 1), torch.zeros(rounds, 5, dtype=torch.int64),
        method="synthetic", synthetic_acceptance_rates=rates,
    )  # fmt: skip
    assert abs(out.num_emitted.double().mean() - 3.51) < 5 * 0.5 / rounds**0.5


# --- empty batches -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [*METHODS, "greedy"])
def test_empty_batch(method):
    out = verify(
        torch.zeros(0, V), torch.zeros(0, K, dtype=torch.int64), torch.zeros(0, K, V),
        method=method, return_logprobs=True,
    )  # fmt: skip
    assert [tuple(x.shape) for x in out] == [(0, K + 1), (0,), (0,), (0,), (0,), (0, K + 1)]


def test_empty_batch_with_padding_rows():
    out = verify(torch.full((4, V), float("nan")), torch.zeros(0, K, dtype=torch.int64))
    assert out.token_ids.shape == (0, K + 1)


@pytest.mark.parametrize("method", [*METHODS, "greedy"])
def test_no_drafts(method):
    rows = good()["target_logits"][:B]
    out = verify(rows, torch.zeros(B, 0, dtype=torch.int64), method=method, return_logprobs=True)
    assert out.token_ids.shape == (B, 1) and (out.num_emitted == 1).all()
    narrow = verify(rows, torch.zeros(B, 0, dtype=torch.int64), torch.zeros(B, 0, V), method=method)
    assert torch.equal(out.token_ids, narrow.token_ids)


def test_no_rows():
    empty = torch.zeros(0, dtype=torch.int64)
    assert sampling.target_probs(torch.zeros(0, V), temperature=1.0).shape == (0, V)
    ids, logprobs = sampling.sample(
        torch.zeros(0, V), temperature=1.0, seeds=empty, positions=empty
    )
    assert ids.shape == (0,) and logprobs.shape == (0,)


# --- what is read and written ---------------------------------------------------------------------


def ops_with_inputs():
    inputs = good()
    yield "rejection_sample", sampling.rejection_sample, {**inputs, "return_logprobs": True}
    probs = {**inputs, "draft_probs": inputs["draft_logits"].softmax(-1), "draft_logits": None}
    yield "rejection_sample probs", sampling.rejection_sample, probs
    block = {k: v for k, v in inputs.items() if k not in ("seeds", "positions", "uniforms")}
    yield "block_acceptance", sampling.block_acceptance, block
    rows = {"logits": inputs["target_logits"], "top_p": torch.full((N,), 0.9)}
    rows["temperature"] = torch.ones(N)
    yield "target_probs", sampling.target_probs, rows
    yield (
        "sample",
        sampling.sample,
        {**rows, "seeds": torch.arange(N), "positions": torch.arange(N)},
    )


@pytest.mark.parametrize(
    ("op", "inputs"), [x[1:] for x in ops_with_inputs()], ids=[x[0] for x in ops_with_inputs()]
)
def test_br019_inputs_are_left_alone(op, inputs):
    before = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in inputs.items()}
    first = op(**inputs)
    for key, value in before.items():
        if isinstance(value, torch.Tensor):
            assert bits_equal(inputs[key], value), key
    second = op(**inputs)
    pairs = zip(first, second) if isinstance(first, tuple) else [(first, second)]
    for x, y in pairs:
        assert (x is None and y is None) or bits_equal(x, y)


def poisoned(like: torch.Tensor) -> torch.Tensor:
    """Every byte 0x7f."""
    out = torch.empty_like(like)
    out.view(torch.uint8).fill_(0x7F)
    return out


def rejection_arguments(inputs: dict) -> list:
    names = [
        "target_logits", "draft_token_ids", "draft_logits", "draft_probs", "query_start_loc",
        "method", "temperature", "draft_temperature", "top_k", "top_p", "min_p", "seeds",
        "positions", "synthetic_acceptance_rates", "uniforms",
    ]  # fmt: skip
    return [*(inputs.get(key) for key in names), inputs.get("draft_statistics", [])]


@pytest.mark.parametrize("method", [*METHODS, "greedy"])
def test_br018_out_variants_fill_everything(method):
    inputs = {**good(), "method": method}
    inputs["draft_token_ids"][1, 0] = -1
    want = sampling.rejection_sample(**inputs, return_logprobs=True)
    outs = [poisoned(x) for x in want]
    arguments = rejection_arguments(inputs)
    keys = want._fields
    torch.ops.dspark_ext.rejection_sample.out(*arguments, **dict(zip(keys, outs, strict=True)))
    assert same(want, outs)
    assert (want.token_ids[1, 1:] == -1).all()
    short = dict(zip(keys, [poisoned(x) for x in want], strict=True))
    short["logprobs"] = None
    torch.ops.dspark_ext.rejection_sample.out(*arguments, **short)
    assert same(want[:5], [short[key] for key in keys[:5]])


def test_br018_row_out_variants_fill_everything():
    rows, temperature = good()["target_logits"], torch.ones(N)
    want = sampling.target_probs(rows, temperature=1.0)
    probs = poisoned(want)
    torch.ops.dspark_ext.target_probs.out(rows, temperature, None, None, None, probs=probs)
    assert bits_equal(want, probs)
    seeds = torch.arange(N)
    ids, logprobs = sampling.sample(rows, temperature=1.0, seeds=seeds, positions=seeds)
    outs = {"ids": poisoned(ids), "logprobs": poisoned(logprobs)}
    torch.ops.dspark_ext.sample.out(
        rows, temperature, None, None, None, seeds, seeds, "resample", None, **outs
    )
    assert bits_equal(ids, outs["ids"]) and bits_equal(logprobs, outs["logprobs"])


@pytest.mark.parametrize("field", ["token_ids", "num_accepted", "status", "logprobs"])
def test_out_variant_refuses_a_wrong_buffer(field):
    inputs = {**good(), "method": "block"}
    want = sampling.rejection_sample(**inputs, return_logprobs=True)
    for wrong in (
        lambda x: x[..., :1].contiguous() if x.dim() > 1 else x[:1],
        lambda x: x.double(),
    ):
        outs = {key: poisoned(x) for key, x in zip(want._fields, want, strict=True)}
        outs[field] = wrong(outs[field])
        with pytest.raises(RuntimeError, match=field):
            torch.ops.dspark_ext.rejection_sample.out(*rejection_arguments(inputs), **outs)


def test_dtypes_of_the_output():
    out = sampling.rejection_sample(**good(), return_logprobs=True)
    dtypes = [torch.int64, torch.int32, torch.int32, torch.int64, torch.int32, torch.float32]
    assert [x.dtype for x in out] == dtypes
    assert sampling.rejection_sample(**good()).logprobs is None


def test_int32_draft_ids():
    inputs = good()
    want = sampling.rejection_sample(**inputs)
    inputs["draft_token_ids"] = inputs["draft_token_ids"].int()
    assert same(want, sampling.rejection_sample(**inputs))


def test_int64_query_start_loc():
    inputs = good()
    want = sampling.rejection_sample(**inputs)
    inputs["query_start_loc"] = inputs["query_start_loc"].long()
    assert same(want, sampling.rejection_sample(**inputs))


@pytest.mark.parametrize("method", METHODS)
def test_zero_residual_mass_uses_the_target(method):
    """p == q and a uniform of 1, which no threshold exceeds: the rejection leaves nothing."""
    rows = torch.tensor([[0.2, 0.3, 0.5]]).log().repeat(2 * 9, 1)
    draft, ids = rows[:9, None].clone(), torch.full((9, 1), 2)
    uniforms = torch.tensor([[1.0, u] for u in torch.linspace(0.05, 0.95, 9)], dtype=torch.float64)
    out = verify(rows, ids, draft, method=method, uniforms=uniforms)
    assert (out.num_accepted == 0).all() and (out.status == 8).all()
    drawn = sampling.sample(
        rows[:9], temperature=1.0, seeds=0, positions=0, uniforms=uniforms[:, 1].contiguous()
    ).ids
    assert torch.equal(out.last_token, drawn) and len(drawn.unique()) == 3
