"""The device kernels of the draft family, as the emulator runs them, against the CPU backend."""

import draft_sweep as sweep
import emulated
import pytest
import torch
from kit import bits_equal

import dspark_ext  # noqa: F401  (registers the operators)

OUTPUTS = (
    *("token_ids", "logits", "prev_embed"),
    *("row_temperature", "tile_max", "tile_sum", "tile_nan"),
)
NAN = float("nan")


def run(name: str, *arguments, warp_size=32, seed=0, level=emulated.FULL):
    with emulated.operators(warp_size=warp_size, seed=seed, level=level):
        return getattr(torch.ops.dspark_simt, name)(*arguments)


def sample(case: dict, **settings) -> dict:
    return dict(zip(OUTPUTS, run("markov_sample", *case.values(), **settings), strict=True))


def agree(case: dict, **settings) -> dict:
    want = torch.ops.dspark_ext.markov_sample(*case.values())
    got = sample(case, **settings)
    for name, mine, theirs in zip(OUTPUTS, want, got.values(), strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        assert bits_equal(mine.reshape(-1), theirs.reshape(-1)), (name, settings, mine, theirs)
    return got


@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES)
@pytest.mark.parametrize("kind", sweep.HEADS)
def test_many_small_calls(kind, warp_size):
    for seed in range(40):
        agree(sweep.any_markov_case(seed, kind), warp_size=warp_size, seed=seed % 5)


@pytest.mark.slow
@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES)
@pytest.mark.parametrize("kind", sweep.HEADS)
def test_many_more_calls(kind, warp_size):
    for seed in range(100, 400):
        agree(sweep.any_markov_case(seed, kind), warp_size=warp_size, seed=seed % 7)


@pytest.mark.parametrize(
    "vocab", [1, 2, 127, 128, 129, 255, 256, 257, 1024, 1025, 4095, 4096, 4097]
)
def test_vocabularies(vocab):
    for seed, warp_size in enumerate(emulated.WARP_SIZES):
        case = sweep.markov_case(
            seed, batch=seed + 1, vocab=vocab, rank=8, dtype=sweep.DTYPES[seed],
            extremes=seed == 1, method=("probabilistic", "greedy")[seed // 2],
        )  # fmt: skip
        agree(case, warp_size=warp_size, seed=seed)


@pytest.mark.parametrize("kind", sweep.HEADS)
@pytest.mark.parametrize("batch", [1, 2, 4, 5, 8, 9, 16, 17, 32, 33, 64, 65, 70])
def test_batches(batch, kind):
    """One, four or eight requests for each team, one or several teams, one or two groups."""
    case = sweep.markov_case(
        batch, kind, batch, drafts=2, vocab=140, rank=24, weights=torch.bfloat16
    )
    for seed, warp_size in enumerate(emulated.WARP_SIZES):
        agree(case, warp_size=warp_size, seed=seed)


@pytest.mark.parametrize("weights", sweep.DTYPES, ids=str)
@pytest.mark.parametrize("rank", [1, 8, 16, 24, 64, 200, 256, 264])
def test_ranks(rank, weights):
    """Several chunks of a row, the last one short; rows that are not 16-byte aligned."""
    for seed, warp_size in enumerate(emulated.WARP_SIZES):
        kind = sweep.HEADS[(rank + seed) % 3]
        case = sweep.markov_case(
            seed, kind, batch=(1, 3, 12)[seed], vocab=70, rank=rank, weights=weights,
            unaligned=seed == 1,
        )  # fmt: skip
        agree(case, warp_size=warp_size, seed=seed)


@pytest.mark.parametrize("weights", sweep.DTYPES, ids=str)
@pytest.mark.parametrize(("batch", "rank"), [(64, 256), (70, 256), (9, 1032), (5, 2048)], ids=str)
def test_inputs_that_fill_shared_memory(batch, rank, weights):
    kind = "gated" if batch == 70 else "vanilla"
    case = sweep.markov_case(batch, kind, batch, 1, 33, rank, weights=weights)
    for seed, warp_size in enumerate(emulated.WARP_SIZES):
        agree(case, warp_size=warp_size, seed=seed)


@pytest.mark.parametrize("kind", sweep.HEADS)
@pytest.mark.parametrize("seed", range(12))
def test_any_order_of_blocks(seed, kind):
    """Several ranges of vocabulary rows, several tiles of a row: many blocks that wait."""
    case = sweep.markov_case(5, kind, 3, 3, 600, 8, target=9000, dtype=torch.bfloat16)
    agree(case, warp_size=emulated.WARP_SIZES[1 + seed % 2], seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sweep.HEADS)
@pytest.mark.parametrize("batch", [1, 8, 64])
def test_large_calls(batch, kind):
    case = sweep.markov_case(
        batch, kind, batch, 3, 5000, 256, target=20001, width=1000, dtype=torch.bfloat16
    )
    for seed, warp_size in enumerate((32, 64)):
        agree(case, warp_size=warp_size, seed=seed)


@pytest.mark.parametrize(("batch", "drafts"), [(0, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize("kind", sweep.HEADS)
def test_nothing_to_draft(batch, drafts, kind):
    got = agree(sweep.markov_case(1, kind, batch, drafts))
    assert got["token_ids"].shape == (batch, drafts)


def launches(call) -> dict:
    kernels = emulated.counters(call)["kernels"]
    return {name: counted["launches"] for name, counted in kernels.items()}


@pytest.mark.parametrize("drafts", [1, 2, 5])
@pytest.mark.parametrize("target", [None, 900])
@pytest.mark.parametrize("kind", sweep.HEADS)
def test_launches(kind, target, drafts):
    case = sweep.markov_case(1, kind, 3, drafts, target=target)
    counted = launches(lambda: torch.ops.dspark_simt.markov_sample(*case.values()))
    steps = {"markov_step": drafts + 1}
    assert counted == (steps if kind == "vanilla" else {"hidden_dots": 1, **steps})


# ---- what a device makes of data that a CPU refuses ---------------------------------------------


@pytest.mark.parametrize("bad", [-1.0, float("inf"), NAN, -float("inf")])
@pytest.mark.parametrize("method", ["probabilistic", "greedy"])
@pytest.mark.parametrize("kind", sweep.HEADS)
def test_an_invalid_temperature_stops_its_request_only(kind, method, bad):
    case = sweep.markov_case(2, kind, 3, 3, method=method)
    want = sample(case)
    case["temperature"][1] = bad
    got = sample(case, seed=1)
    for name in OUTPUTS:
        assert bits_equal(got[name][::2].flatten(), want[name][::2].flatten()), name
    assert got["token_ids"][1].tolist() == [-1] * 3
    assert got["row_temperature"][1].isnan().all()
    assert bits_equal(got["prev_embed"][1, 0], want["prev_embed"][1, 0])
    assert (got["prev_embed"][1, 1:] == 0).all()
    if kind == "vanilla":  # the bias of the zero embedding is 0
        assert torch.equal(got["logits"][1, 1:], case["base_logits"][1, 1:3])


@pytest.mark.parametrize("anchor", [-1, -(2**40), 300, 2**62])
@pytest.mark.parametrize("kind", sweep.HEADS)
def test_an_anchor_without_an_embedding_has_zeros(kind, anchor):
    case = sweep.markov_case(3, kind, 3, 2)
    case["anchor"][2] = anchor
    got = sample(case, seed=2)
    assert (got["prev_embed"][2, 0] == 0).all()
    case["anchor"][2] = 7
    case["w1"] = case["w1"].clone()
    case["w1"][7] = 0
    want = sample(case)
    assert torch.equal(got["logits"][2, 0], want["logits"][2, 0])
    assert torch.equal(got["token_ids"][2, 0], want["token_ids"][2, 0])


def test_drawn_tokens_without_an_embedding_have_zeros():
    """A target vocabulary larger than w1."""
    case = sweep.markov_case(4, batch=8, drafts=3, vocab=50, target=400)
    case["w1"] = case["w1"][:60].clone()
    case["anchor"] %= 60
    got = sample(case)
    missing = got["token_ids"][:, :-1] >= 60
    assert missing.any() and not missing.all()
    assert torch.equal((got["prev_embed"][:, 1:] == 0).all(-1), missing)


def test_ids_outside_of_the_target_vocabulary_are_dropped():
    case = sweep.markov_case(5, batch=2, drafts=2, vocab=50, target=400)
    want = torch.ops.dspark_ext.markov_sample(*case.values())[1]
    dropped = [0, 17, 49]
    columns = (torch.arange(50) + case["d2t"])[dropped]
    case["d2t"][dropped] = torch.tensor([-1, 383, 2**62])
    got = sample(case)
    assert (got["logits"][:, :, columns] == -float("inf")).all()
    kept = torch.ones(400, dtype=torch.bool)
    kept[columns] = False
    assert torch.equal(got["logits"][:, 0, kept], want[:, 0, kept])


def test_sizes_that_devices_do_not_take():
    with pytest.raises(RuntimeError, match=r"markov_sample: w1: expected r up to 2048"):
        sample(sweep.markov_case(1, rank=2064))
    case = sweep.markov_case(1)
    case["vocab_size"] = 4096 * 1024 + 1
    with pytest.raises(RuntimeError, match=r"markov_sample: vocab_size: expected at most 4194304"):
        sample(case)


# ---- confidences --------------------------------------------------------------------------------

SIZES = [(1, 1, 1, 1), (3, 5, 300, 16), (2, 2, 255, 1), (4, 3, 240, 16), (2, 1, 0, 8), (0, 3, 9, 9)]


@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_confidence(size, warp_size):
    for seed in range(6):
        case = sweep.confidence_case(seed, *size, unaligned=seed % 2 == 1)
        want = torch.ops.dspark_ext.confidence(*case)
        got = run("confidence", *case, warp_size=warp_size, seed=seed)
        assert want.shape == got.shape and bits_equal(want.flatten(), got.flatten())


@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES)
@pytest.mark.parametrize("rows", [0, 1, 51, 52, 1000])
def test_calibrate(rows, warp_size):
    logits = torch.randn(rows, 5) * 10
    logits[::7] = torch.tensor([NAN, float("inf"), -float("inf"), 0.0, -0.0])
    case = (logits, torch.tensor([0.5, 1.0, 2.0, 0.1, 30.0]))
    want = torch.ops.dspark_ext.calibrate(*case)
    got = run("calibrate", *case, warp_size=warp_size, seed=rows)
    assert bits_equal(want.flatten(), got.flatten())


@pytest.mark.parametrize("bad", [0.0, -1.0, float("inf"), NAN])
def test_an_invalid_calibration_gives_nan(bad):
    got = run("calibrate", torch.zeros(3, 2), torch.tensor([1.0, bad]))
    assert (got[:, 0] == 0.5).all() and got[:, 1].isnan().all()
    case = list(sweep.confidence_case(1, 2, 2, 20, 4))
    case[4] = torch.tensor([bad, 1.0])
    got = run("confidence", *case)
    assert got[:, 0].isnan().all() and not got[:, 1].isnan().any()
