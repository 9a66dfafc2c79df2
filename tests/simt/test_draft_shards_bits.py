"""The operators of a vocabulary that is spread over processes, as the emulator runs their kernels:
against the CPU backend, and put together against markov_sample on one device."""

import itertools

import draft_sweep as sweep
import emulated
import pytest
import torch
from kit import bits_equal

import dspark_ext  # noqa: F401  (registers the operators)

TILE = 4096
NAN = float("nan")
INFINITY = float("inf")


def run(name: str, *arguments, warp_size=32, seed=0, level=emulated.FULL):
    with emulated.operators(warp_size=warp_size, seed=seed, level=level):
        return getattr(torch.ops.dspark_simt, name)(*arguments)


def agree(name: str, *arguments, **settings):
    want = getattr(torch.ops.dspark_ext, name)(*arguments)
    got = run(name, *arguments, **settings)
    pairs = zip(want, got, strict=True) if isinstance(want, tuple) else [(want, got)]
    for mine, theirs in pairs:
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        assert bits_equal(mine.reshape(-1), theirs.reshape(-1)), (name, settings, mine, theirs)
    return got


def step_of(case: dict, k: int, previous, state, ids=slice(None)) -> tuple:
    """The arguments of markov_logits for draft k, for some draft ids."""
    hidden = case["hidden"]
    return (
        *(case["base_logits"][:, k : k + 1, ids], previous, case["w1"], case["w2"][ids]),
        *(case["head"], None if hidden is None else hidden[:, k : k + 1]),
        *(case["head_weight"], case["head_bias"], state, True),
    )


# ---- one operator at a time ---------------------------------------------------------------------


@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES)
@pytest.mark.parametrize("kind", sweep.HEADS)
def test_logits_of_a_draft(kind, warp_size):
    for seed in range(24):
        case = sweep.any_markov_case(seed, kind)
        batch, rank = len(case["anchor"]), case["w1"].shape[1]
        state = torch.randn(batch, rank) if kind == "rnn" and seed % 3 else None
        arguments = step_of(case, 0, case["anchor"], state)
        agree("markov_logits", *arguments, warp_size=warp_size, seed=seed % 5)


@pytest.mark.parametrize("kind", sweep.HEADS)
@pytest.mark.parametrize(("batch", "vocab"), [(0, 9), (2, 0), (70, 33), (1, 4097)], ids=str)
def test_shards_of_any_size(batch, vocab, kind):
    """A process without draft ids has the embedding and the state of every request, too."""
    case = sweep.markov_case(5, kind, batch, 1, max(vocab, 40), 24, weights=torch.bfloat16)
    arguments = step_of(case, 0, case["anchor"], None, slice(0, vocab))
    for seed, warp_size in enumerate(emulated.WARP_SIZES):
        agree("markov_logits", *arguments, warp_size=warp_size, seed=seed)


@pytest.mark.parametrize("kind", sweep.HEADS)
@pytest.mark.parametrize("warp_size", [32, 64])
def test_matrix_units_give_shards_the_logits_of_the_whole(warp_size, kind):
    case = sweep.markov_case(2, kind, 5, 1, 300, 24, target=300, dtype=torch.bfloat16, exact=False)
    case["d2t"] = None
    settings = {"warp_size": warp_size, "seed": 1}
    want = run("markov_sample", *case.values(), **settings)[1]
    parts = [
        run("markov_logits", *step_of(case, 0, case["anchor"], None, ids)[:-1], False, **settings)
        for ids in (slice(0, 77), slice(77, 300))
    ]
    got = torch.cat([part[0] for part in parts], 2)
    assert bits_equal(got.flatten(), want.flatten())


def rows_of(seed: int, rows: int, vocab: int, dtype) -> tuple:
    """Logits with extremes and ties, and temperatures, some 0."""
    case = sweep.markov_case(
        seed, batch=rows, drafts=1, vocab=vocab, rank=1, dtype=dtype, extremes=seed % 2 == 1
    )
    logits = case["base_logits"][:, 0].contiguous()
    logits = sweep.shifted(logits) if seed % 3 == 0 else logits
    case["temperature"][:1] = -0.0
    return logits, case["temperature"], case["seeds"], case["positions"]


@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES)
@pytest.mark.parametrize("vocab", [1, 255, TILE - 1, TILE, TILE + 1, 2 * TILE + 77])
def test_statistics(vocab, warp_size):
    for seed in range(4):
        logits, heat, _, _ = rows_of(seed, 3, vocab, sweep.DTYPES[seed % 3])
        agree("row_statistics", logits, heat, warp_size=warp_size, seed=seed)


@pytest.mark.parametrize("size", [(0, 9), (3, 0)], ids=str)
def test_statistics_of_nothing(size):
    agree("row_statistics", torch.zeros(size), torch.ones(size[0]))


@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES)
@pytest.mark.parametrize("bounds", [[0, 3], [0, 1, 3], [0, 0, 2, 3], [0, 1, 2, 3]], ids=str)
def test_exactly_one_holder_draws(bounds, warp_size):
    """Rows of three tiles, the last one short."""
    for seed in range(6):
        logits, heat, seeds, positions = rows_of(seed, 9, 2 * TILE + 77, sweep.DTYPES[seed % 3])
        logits[1] = -INFINITY
        logits[2, : 2 * TILE] = -INFINITY
        logits[3] = 1.5  # the ids of a greedy row that are first are in several tiles
        heat[3] = 0
        tile_max, tile_sum, _ = torch.ops.dspark_ext.row_statistics(logits, heat)
        answers = []
        for begin, end in itertools.pairwise(bounds):
            part = logits[:, begin * TILE : end * TILE]
            common = (tile_max, tile_sum, heat, seeds, positions, seed)
            answers.append(
                agree("draw_shard", part, begin, *common, warp_size=warp_size, seed=seed)
            )
        answers = torch.stack(answers)
        assert ((answers >= 0).sum(0) == 1).all()
        assert answers.max(0).values[[1, 3]].tolist() == [0, 0]


def test_statistics_of_other_rows_draw_nothing_greedily():
    logits, common = torch.zeros(1, 9), (torch.zeros(1), *torch.zeros(2, 1, dtype=torch.int64), 0)
    tile_max = torch.ones(1, 1)
    got = agree("draw_shard", logits, 0, tile_max, tile_max, *common)
    assert got.tolist() == [-1]


# ---- together -----------------------------------------------------------------------------------


def tile_bounds(sizes: list[int], vocab: int, is_ascending: bool) -> list[int]:
    """As MarkovShards has them: a tile is held where it begins, or all have as many."""
    tiles = -(-vocab // TILE)
    if not is_ascending:
        return [r * tiles // len(sizes) for r in range(len(sizes) + 1)]
    begins = [0, *itertools.accumulate(sizes)]
    return [min(-(-begin // TILE), tiles) for begin in begins[:-1]] + [tiles]


def sharded(case: dict, sizes: list[int], **settings) -> tuple:
    """markov_sample by the operators of one process after the other."""

    def simt(name, *arguments):
        return run(name, *arguments, **settings)

    begins = [0, *itertools.accumulate(sizes)]
    vocab, d2t = case["vocab_size"], case["d2t"]
    columns = torch.arange(begins[-1]) if d2t is None else torch.arange(begins[-1]) + d2t
    bounds = tile_bounds(sizes, vocab, d2t is None)
    heat, seeds, positions = case["temperature"], case["seeds"], case["positions"]
    if case["method"] == "greedy":
        heat = torch.zeros_like(heat)
    previous, state, found = case["anchor"], None, []
    for k in range(case["num_drafts"]):
        steps = [
            simt("markov_logits", *step_of(case, k, previous, state, slice(begin, end)))
            for begin, end in itertools.pairwise(begins)
        ]
        for step in steps[1:]:
            assert bits_equal(step[1].reshape(-1), steps[0][1].reshape(-1))
            assert bits_equal(step[2].reshape(-1), steps[0][2].reshape(-1))
        state = steps[0][2] if case["head"] == "rnn" else None
        row = case["base_logits"].new_full((len(previous), vocab), -INFINITY)
        row[:, columns] = torch.cat([step[0][:, 0] for step in steps], 1)
        parts = [row[:, a * TILE : b * TILE] for a, b in itertools.pairwise(bounds)]
        statistics = [simt("row_statistics", part, heat) for part in parts]
        whole = [torch.cat(part, 1) for part in zip(*statistics, strict=True)]
        draws = [
            simt("draw_shard", part, first, *whole[:2], heat, seeds, positions + k, k)
            for part, first in zip(parts, bounds[:-1], strict=True)
        ]
        previous = torch.stack(draws).max(0).values
        found.append((previous, row, steps[0][1][:, 0], heat + 0.0, *whole))
    return tuple(torch.stack(values, 1) for values in zip(*found, strict=True))


SIZES = {
    1: [9001],
    2: [3000, 6001],
    3: [TILE, 0, 4905],
    4: [1, TILE - 1, 4800, 105],
}


@pytest.mark.parametrize("target", [None, 9001, 12500])
@pytest.mark.parametrize("kind", sweep.HEADS)
@pytest.mark.parametrize("world", SIZES)
def test_shards_draft_what_one_device_drafts(world, kind, target):
    """Without d2t, and with ids of any order, of a vocabulary as large or larger."""
    for seed, warp_size in enumerate(emulated.WARP_SIZES):
        case = sweep.markov_case(
            seed, kind, batch=(3, 1, 5)[seed], drafts=2, vocab=9001, rank=8, target=target,
            dtype=sweep.DTYPES[seed], extremes=seed == 1,
            method=("probabilistic", "probabilistic", "greedy")[seed],
        )  # fmt: skip
        settings = {"warp_size": warp_size, "seed": seed}
        want = run("markov_sample", *case.values(), **settings)
        got = sharded(case, SIZES[world], **settings)
        for mine, theirs in zip(want, got, strict=True):
            assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
            assert bits_equal(mine.reshape(-1), theirs.reshape(-1)), (seed, mine, theirs)


# ---- what a device makes of data that a CPU refuses ---------------------------------------------


@pytest.mark.parametrize("bad", [-1.0, INFINITY, NAN, -INFINITY])
def test_an_invalid_temperature_stops_its_row_only(bad):
    logits, heat, seeds, positions = rows_of(1, 5, 5000, torch.float32)
    heat[:] = 0.7
    want = run("row_statistics", logits, heat)
    tokens = run("draw_shard", logits, 0, want[0], want[1], heat, seeds, positions, 0)
    heat[2] = bad
    got = run("row_statistics", logits, heat)
    assert bits_equal(got[0].flatten(), want[0].flatten())  # the maxima
    assert torch.equal(got[2], want[2])
    others = torch.tensor([0, 1, 3, 4])
    assert bits_equal(got[1][others].flatten(), want[1][others].flatten())
    assert (got[1][2] == 0).all()
    drawn = run("draw_shard", logits, 0, got[0], got[1], heat, seeds, positions, 0)
    assert drawn[2] == -1 and torch.equal(drawn[others], tokens[others])


@pytest.mark.parametrize("anchor", [-1, 300, 2**62])
@pytest.mark.parametrize("kind", sweep.HEADS)
def test_an_anchor_without_an_embedding_has_zeros(kind, anchor):
    case = sweep.markov_case(3, kind, 3, 1)
    case["anchor"][1] = anchor
    got = run("markov_logits", *step_of(case, 0, case["anchor"], None))
    assert (got[1][1] == 0).all()
    case["anchor"][1] = 7
    case["w1"] = case["w1"].clone()
    case["w1"][7] = 0
    want = run("markov_logits", *step_of(case, 0, case["anchor"], None))
    assert bits_equal(got[0][1].flatten(), want[0][1].flatten())
    assert bits_equal(got[2][1].flatten(), want[2][1].flatten())


def test_rows_that_devices_do_not_take():
    parts, number = torch.zeros(1, 1025), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(RuntimeError, match=r"draw_shard: tile_max: .* 1 to 1024, got 1025"):
        run("draw_shard", torch.zeros(1, 0), 0, parts, parts, torch.ones(1), number, number, 0)
    case = sweep.markov_case(1, rank=2064)
    with pytest.raises(RuntimeError, match=r"markov_logits: w1: expected r up to 2048"):
        run("markov_logits", *step_of(case, 0, case["anchor"], None))


# ---- launches and traffic -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", sweep.HEADS)
def test_launches(kind):
    case = sweep.markov_case(1, kind, 3, 1)
    rows, heat = case["base_logits"][:, 0].contiguous(), case["temperature"]

    def call():
        torch.ops.dspark_simt.markov_logits(*step_of(case, 0, case["anchor"], None))
        tile_max, tile_sum, _ = torch.ops.dspark_simt.row_statistics(rows, heat)
        torch.ops.dspark_simt.draw_shard(
            rows, 0, tile_max, tile_sum, heat, case["seeds"], case["positions"], 0
        )

    kernels = emulated.counters(call)["kernels"]
    steps = {"markov_step": 1, "shard_statistics": 1, "draw_shard": 1}
    steps |= {} if kind == "vanilla" else {"hidden_dots": 1}
    assert {name: counted["launches"] for name, counted in kernels.items()} == steps


def test_each_row_is_read_once_for_its_statistics():
    rows = torch.randn(3, 3 * TILE + 8).bfloat16()
    kernels = emulated.counters(lambda: torch.ops.dspark_simt.row_statistics(rows, torch.ones(3)))[
        "kernels"
    ]
    read = kernels["shard_statistics"]["bytes_loaded"]
    assert rows.nbytes <= read <= rows.nbytes + 3 * 4 * 256 * 8
