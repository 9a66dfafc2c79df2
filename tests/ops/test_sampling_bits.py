"""The operators against the numpy oracle of docs/numerics.md, bit for bit."""

import numpy as np
import pytest
import torch
from kit import FLOATS, bits_equal, name, starts, verify

from dspark_ext import sampling
from dspark_ext.reference import exact, numerics

TILE_SIZES = [1, 2, 8, 255, 256, 257, 1000, 4095, 4096, 4097, 8191, 8192, 8193, 12289]
FILTERS = {
    "none": {},
    "top_k=1": {"top_k": 1},
    "top_k=7": {"top_k": 7},
    "top_p=0": {"top_p": 0.0},
    "top_p=.5": {"top_p": 0.5},
    "top_p=.999": {"top_p": 0.999},
    "min_p=.05": {"min_p": 0.05},
    "min_p=1": {"min_p": 1.0},
    "all": {"top_k": 50, "top_p": 0.9, "min_p": 0.02},
}
NEUTRAL = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


def awkward_row(rng, vocab: int, kind: str) -> np.ndarray:
    row = (rng.standard_normal(vocab) * 3).astype(np.float32)
    if kind == "ties":
        row = np.round(row)
    elif kind == "masked":
        row[rng.random(vocab) < 0.7] = -np.inf
        row[rng.integers(vocab)] = 1
    elif kind == "wide":
        row *= 40
    elif kind == "flat":
        row[:] = 0.5
    elif kind == "zeros":
        row = np.copysign(np.zeros(vocab, np.float32), row)
    elif kind == "magnitudes":  # denormals to the largest
        row = (rng.standard_normal(vocab) * 10.0 ** rng.integers(-44, 38, vocab)).astype(np.float32)
    elif kind == "ladder":
        steps = np.sort(rng.geometric(0.1, vocab)) * rng.choice([-1e-40, -0.3, -1e30])
        row = rng.permutation(steps).astype(np.float32)
    elif kind == "infinite":
        row[rng.integers(vocab)] = np.inf
        row[rng.integers(vocab)] = np.nan
    return row


KINDS = [
    "normal", "ties", "masked", "wide", "flat", "zeros", "magnitudes", "ladder", "infinite",
]  # fmt: skip


def law(row: torch.Tensor, temperature: float, filters: dict) -> numerics.Law:
    return numerics.filter_cut(
        numerics.row_statistics(row.float().numpy(), temperature), **(NEUTRAL | filters)
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS.keys())
def test_target_probs_bits(filters, kind, rng):
    for vocab, dtype in [(8, torch.bfloat16), (257, torch.float16), (4097, torch.float32)]:
        for temperature in (0.0, 0.3, 1.0, 7.0):
            row = torch.tensor(awkward_row(rng, vocab, kind)).to(dtype)
            got = sampling.target_probs(row[None], temperature=temperature, **filters)[0]
            want = law(row, temperature, filters).probabilities().astype(np.float32)
            assert bits_equal(got, torch.tensor(want)), (vocab, temperature)


@pytest.mark.parametrize("vocab", TILE_SIZES, ids=lambda v: f"V={v}")
@pytest.mark.parametrize("dtype", FLOATS, ids=name)
def test_target_probs_bits_over_tiles(dtype, vocab, rng):
    for kind in ("normal", "wide"):
        row = torch.tensor(awkward_row(rng, vocab, kind)).to(dtype)
        got = sampling.target_probs(row[None], temperature=0.8)[0]
        assert bits_equal(got, torch.tensor(law(row, 0.8, {}).probabilities().astype(np.float32)))


@pytest.mark.parametrize("temperature", [1e-38, 1e-30, 1e-3, 1e3, 1e30, 3e38], ids=str)
def test_extreme_temperatures_bits(temperature, rng):
    row = torch.tensor(awkward_row(rng, 300, "masked"))
    row[7] = row[9] = row.max() + 1
    row[11] = row[7].nextafter(torch.tensor(-9.0))
    got = sampling.target_probs(row[None], temperature=temperature)[0]
    assert bits_equal(
        got, torch.tensor(law(row, temperature, {}).probabilities().astype(np.float32))
    )


@pytest.mark.parametrize("kind", KINDS)
def test_random_filters_bits(kind, rng):
    """Cuts wherever they may fall: any k, any p, any threshold, alone and together."""
    for _ in range(60):
        vocab = int(rng.choice([2, 5, 17, 300, 5000], p=[0.1, 0.2, 0.3, 0.35, 0.05]))
        row = torch.tensor(awkward_row(rng, vocab, kind))
        filters = {
            "top_k": int(rng.choice([0, 1, rng.integers(1, vocab + 2)])),
            "top_p": float(np.float32(rng.choice([1, 1e-7, 0.5, 0.9999999, rng.random()]))),
            "min_p": float(np.float32(rng.choice([0, 0, 1e-30, 0.999999, rng.random()]))),
        }
        temperature = float(rng.choice([1e-4, 0.5, 1.0, 30.0]))
        got = sampling.target_probs(row[None], temperature=temperature, **filters)[0]
        want = law(row, temperature, filters).probabilities().astype(np.float32)
        assert bits_equal(got, torch.tensor(want)), (vocab, temperature, filters)


UNIFORMS = [0.0, 2.0**-53, 1e-9, *np.linspace(0.001, 0.999, 23), 1 - 2.0**-53, 1.0]


@pytest.mark.parametrize("vocab", [2, 257, 4096, 4097, 12289], ids=lambda v: f"V={v}")
@pytest.mark.parametrize("filters", ["none", "top_p=.5", "all"])
def test_sample_bits(filters, vocab, rng):
    for kind in KINDS:
        row = torch.tensor(awkward_row(rng, vocab, kind))
        expected = law(row, 0.9, FILTERS[filters])
        ids = [numerics.draw(expected.weight, expected.tile_totals(), u) for u in UNIFORMS]
        n = len(UNIFORMS)
        got, logprobs = sampling.sample(
            row.expand(n, vocab),
            temperature=0.9,
            seeds=torch.zeros(n, dtype=torch.int64),
            positions=torch.zeros(n, dtype=torch.int64),
            uniforms=torch.tensor(UNIFORMS, dtype=torch.float64),
            **FILTERS[filters],
        )
        assert got.tolist() == ids, kind
        want = np.array([expected.log_probability(i) for i in ids], np.float32)
        assert bits_equal(logprobs, torch.tensor(want)), kind


@pytest.mark.parametrize("stream", ["draft", "resample"])
def test_sample_uses_the_documented_stream(stream, rng):
    row = torch.tensor(awkward_row(rng, 257, "normal"))
    expected = law(row, 1.0, {})
    seeds = torch.tensor([0, 1, -1, 2**40 + 3, -(2**63)])
    positions = torch.tensor([0, 5, 2**33, 7, 2**62])
    got, _ = sampling.sample(
        row.expand(5, 257), temperature=1.0, seeds=seeds, positions=positions, stream=stream
    )
    uniforms = [
        numerics.uniform(s, p, stream)
        for s, p in zip(seeds.tolist(), positions.tolist(), strict=True)
    ]
    totals = expected.tile_totals()
    assert got.tolist() == [numerics.draw(expected.weight, totals, u) for u in uniforms]


def oracle_request(inputs: dict, b: int, method: str) -> exact.Outcome:
    """Request b of a batch in the oracle's form."""
    start, stop = inputs["query_start_loc"][b : b + 2].tolist()
    n = stop - start - 1
    rows = [row.float().numpy() for row in inputs["target_logits"][start:stop]]
    optional = {}
    for key in ("draft_logits", "draft_probs"):
        if inputs.get(key) is not None:
            optional[key] = [row.float().numpy() for row in inputs[key][b, :n]]
    for key in ("draft_temperature", "top_k", "top_p", "min_p"):
        if inputs.get(key) is not None:
            optional[key] = inputs[key][b].item()
    rates = inputs.get("synthetic_acceptance_rates")
    request = exact.Request(
        target_rows=rows,
        draft_token_ids=inputs["draft_token_ids"][b, :n].tolist(),
        temperature=inputs["temperature"][b].item(),
        seed=inputs["seeds"][b].item(),
        position=inputs["positions"][b].item(),
        rates=None if rates is None else rates.tolist(),
        **optional,
    )
    return exact.rejection_sample(request, method)


def make_inputs(rng, draft: str, vocab: int, dtype, batch: int, width: int) -> dict:
    """A ragged batch of awkward rows; drafts resemble the target so that some pass."""
    num_drafts = [int(n) for n in rng.integers(0, width + 1, batch)]
    rows, ids = [], rng.integers(0, vocab, (batch, width))
    draft_rows = np.zeros((batch, width, vocab), np.float32)
    for b, n in enumerate(num_drafts):
        for i in range(n + 1):
            row = awkward_row(rng, vocab, KINDS[rng.integers(5)])
            rows.append(row)
            if i == n:
                continue
            noise = rng.standard_normal(vocab).astype(np.float32)
            draft_rows[b, i] = np.where(np.isfinite(row), row, 0) + noise
            best = np.argmax(np.nan_to_num(row, nan=-np.inf, posinf=1e9, neginf=-1e9))
            likely = np.argsort(-draft_rows[b, i])[: max(1, vocab // 50)]
            ids[b, i] = best if rng.random() < 0.7 else rng.choice(likely)
    inputs = {
        "target_logits": torch.tensor(np.array(rows)).to(dtype),
        "draft_token_ids": torch.tensor(ids),
        "query_start_loc": starts(num_drafts),
        "temperature": torch.tensor(rng.choice([0.0, 0.6, 1.0, 1.7], batch), dtype=torch.float32),
        "top_k": torch.tensor(rng.choice([0, 1, 40], batch, p=[0.6, 0.1, 0.3])).int(),
        "top_p": torch.tensor(rng.choice([1.0, 0.95, 0.5], batch)).float(),
        "min_p": torch.tensor(rng.choice([0.0, 0.01], batch)).float(),
        "seeds": torch.tensor(rng.integers(-(2**63), 2**63, batch)),
        "positions": torch.tensor(rng.integers(0, 2**40, batch)),
    }
    draft_rows = torch.tensor(draft_rows)
    if draft == "logits":
        inputs["draft_logits"] = draft_rows.to(dtype)
        inputs["draft_temperature"] = torch.tensor(rng.choice([0.0, 0.8, 1.0], batch)).float()
    elif draft == "probs":
        inputs["draft_probs"] = draft_rows.softmax(-1)
    elif draft == "narrow":
        inputs["draft_logits"] = draft_rows[..., : max(1, vocab * 2 // 3)].to(dtype)
    return inputs


@pytest.mark.parametrize("vocab", [3, 300, 4097, 8192], ids=lambda v: f"V={v}")
@pytest.mark.parametrize("draft", ["none", "logits", "probs", "narrow"])
@pytest.mark.parametrize("method", ["block", "token", "greedy", "synthetic"])
def test_rejection_sample_bits(method, draft, vocab, rng):
    dtype = FLOATS[(vocab + len(draft)) % 3]
    inputs = make_inputs(rng, draft, vocab, dtype, batch=24 if vocab <= 300 else 12, width=4)
    if method == "synthetic":
        inputs["synthetic_acceptance_rates"] = sampling.synthetic_acceptance_rates(3.4, 4)
    out = verify(
        inputs["target_logits"],
        inputs["draft_token_ids"],
        method=method,
        return_logprobs=True,
        **{k: v for k, v in inputs.items() if k not in ("target_logits", "draft_token_ids")},
    )
    accepted = 0
    for b in range(len(inputs["seeds"])):
        want = oracle_request(inputs, b, method)
        n = len(want.token_ids)
        assert out.token_ids[b].tolist() == want.token_ids + [-1] * (5 - n), b
        assert out.num_emitted[b] == n and out.num_accepted[b] == n - 1
        assert out.last_token[b] == want.token_ids[-1]
        assert out.status[b] == want.status, b
        logprobs = torch.tensor(np.array(want.logprobs + [np.float32(0)] * (5 - n)))
        assert bits_equal(out.logprobs[b], logprobs), b
        accepted += n - 1
    assert accepted > 0


@pytest.mark.parametrize("draft", ["none", "logits", "probs", "narrow"])
def test_block_acceptance_bits(draft, rng):
    for vocab in (3, 300, 4097):
        inputs = make_inputs(rng, draft, vocab, torch.float32, batch=6, width=4)
        inputs["temperature"] = torch.full((6,), 0.9)
        for key in ("seeds", "positions"):
            del inputs[key]
        out = sampling.block_acceptance(**inputs)
        for b in range(6):
            want = oracle_block(inputs, b)
            for got, values in zip(out, want, strict=True):
                assert got[b].tolist() == values + [0.0] * (4 - len(values)), (vocab, b)


def oracle_block(inputs: dict, b: int):
    start, stop = inputs["query_start_loc"][b : b + 2].tolist()
    filters = {key: inputs[key][b].item() for key in ("top_k", "top_p", "min_p")}
    laws = [law(row, 0.9, filters) for row in inputs["target_logits"][start:stop]]
    request = exact.Request(
        target_rows=[row.x for row in laws],
        draft_token_ids=inputs["draft_token_ids"][b, : stop - start - 1].tolist(),
        temperature=inputs["temperature"][b].item(),
    )
    for key in ("draft_logits", "draft_probs"):
        if key in inputs:
            setattr(request, key, [row.float().numpy() for row in inputs[key][b]])
    if "draft_temperature" in inputs:
        request.draft_temperature = inputs["draft_temperature"][b].item()
    proposals, _ = exact.collect_proposals(request, laws, uses_q=True)
    return exact.block_accept(laws, proposals)
