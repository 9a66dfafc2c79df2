"""The statistics that markov_sample returns: what draws is what is kept, and what verification
finds in the rows."""

import pytest
import torch
from draft_inputs import HEADS, bits, check_block, expected_statistics, head, sample

from dspark_ext import draft, sampling
from dspark_ext.reference import numerics

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TILE = 4096


def law_of_statistics(logits, statistics, b, k):
    """p over one row kept, from its statistics alone: docs/numerics.md sections 2 and 3."""
    heat = float(statistics.temperature[b, k])
    law = numerics.row_statistics(logits[b, k].float().numpy(), heat)
    tile_max = [float(m) for m in statistics.tile_max[b, k]]
    maximum = max(tile_max)
    scales = [numerics.exp2_double((m - maximum) * law.c) for m in tile_max]
    sums = [float(s) for s in statistics.tile_sum[b, k]]
    law.tile_scale, law.maximum = scales, maximum
    law.total = numerics.add_in_order(s * e for s, e in zip(sums, scales))
    return torch.from_numpy(law.probabilities())


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_q_of_the_verifier_is_the_q_of_the_statistics(dtype, kind):
    it = head(2, 3, 9000, 12, kind=kind, dtype=dtype, seed=6)
    output = sample(it)
    assert output.statistics.tile_max.shape == (2, 3, 3)
    for b in range(2):
        heat = it.temperature[b].expand(3).contiguous()
        judged = sampling.target_probs(output.logits[b], temperature=heat)
        for k in range(3):
            own = law_of_statistics(output.logits, output.statistics, b, k)
            assert torch.equal(judged[k], own.float())


@pytest.mark.parametrize("vocab", [1, 255, 4095, 4096, 4097, 8192, 12289], ids=lambda v: f"V={v}")
def test_every_vocabulary(vocab):
    it = head(3, 2, vocab, 4, dtype=torch.bfloat16, seed=vocab)
    it.temperature[1] = 0
    output = sample(it)
    assert output.statistics.tile_sum.shape[-1] == -(-vocab // TILE)
    check_block(it, output)


def test_types_and_places():
    statistics = sample(head(2, 3, 20, 4)).statistics
    types = [torch.float32, torch.float32, torch.float32, torch.uint8]
    assert [tensor.dtype for tensor in statistics] == types
    assert statistics._fields == ("temperature", "tile_max", "tile_sum", "tile_nan")
    assert statistics.temperature.shape == (2, 3)
    assert all(tensor.shape == (2, 3, 1) for tensor in statistics[1:])


@pytest.mark.parametrize("method", ["probabilistic", "greedy"])
def test_greedy_rows_have_no_sums(method):
    """Temperature 0 (and -0.0), or method greedy: temperature 0.0 and sums of 0 are returned."""
    it = head(4, 3, 5000, 8)
    it.temperature[1], it.temperature[2] = 0.0, -0.0
    output = sample(it, method=method)
    greedy = torch.tensor([method == "greedy", True, True, method == "greedy"])
    heat = output.statistics.temperature
    assert torch.equal((heat == 0).all(1), greedy) and not bool(heat.signbit().any())
    assert torch.equal((output.statistics.tile_sum == 0).all(-1).all(-1), greedy)
    check_block(it, output, method=method)


def test_nan_and_empty_tiles_show():
    it = head(3, 2, 3 * TILE, 4)
    it.base_logits[0, 0, TILE + 7] = float("nan")
    it.base_logits[1, 1, : 2 * TILE] = -torch.inf
    it.base_logits[2, 0] = -torch.inf
    it.base_logits[2, 1, 2 * TILE] = torch.inf
    output = sample(it)
    statistics = output.statistics
    assert statistics.tile_nan[0, 0].tolist() == [0, 1, 0] and int(statistics.tile_nan.sum()) == 1
    assert statistics.tile_max[1, 1, :2].tolist() == [-torch.inf] * 2
    assert statistics.tile_sum[1, 1, :2].tolist() == [0.0, 0.0]
    assert statistics.tile_max[2, 0].tolist() == [-torch.inf] * 3
    assert float(statistics.tile_max[2, 1, 2]) == torch.finfo(torch.float32).max
    check_block(it, output)


def test_a_reduced_vocabulary_has_tiles_of_the_target():
    it = head(2, 2, 300, 8, target=3 * TILE, seed=1)
    output = sample(it)
    assert output.statistics.tile_max.shape == (2, 2, 3)
    check_block(it, output)
    it.d2t = torch.arange(300) * 0 + TILE  # all of them in the second tile
    it.w1 = torch.randn(3 * TILE, 8)
    statistics = sample(it).statistics
    assert bool((statistics.tile_max[..., [0, 2]] == -torch.inf).all())
    assert bool((statistics.tile_sum[..., [0, 2]] == 0).all())
    assert bool((statistics.tile_sum[..., 1] >= 1).all())


def test_statistics_are_those_of_the_row_alone():
    """Recomputed from the logits, without anything of the block."""
    it = head(4, 3, 5000, 16, kind="rnn", dtype=torch.bfloat16)
    it.temperature[2] = 0
    output = sample(it)
    expected = expected_statistics(output.logits, output.statistics.temperature)
    for a, b in zip(output.statistics, expected):
        assert torch.equal(bits(a), bits(b))


@pytest.mark.parametrize(("batch", "steps"), [(0, 3), (2, 0), (0, 0)])
@pytest.mark.parametrize("kind", HEADS)
def test_nothing_to_draft(kind, batch, steps):
    output = sample(head(batch, steps, 20, 4, kind=kind))
    assert output.statistics.temperature.shape == (batch, steps)
    assert output.statistics.tile_max.shape == (batch, steps, 1)
    assert output.logits.shape == (batch, steps, 20)


def test_a_vocabulary_of_one_id():
    for kind in HEADS:
        it = head(3, 4, 1, 1, kind=kind, width=1)
        output = sample(it)
        assert output.token_ids.tolist() == [[0] * 4] * 3
        assert bool((output.statistics.tile_sum == 1).all())
        check_block(it, output)


def test_a_draft_vocabulary_without_ids():
    """Nothing can be drafted: rows of -inf, id 0."""
    output = draft.markov_sample(
        torch.zeros(2, 2, 0),
        torch.zeros(2, dtype=torch.int64),
        torch.ones(5, 3),
        torch.zeros(0, 3),
        temperature=1.0,
        seeds=0,
        positions=0,
        vocab_size=5,
    )
    assert bool((output.logits == -torch.inf).all()) and output.token_ids.tolist() == [[0, 0]] * 2
