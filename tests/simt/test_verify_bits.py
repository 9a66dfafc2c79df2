"""The device kernels of the verify family, as the emulator runs them, against the CPU backend."""

import emulated
import pytest
import torch
import verify_sweep as sweep
from kit import bits_equal

import dspark_ext  # noqa: F401  (registers the operators)

SMALL = [(0, 5), (1, 0), (1, 1), (3, 7), (13, 3), (64, 5), (300, 2)]
ONE_TILE = [(256, 16), (4096, 1), (585, 7), (16, 256)]
MANY_TILES = [(4097, 1), (820, 5), (586, 7), (1200, 16), (17, 256)]


def tensors(results, arguments: list) -> list[torch.Tensor]:
    results = list(results) if isinstance(results, tuple) else [results]
    return [x for x in results + arguments if torch.is_tensor(x)]


def agree(name: str, arguments: tuple, **settings) -> None:
    """One call on both backends; inputs that are updated are compared, too."""
    given = [x.clone() if torch.is_tensor(x) else x for x in arguments]
    also = [x.clone() if torch.is_tensor(x) else x for x in arguments]
    want = getattr(torch.ops.dspark_ext, name)(*given)
    with emulated.operators(**settings):
        got = getattr(torch.ops.dspark_simt, name)(*also)
    for mine, theirs in zip(tensors(want, given), tensors(got, also), strict=True):
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        assert bits_equal(mine.reshape(-1), theirs.reshape(-1)), (name, settings, mine, theirs)


@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES)
@pytest.mark.parametrize("mode", sweep.MODES)
def test_small_schedules(mode, warp_size):
    for seed in range(40):
        batch, width = SMALL[seed % len(SMALL)]
        level = emulated.FULL if seed < 20 else emulated.BOUNDS
        case = sweep.schedule_case(seed, mode, batch, width)
        agree("schedule", case, warp_size=warp_size, seed=seed % 4, level=level)


@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES)
@pytest.mark.parametrize("mode", sweep.MODES)
@pytest.mark.parametrize(("batch", "width"), [ONE_TILE[0], ONE_TILE[3]], ids=str)
def test_schedules_of_4096_drafts(batch, width, mode, warp_size):
    """The most that one block sorts."""
    for seed in range(2):
        case = sweep.schedule_case(100 + seed, mode, batch, width)
        agree("schedule", case, warp_size=warp_size, seed=seed, level=(0, emulated.FULL)[seed])


@pytest.mark.parametrize("mode", sweep.MODES)
@pytest.mark.parametrize(("batch", "width"), MANY_TILES[1:3], ids=str)
def test_schedules_of_several_tiles(batch, width, mode):
    for seed in range(3):
        case = sweep.schedule_case(200 + seed, mode, batch, width)
        warp_size = emulated.WARP_SIZES[seed]
        level = emulated.FULL if seed == 1 else emulated.BOUNDS
        agree("schedule", case, warp_size=warp_size, seed=seed, level=level)


def straight_case(mode: str, share: float, confidence: torch.Tensor) -> tuple:
    batch, width = confidence.shape
    rows = batch * (width + 1)
    table = share * rows + torch.arange(rows + 1, dtype=torch.float64)
    lagged = confidence.flip(0) if "lagged" in mode else None
    return (confidence, mode, None, table, None, lagged, None, 0.0, width, 0, -1, 0)


@pytest.mark.parametrize("mode", ["early_stop", "lagged"])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.1, 0.3, 0.8, 3.0], ids=lambda s: f"start={s}")
def test_the_order_ends_in_any_tile(share, mode):
    """2400 requests of 7 drafts are four or five tiles; the more a pass costs to begin with, the
    later the order ends. Ties across tiles where the cost is proportional to the rows."""
    generator = torch.Generator().manual_seed(4)
    confidence = torch.rand(2400, 7, generator=generator) ** 0.2
    for given in (confidence, torch.ones(2400, 7)):
        agree("schedule", straight_case(mode, share, given), seed=1)
    drafts = int(torch.ops.dspark_ext.schedule(*straight_case(mode, share, confidence))[2]) - 2400
    assert drafts // 4096 == {0.0: 0, 0.02: 0, 0.1: 1, 0.3: 1, 0.8: 2, 3.0: 3}[share]


@pytest.mark.parametrize("mode", ["early_stop", "lagged"])
@pytest.mark.parametrize(("batch", "width"), [(585, 7), (2400, 7)], ids=str)
def test_an_exact_tie_ends_the_order(batch, width, mode):
    """Certain drafts that cost nothing up to some number, and then as much as those before on
    average: one unit of 2^-40 tokens more or less in any partial sum would show."""
    for free in (0, 1, 255, 256, 1000, 3001, 4095, 4096, 4097, 9999):
        case = list(straight_case(mode, 0.0, torch.ones(batch, width)))
        case[3] = case[3].clamp(min=batch + free)
        agree("schedule", tuple(case), warp_size=64)
        rows = int(torch.ops.dspark_ext.schedule(*case)[2])
        assert rows - batch == min(free, batch * width)


@pytest.mark.slow
@pytest.mark.parametrize("mode", sweep.MODES)
@pytest.mark.parametrize(("batch", "width"), [*ONE_TILE, *MANY_TILES, (4096, 16)], ids=str)
def test_larger_schedules(batch, width, mode):
    for seed in range(6):
        case = sweep.schedule_case(300 + seed, mode, batch, width)
        warp_size = emulated.WARP_SIZES[1 + seed % 2]
        agree("schedule", case, warp_size=warp_size, seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("mode", sweep.MODES)
def test_many_small_schedules(mode):
    for seed in range(1000, 1600):
        batch, width = SMALL[seed % len(SMALL)]
        case = sweep.schedule_case(seed, mode, batch, width)
        agree("schedule", case, warp_size=emulated.WARP_SIZES[seed % 3], seed=seed % 5)


def test_fixed_without_confidences():
    capacity = torch.tensor([3, 0, 9, -1], dtype=torch.int32)
    case = (None, "fixed", capacity, None, None, None, None, 0.0, 5, 0, 9, 0)
    agree("schedule", case, level=emulated.FULL)


def test_one_launch_up_to_4096_drafts():
    for mode, batch, launches in [
        ("early_stop", 256, {"schedule": 1}),
        ("lagged", 256, {"schedule": 1}),
        ("uniform", 4096, {"uniform_schedule": 1}),
        ("budget", 257, {"sort_tiles": 1, "merge_tiles": 1, "finish_schedule": 1}),
        (
            "lagged",
            257,
            dict.fromkeys(
                ("sort_tiles", "merge_tiles", "sum_runs", "search_runs", "finish_schedule"), 1
            ),
        ),
    ]:
        case = sweep.schedule_case(1, mode, batch, 16)
        counted = emulated.counters(lambda case=case: torch.ops.dspark_simt.schedule(*case))
        assert {name: k["launches"] for name, k in counted["kernels"].items()} == launches


@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES)
@pytest.mark.parametrize("name", ["pack", "unpack", "commit", "accumulate_stats"])
def test_rows(name, warp_size):
    for seed in range(30):
        batch, width = SMALL[seed % len(SMALL)]
        case = sweep.rows_case(seed, batch, width)[name]
        level = emulated.FULL if seed < 15 else emulated.BOUNDS
        agree(name, case, warp_size=warp_size, seed=seed % 3, level=level)


# ---- what a device makes of data that a CPU refuses ---------------------------------------------


def run(name, *arguments):
    with emulated.operators(level=emulated.FULL):
        return getattr(torch.ops.dspark_simt, name)(*arguments)


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


def test_pack_leaves_out_what_does_not_fit():
    anchor, drafts = torch.tensor([10, -5, 30]), torch.tensor([[11], [21], [31]])
    seq_lens, lens = torch.tensor([4, 7, -3]), int32(1, 1, 1)
    table = torch.tensor([[3], [-1], [2]], dtype=torch.int32)
    ids, positions, requests, slots, sample = run(
        "pack", anchor, drafts, seq_lens, lens, int32(0, 2, 4, 6), 7, table, 5, 0
    )
    assert ids.tolist() == [10, 11, 0, 21, 30, 31, 0]
    assert positions.tolist() == [4, 5, 7, 8, 0, 0, 0]
    assert requests.tolist() == [0, 0, 1, 1, 2, 2, -1]
    assert slots.tolist() == [19, -1, -1, -1, -1, -1, -1]
    # starts that fall, more rows than K + 1, rows beyond max_rows
    _, _, requests, _, sample = run(
        "pack", anchor, drafts, seq_lens, lens, int32(0, 4, 2, 9), 6, None, 0, 0
    )
    assert requests.tolist() == [0, 0, -1, -1, -1, -1]
    _, _, requests, _, sample = run(
        "pack", anchor, drafts, seq_lens, lens, int32(0, 2, 4, 6), 3, None, 0, 1
    )
    assert requests.tolist() == [0, 1, 2] and sample.tolist() == [0, 0, 1]


@pytest.mark.parametrize("rows_per_request", [0, 2])
def test_any_starts_stay_within_memory(rows_per_request):
    generator = torch.Generator().manual_seed(7)
    anchor, drafts = torch.zeros(4, dtype=torch.int64), torch.zeros(4, 3, dtype=torch.int64)
    for _ in range(30):
        starts = torch.randint(-(2**31), 2**31 - 1, (5,), generator=generator).int()
        starts = torch.where(torch.rand(5, generator=generator) < 0.7, starts % 12, starts)
        run(
            "pack", anchor, drafts, anchor, int32(9, -1, 0, 3), starts, 9, None, 0, rows_per_request
        )
        run("commit", int32(-4, 100, 1, 2), anchor, anchor, starts, 9, rows_per_request)
        run("unpack", torch.zeros(9, 3), torch.tensor(0.0), starts, 3, rows_per_request)


def test_commit_clamps_what_was_emitted():
    seq_lens = torch.tensor([5, 5, 5])
    new, _, kept, rejected = run(
        "commit", int32(-2, 9, 1), seq_lens, seq_lens, int32(0, 2, 4, 4), 5, 0
    )
    assert new.tolist() == [5, 7, 5] and rejected.tolist() == [2, 0, 0]
    assert kept.tolist() == [False, False, True, True, False]


def test_stats_skip_what_contradicts_itself():
    verified, reached = torch.zeros(2, 3).long(), torch.zeros(2, 3).long()
    histogram = torch.zeros(2, 4).long()
    lens, accepted = int32(4, -1, 2, 1, 2), int32(0, 0, 3, 1, 1)
    run("accumulate_stats", lens, accepted, int32(0, 0, 1, 5, 1), verified, reached, histogram)
    assert verified.tolist() == [[0, 0, 0], [1, 1, 0]]
    assert reached.tolist() == [[0, 0, 0], [1, 1, 0]]
    assert histogram.tolist() == [[0, 0, 0, 0], [0, 1, 0, 0]]


def test_more_drafts_than_a_gpu_takes_are_refused():
    case = sweep.schedule_case(1, "threshold", 2, 257)
    with pytest.raises(RuntimeError, match=r"dspark_ext\.schedule: confidence: .*K=256"):
        run("schedule", *case)
