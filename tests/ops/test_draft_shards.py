"""Vocabularies spread over processes: the same ids, logits and statistics as in one, to the bit."""

import pytest
import torch
from draft_inputs import HEADS, bits, head, sample
from shard_processes import cases, run_group

from dspark_ext import draft

TILE = 4096
CASES = cases()


@pytest.fixture(scope="module", params=[2, 4], ids=lambda n: f"processes={n}")
def group(request, tmp_path_factory):
    return run_group(request.param, tmp_path_factory.mktemp("group"))


@pytest.mark.parametrize("name", CASES)
def test_equals_one_process(name, group):
    it, _, options, _ = CASES[name]
    expected = sample(it, **options)
    parts = [results[name] for results in group]
    for part in parts:
        ids, _, embeds, statistics = part["output"]
        assert torch.equal(ids, expected.token_ids)
        assert torch.equal(bits(embeds), bits(expected.prev_embed))
        for mine, whole in zip(statistics, expected.statistics):
            assert mine.dtype == whole.dtype and mine.shape == whole.shape
            assert torch.equal(bits(mine), bits(whole))
    logits = torch.cat([part["output"][1] for part in parts], -1)
    assert logits.dtype == expected.logits.dtype and logits.shape == expected.logits.shape
    assert torch.equal(bits(logits), bits(expected.logits))


def test_every_tile_has_one_holder(group):
    for name, (it, _, options, _) in CASES.items():
        begin = 0
        for results in group:
            assert results[name]["first"] == begin
            width = results[name]["width"]
            begin += width
            assert begin % TILE == 0 or begin == sample(it, **options).logits.shape[2]


def test_a_tile_across_a_border_is_held_where_it_begins(group):
    """V = 129280 over 4 processes: borders at 32320, 64640, 96960, no multiples of 4096."""
    if len(group) == 4:
        firsts = [results["released"]["first"] for results in group]
        assert firsts == [0, 32768, 65536, 98304]


def test_errors_name_the_argument(group):
    for results in group:
        messages = results["refusals"]
        expected = {
            "no vocabulary": "vocab_size",
            "d2t shape": "d2t",
            "outside": "d2t",
            "twice": "d2t",
            "negative": "shard_size",
            "no number": "shard_size",
            "negative on one": "shard_size",
            "nothing": "shard_size",
            "shape on one": "d2t",
            "d2t on one": "d2t",
            "base_logits": "base_logits",
            "method": "method",
            "num_drafts": "num_drafts",
        }
        assert messages.keys() == expected.keys()
        for name, word in expected.items():
            message = messages[name]
            assert message.startswith(f"dspark_ext.MarkovShards: {word}: "), message
            assert "expected" in message, message


# --- the operators, in one process ----------------------------------------------------------------


@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_steps_are_those_of_the_block(kind, dtype):
    """markov_logits, row_statistics, draw_shard one after the other: markov_sample, to the bit."""
    it = head(5, 4, 9000, 12, kind=kind, dtype=dtype)
    it.temperature[1] = 0
    whole = sample(it)
    previous, state = it.anchor, None
    for k in range(4):
        step = draft.markov_logits(
            it.base_logits[:, k],
            previous,
            it.w1,
            it.w2,
            head=kind,
            hidden=None if it.hidden is None else it.hidden[:, k],
            head_weight=it.head_weight,
            head_bias=it.head_bias,
            state=state,
            exact=True,
        )
        assert (step.state is None) == (kind != "rnn")
        statistics = draft.row_statistics(step.logits, it.temperature)
        previous = draft.draw_shard(
            step.logits, 0, statistics, seeds=it.seeds, positions=it.positions + k, slot=k
        )
        state = step.state
        assert torch.equal(bits(step.logits), bits(whole.logits[:, k]))
        assert torch.equal(step.prev_embed, whole.prev_embed[:, k])
        assert torch.equal(previous, whole.token_ids[:, k])
        for mine, theirs in zip(statistics, whole.statistics):
            assert torch.equal(bits(mine), bits(theirs[:, k]))


@pytest.mark.parametrize("bounds", [[0, 1, 2, 3], [0, 0, 3], [0, 3, 3], [0, 2, 3]], ids=str)
def test_exactly_one_holder_answers(bounds):
    it = head(200, 1, 2 * TILE + 77, 4, seed=2)
    it.temperature[::7] = 0
    it.base_logits[3] = -torch.inf
    rows = sample(it).logits[:, 0]
    statistics = draft.row_statistics(rows, it.temperature)
    answers = torch.stack(
        [
            draft.draw_shard(
                rows[:, a * TILE : b * TILE], a, statistics, seeds=it.seeds,
                positions=it.positions, slot=0,
            )
            for a, b in zip(bounds, bounds[1:])
        ]
    )  # fmt: skip
    assert torch.equal((answers >= 0).sum(0), torch.ones(200, dtype=torch.int64))
    assert torch.equal(answers.max(0).values, sample(it).token_ids[:, 0])


def test_errors_of_the_operators():
    rows, heat = torch.zeros(2, 5000), torch.ones(2)
    statistics = draft.row_statistics(rows, heat)
    common = {"seeds": 0, "positions": 0, "slot": 0}
    w1, w2, anchor = torch.zeros(9, 4), torch.zeros(5, 4), torch.zeros(2, dtype=torch.int64)
    attempts = {
        "row_statistics: temperature": lambda: draft.row_statistics(rows, torch.ones(3)),
        "row_statistics: temperature: expected finite": lambda: draft.row_statistics(rows, -1.0),
        "row_statistics: logits": lambda: draft.row_statistics(rows.double(), heat),
        "draw_shard: first_tile": lambda: draft.draw_shard(rows, 1, statistics, **common),
        "draw_shard: logits: expected whole": lambda: draft.draw_shard(
            rows[:, :100], 0, statistics, **common
        ),
        "draw_shard: slot": lambda: draft.draw_shard(
            rows, 0, statistics, **{**common, "slot": -1}
        ),
        "draw_shard: tile_max": lambda: draft.draw_shard(
            rows, 0, statistics._replace(tile_max=torch.zeros(3, 2)), **common
        ),
        "draw_shard: tile_sum": lambda: draft.draw_shard(
            rows, 0, statistics._replace(tile_sum=torch.zeros(2, 2).double()), **common
        ),
        "markov_logits: state": lambda: draft.markov_logits(
            torch.zeros(2, 5), anchor, w1, w2, state=torch.zeros(2, 4)
        ),
        "markov_logits: state: expected shape": lambda: draft.markov_logits(
            torch.zeros(2, 5), anchor, w1, w2, head="rnn", hidden=torch.zeros(2, 3),
            head_weight=torch.zeros(12, 11), state=torch.zeros(2, 5),
        ),
        "markov_logits: anchor": lambda: draft.markov_logits(
            torch.zeros(2, 5), anchor + 9, w1, w2
        ),
        "markov_logits: w2": lambda: draft.markov_logits(torch.zeros(2, 6), anchor, w1, w2),
        "markov_logits: base_logits: expected shape [B, V_draft], got [2, 1, 5]": lambda: (
            draft.markov_logits(torch.zeros(2, 1, 5), anchor, w1, w2)
        ),
        "markov_logits: hidden: expected shape [B, d], got [2, 1, 3]": lambda: (
            draft.markov_logits(
                torch.zeros(2, 5), anchor, w1, w2, head="gated", hidden=torch.zeros(2, 1, 3),
                head_weight=torch.zeros(4, 7),
            )
        ),
        "row_statistics: logits: expected shape [N, V], got []": lambda: (
            draft.row_statistics(torch.tensor(1.0), heat)
        ),
        "draw_shard: logits: expected shape [N, width], got []": lambda: (
            draft.draw_shard(torch.tensor(1.0), 0, statistics, **common)
        ),
    }  # fmt: skip
    for words, attempt in attempts.items():
        with pytest.raises(RuntimeError) as error:
            attempt()
        assert f"dspark_ext.{words}" in str(error.value)


def test_opcheck():
    it = head(2, 1, 40, 4, kind="rnn")
    state = torch.zeros(2, 4)
    torch.library.opcheck(
        torch.ops.dspark_ext.markov_logits.default,
        (it.base_logits, it.anchor, it.w1, it.w2, "rnn", it.hidden, it.head_weight)
        + (it.head_bias, state, True),
    )
    rows, heat = torch.randn(2, 40), torch.ones(2)
    torch.library.opcheck(torch.ops.dspark_ext.row_statistics.default, (rows, heat))
    statistics = draft.row_statistics(rows, heat)
    torch.library.opcheck(
        torch.ops.dspark_ext.draw_shard.default,
        (rows, 0, statistics.tile_max, statistics.tile_sum, heat, it.seeds, it.positions, 0),
    )
