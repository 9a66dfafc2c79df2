"""The bias product by matrix units, `exact=False`: near the exact one, the same bits whatever the
batch, the tiling and the schedule; and what was drawn is drawn from the logits kept."""

import draft_sweep as sweep
import emulated
import numpy as np
import pytest
import torch
from kit import bits_equal

from dspark_ext.reference import numerics

OUTPUTS = (
    *("token_ids", "logits", "prev_embed"),
    *("row_temperature", "tile_max", "tile_sum", "tile_nan"),
)
WITH_UNIT = (32, 64)
HALVES = (torch.bfloat16, torch.float16)
UNIT_ROUNDOFF = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}


def sample(case: dict, *, warp_size=32, seed=0, level=emulated.FULL, **changes) -> dict:
    case = {**case, "exact": False, **changes}
    with emulated.operators(warp_size=warp_size, seed=seed, level=level):
        return dict(zip(OUTPUTS, torch.ops.dspark_simt.markov_sample(*case.values()), strict=True))


def uses_matrix_units(case: dict, warp_size: int) -> bool:
    counted = emulated.counters(
        lambda: torch.ops.dspark_simt.markov_sample(*{**case, "exact": False}.values()),
        warp_size=warp_size,
    )
    return counted["kernels"]["markov_step"]["matrix_instructions"] > 0


def assert_same(one: dict, two: dict) -> None:
    for name in OUTPUTS:
        assert bits_equal(one[name].flatten(), two[name].flatten()), name


def rows_of(case: dict, chosen) -> dict:
    """The call for some of the requests."""
    per_request = ("base_logits", "anchor", "hidden", "temperature", "seeds", "positions")
    return {
        name: value[chosen].contiguous() if name in per_request and value is not None else value
        for name, value in case.items()
    }


# ---- near the exact product ---------------------------------------------------------------------


def vanilla_inputs(case, b, tokens):
    previous = [int(case["anchor"][b]), *tokens[:-1].tolist()]
    return [case["w1"][token].float() for token in previous]


def check_near_exact(case: dict, got: dict) -> None:
    """|logit - (base + w2 u)| <= r 2^-22 sum |w u| for the sums, half a unit of w2's type in each
    entry of u where u has to be rounded, half a unit of the logits' type for the logit."""
    w2 = case["w2"].double().numpy()
    rounds_input = case["w1"].dtype != case["w2"].dtype
    of_input = UNIT_ROUNDOFF[case["w2"].dtype] if rounds_input else 0.0
    of_logit = UNIT_ROUNDOFF[case["base_logits"].dtype]
    for b in range(len(case["anchor"])):
        for k, u in enumerate(vanilla_inputs(case, b, got["token_ids"][b])):
            u = u.double().numpy()
            exact = case["base_logits"][b, k].double().numpy() + w2 @ u
            magnitude = np.abs(w2) @ np.abs(u)
            bound = magnitude * (of_input + case["w2"].shape[1] * 2.0**-22)
            found = got["logits"][b, k].double().numpy()
            bound = bound + of_logit * (np.abs(exact) + bound) + 2.0**-24
            assert (np.abs(found - exact) <= bound).all(), (b, k, np.abs(found - exact).max())


@pytest.mark.parametrize("warp_size", WITH_UNIT)
@pytest.mark.parametrize("weights", HALVES, ids=str)
@pytest.mark.parametrize("w1_type", [None, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rank", [8, 32, 40, 256, 264, 520])
def test_near_the_exact_product(rank, w1_type, weights, warp_size):
    """Part of a step, whole steps, several slices of depth; u rounded or taken as it is."""
    case = sweep.markov_case(
        rank, batch=3, drafts=2, vocab=150, rank=rank, weights=weights, w1_type=w1_type,
        dtype=sweep.DTYPES[rank % 3],
    )  # fmt: skip
    assert uses_matrix_units(case, warp_size)
    check_near_exact(case, sample(case, warp_size=warp_size, seed=rank % 3))


@pytest.mark.parametrize("warp_size", WITH_UNIT)
@pytest.mark.parametrize("weights", HALVES, ids=str)
@pytest.mark.parametrize("kind", sweep.HEADS)
def test_every_head_is_near_its_exact_path(kind, weights, warp_size):
    """First logits: u is the same there in both paths, which differ by their roundings only."""
    case = sweep.markov_case(
        7, kind, batch=5, drafts=1, vocab=200, rank=64, weights=weights, dtype=torch.float32
    )
    got = sample(case, warp_size=warp_size)["logits"]
    want = torch.ops.dspark_ext.markov_sample(*{**case, "exact": True}.values())[1]
    # |u| <= 1 for tanh; below 6 for embeddings of these cases; 64 products of numbers below 6
    magnitude = case["w2"].float().abs().sum(1) * (1.0 if kind == "rnn" else 6.0)
    bound = magnitude * (UNIT_ROUNDOFF[weights] + 64 * 2.0**-22) + 1e-5
    difference = (got - want).abs()
    assert (difference <= bound).all() and difference.max() > 0


# ---- the same bits ------------------------------------------------------------------------------


@pytest.mark.parametrize("warp_size", WITH_UNIT)
@pytest.mark.parametrize("weights", HALVES, ids=str)
@pytest.mark.parametrize("kind", sweep.HEADS)
def test_a_request_alone_and_in_any_batch(kind, weights, warp_size):
    """Groups of every number of column tiles, two groups, any place in them."""
    case = sweep.markov_case(
        3, kind, batch=70, drafts=2, vocab=300, rank=24, weights=weights, dtype=torch.bfloat16
    )
    whole = sample(case, warp_size=warp_size, level=emulated.BOUNDS)
    orders = [slice(0, n) for n in (1, 2, 8, 9, 16, 17, 33, 64, 65)]
    orders += [slice(69, 70), torch.arange(69, -1, -1), torch.arange(3, 70, 5)]
    for seed, chosen in enumerate(orders):
        got = sample(rows_of(case, chosen), warp_size=warp_size, seed=seed, level=emulated.BOUNDS)
        assert_same(got, {name: tensor[chosen] for name, tensor in whole.items()})


@pytest.mark.parametrize("warp_size", WITH_UNIT)
@pytest.mark.parametrize("seed", range(1, 7))
def test_any_schedule(seed, warp_size):
    case = sweep.markov_case(
        5, "gated", 9, 2, 600, 40, target=4200, weights=torch.bfloat16, dtype=torch.bfloat16
    )
    assert_same(sample(case, warp_size=warp_size, seed=seed), sample(case, warp_size=warp_size))


@pytest.mark.parametrize("warp_size", WITH_UNIT)
@pytest.mark.parametrize("rank", [256, 264, 512, 520, 1024])
def test_ranks_and_groups(rank, warp_size):
    """Groups of 64, 32 and 16 requests; each has the bits it has alone."""
    case = sweep.markov_case(
        rank, batch=34, drafts=1, vocab=40, rank=rank, weights=torch.bfloat16, dtype=torch.bfloat16
    )
    whole = sample(case, warp_size=warp_size)
    for b in (0, 15, 16, 31, 32, 33):
        got = sample(rows_of(case, slice(b, b + 1)), warp_size=warp_size)
        assert_same(got, {name: tensor[b : b + 1] for name, tensor in whole.items()})


@pytest.mark.parametrize("warp_size", WITH_UNIT)
@pytest.mark.parametrize("vocab", [1, 7, 8, 127, 128, 129, 1025])
def test_vocabularies_in_any_place(vocab, warp_size):
    """A row of w2 gives the bits it gives as another row of another vocabulary, and rows of logits
    that are not 16-byte aligned are written whole."""
    case = sweep.markov_case(
        vocab, batch=2, drafts=2, vocab=vocab, rank=16, weights=torch.float16, dtype=torch.float16,
        method="greedy",
    )  # fmt: skip
    got = sample(case, warp_size=warp_size)
    padded = dict(case)
    padding = torch.full((2, case["base_logits"].shape[1], 5), -float("inf"), dtype=torch.float16)
    padded["base_logits"] = torch.cat([padding, case["base_logits"]], 2)
    padded["w2"] = torch.cat([torch.zeros(5, 16, dtype=torch.float16), case["w2"]])
    padded["w1"] = torch.cat([torch.zeros(5, 16, dtype=torch.float16), case["w1"]])
    padded["anchor"] = case["anchor"] + 5
    padded["vocab_size"] = vocab + 5
    other = sample(padded, warp_size=warp_size)
    assert torch.equal(other["token_ids"], got["token_ids"] + 5)
    assert bits_equal(other["logits"][:, :, 5:].flatten(), got["logits"].flatten())


# ---- the logits kept are what was drawn from ----------------------------------------------------


@pytest.mark.parametrize("warp_size", WITH_UNIT)
@pytest.mark.parametrize("dtype", sweep.DTYPES, ids=str)
@pytest.mark.parametrize("kind", sweep.HEADS)
def test_ids_and_statistics_are_those_of_the_logits_kept(kind, dtype, warp_size):
    case = sweep.markov_case(
        11, kind, batch=6, drafts=3, vocab=700, rank=48, target=5000, weights=torch.bfloat16,
        dtype=dtype, extremes=True,
    )  # fmt: skip
    got = sample(case, warp_size=warp_size, seed=2)
    for b in range(6):
        heat = float(case["temperature"][b])
        for k in range(3):
            row = got["logits"][b, k].float().numpy()
            law = numerics.row_statistics(row, heat)
            u = numerics.uniform(int(case["seeds"][b]), int(case["positions"][b]) + k, "draft", k)
            drawn = 0 if law.is_empty else numerics.draw(law.weight, law.tile_totals(), u)
            assert int(got["token_ids"][b, k]) == drawn
            for t, tile in enumerate(numerics.tiles(row.size)):
                assert float(got["tile_max"][b, k, t]) == float(law.x[tile].max())
                assert bool(got["tile_nan"][b, k, t]) == bool(np.isnan(row[tile]).any())
                if heat > 0:
                    assert float(got["tile_sum"][b, k, t]) == float(
                        numerics.tile_sum(law.weight[tile])
                    )


# ---- who takes which path -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": torch.float32},
        {"rank": 20},
        {"rank": 1032},
        {"unaligned": True},
    ],
    ids=str,
)
def test_what_matrix_units_do_not_take_is_exact(changes):
    case = sweep.markov_case(1, **{"weights": torch.bfloat16, "rank": 24, **changes})
    for warp_size in WITH_UNIT:
        assert not uses_matrix_units(case, warp_size)
        want = torch.ops.dspark_ext.markov_sample(*case.values())
        assert_same(sample(case, warp_size=warp_size), dict(zip(OUTPUTS, want)))


@pytest.mark.parametrize("weights", HALVES, ids=str)
@pytest.mark.parametrize("batch", [1, 9, 40])
def test_exact_where_the_chip_has_no_unit(batch, weights):
    """The same launches, and the bits of the CPU."""
    case = sweep.markov_case(
        batch, sweep.HEADS[batch % 3], batch, 2, 700, 24, weights=weights, dtype=torch.bfloat16
    )
    want = torch.ops.dspark_ext.markov_sample(*case.values())
    for seed in range(3):
        assert_same(sample(case, warp_size=4, seed=seed), dict(zip(OUTPUTS, want)))


@pytest.mark.parametrize("warp_size", WITH_UNIT)
@pytest.mark.parametrize("kind", sweep.HEADS)
def test_launches_and_traffic(kind, warp_size):
    """As many launches as the exact path; w2 read once for 64 requests, 16 bytes at a time."""
    case = sweep.markov_case(
        1, kind, 64, 1, 1000, 256, weights=torch.bfloat16, dtype=torch.bfloat16, exact=False
    )
    counted = emulated.counters(
        lambda: torch.ops.dspark_simt.markov_sample(*case.values()), warp_size=warp_size
    )
    launches = {name: kernel["launches"] for name, kernel in counted["kernels"].items()}
    assert launches == {"markov_step": 2} | ({} if kind == "vanilla" else {"hidden_dots": 1})
    assert counted["buffers"]["w2"]["bytes_loaded"] == case["w2"].nbytes
    assert counted["buffers"]["base_logits"]["bytes_loaded"] == 64 * 1000 * 2
    assert counted["buffers"]["logits"]["bytes_stored"] == 64 * 1000 * 2
    step = counted["kernels"]["markov_step"]
    assert step["accesses_16"] * 16 >= case["w2"].nbytes + 2 * 64 * 1000 * 2
    # 1000 rows in tiles of 16, 64 columns in tiles of 8 or 16, a depth of 256 in 16
    tiles = (1024 // 16) * (64 // (16 if warp_size == 64 else 8))
    assert step["matrix_instructions"] == tiles * 16
