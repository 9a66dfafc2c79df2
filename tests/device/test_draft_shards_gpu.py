"""The operators of a vocabulary that is spread over processes, on the GPU: every bit of the CPU
backend, without synchronisation, also captured and replayed."""

import draft_sweep as sweep
import pytest
import shard_groups
import torch
from backends import moved
from gpukit import GPU, capture, on_cpu
from kit import bits_equal

TILE = 4096


def there(arguments) -> list:
    return [moved(x, GPU) if torch.is_tensor(x) else x for x in arguments]


def same_bits(mine, theirs) -> bool:
    pairs = zip(on_cpu(mine), on_cpu(theirs), strict=True)
    return all(
        a.dtype == b.dtype and a.shape == b.shape and bits_equal(a.reshape(-1), b.reshape(-1))
        for a, b in pairs
    )


def agree(name: str, *arguments) -> None:
    operator = getattr(torch.ops.dspark_ext, name)
    assert same_bits(operator(*there(arguments)), operator(*arguments))


def step_of(case: dict, state, ids=slice(None)) -> tuple:
    hidden = case["hidden"]
    return (
        *(case["base_logits"][:, :1, ids], case["anchor"], case["w1"], case["w2"][ids]),
        *(case["head"], None if hidden is None else hidden[:, :1]),
        *(case["head_weight"], case["head_bias"], state, True),
    )


@pytest.mark.parametrize("kind", sweep.HEADS)
def test_logits_of_a_draft(kind):
    for seed in range(100):
        case = sweep.any_markov_case(seed, kind)
        if case["base_logits"].isnan().any():  # which NaN comes out is the hardware's
            continue
        state = torch.randn(len(case["anchor"]), case["w1"].shape[1])
        agree("markov_logits", *step_of(case, state if kind == "rnn" and seed % 3 else None))


@pytest.mark.parametrize("batch", [1, 8, 64])
@pytest.mark.parametrize("size", [0, 1, 32320])
def test_shards_of_any_size(size, batch):
    case = sweep.markov_case(1, "gated", batch, 1, 129280, 256, width=512, dtype=torch.bfloat16)
    agree("markov_logits", *step_of(case, None, slice(64640, 64640 + size)))


def rows_of(seed: int, vocab: int) -> tuple:
    case = sweep.markov_case(
        seed, batch=17, drafts=1, vocab=vocab, rank=1, dtype=sweep.DTYPES[seed % 3],
        extremes=seed % 2 == 1,
    )  # fmt: skip
    rows = case["base_logits"][:, 0].contiguous()
    return (rows, case["temperature"], case["seeds"], case["positions"])


@pytest.mark.parametrize("vocab", [1, TILE, TILE + 1, 32320, 129280])
def test_statistics_and_draws(vocab):
    for seed in range(6):
        rows, heat, seeds, positions = rows_of(seed, vocab)
        agree("row_statistics", rows, heat)
        tile_max, tile_sum, _ = torch.ops.dspark_ext.row_statistics(rows, heat)
        common = (tile_max, tile_sum, heat, seeds, positions, seed)
        for begin in range(0, tile_max.shape[1], 7):
            agree("draw_shard", rows[:, begin * TILE : (begin + 7) * TILE], begin, *common)


def test_an_invalid_temperature_stops_its_row_only():
    rows, heat, seeds, positions = rows_of(2, 9000)
    heat[3] = float("nan")
    valid = torch.arange(len(heat)) != 3
    moved_rows, moved_heat = there((rows, heat))
    statistics = torch.ops.dspark_ext.row_statistics(moved_rows, moved_heat)
    want = torch.ops.dspark_ext.row_statistics(rows[valid], heat[valid])
    assert same_bits(tuple(x.cpu()[valid] for x in statistics), want)
    assert (statistics[1][3] == 0).all()
    numbers = there((seeds, positions))
    drawn = torch.ops.dspark_ext.draw_shard(
        moved_rows, 0, *statistics[:2], moved_heat, *numbers, 0
    ).cpu()
    expected = torch.ops.dspark_ext.draw_shard(
        rows[valid], 0, *want[:2], heat[valid], seeds[valid], positions[valid], 0
    )
    assert drawn[3] == -1 and torch.equal(drawn[valid], expected)


def test_replay_with_other_rows():
    rows, heat, seeds, positions = there(rows_of(0, 9000))

    def call():
        found = torch.ops.dspark_ext.row_statistics(rows, heat)
        return (*found, torch.ops.dspark_ext.draw_shard(
            rows, 0, *found[:2], heat, seeds, positions, 2
        ))  # fmt: skip

    graph, out = capture(call)
    for seed in (3, 6, 9):  # of the same dtype
        for mine, fresh in zip((rows, heat, seeds, positions), rows_of(seed, 9000), strict=True):
            mine.copy_(fresh)
        for x in out:
            x.view(torch.uint8).fill_(0x7F)
        graph.replay()
        fresh = rows_of(seed, 9000)
        want = torch.ops.dspark_ext.row_statistics(*fresh[:2])
        token_ids = torch.ops.dspark_ext.draw_shard(fresh[0], 0, *want[:2], *fresh[1:], 2)
        assert same_bits(out, (*want, token_ids))


@pytest.mark.parametrize("world", [1, 2, 4])
def test_processes_draft_what_one_drafts(world, tmp_path):
    """MarkovShards over NCCL or RCCL: the CPU's bits, without synchronisation, and replayed."""
    if torch.cuda.device_count() < world:
        pytest.skip(f"needs {world} GPUs")
    found = shard_groups.run_group(world, tmp_path)
    for name, case in shard_groups.cases().items():
        want = torch.ops.dspark_ext.markov_sample(*case.values())
        for results in found:
            begin, width = results[name]["columns"]
            mine = (want[0], want[1][:, :, begin : begin + width], *want[2:])
            assert same_bits(results[name]["output"], mine), name
            assert same_bits(results[name]["replayed"], mine), name
