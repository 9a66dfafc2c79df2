"""The padded layout of dspark_ext.verify.pack: as many rows for every request."""

from types import SimpleNamespace

import pytest
import torch
from kit import starts

from dspark_ext import sampling, verify
from dspark_ext.reference import verify as reference


def random_round(batch, width, seed, rows_per_request, spare=3):
    generator = torch.Generator().manual_seed(seed)
    most = min(width, rows_per_request - 1)
    lens = torch.randint(0, most + 1, (batch,), generator=generator).int()
    begin = starts(lens.tolist())
    return SimpleNamespace(
        plan=verify.Schedule(lens, begin, begin[-1].clone(), torch.tensor(0.0)),
        anchor=torch.randint(0, 1000, (batch,), generator=generator),
        drafts=torch.randint(-1, 1000, (batch, width), generator=generator),
        seq_lens=torch.randint(0, 90, (batch,), generator=generator),
        max_rows=batch * rows_per_request + spare,
        generator=generator,
    )


def pack(it, rows_per_request, **arguments):
    return verify.pack(
        it.anchor,
        it.drafts,
        it.seq_lens,
        it.plan,
        max_rows=it.max_rows,
        rows_per_request=rows_per_request,
        **arguments,
    )


SHAPES = [(0, 5, 6), (1, 0, 1), (3, 5, 6), (7, 5, 3), (4, 2, 9), (33, 16, 17)]


@pytest.mark.parametrize(("batch", "width", "rows"), SHAPES, ids=lambda n: str(n))
def test_equals_the_reference(batch, width, rows):
    it = random_round(batch, width, batch, rows)
    packed = pack(it, rows)
    expected = reference.pack(
        it.anchor, it.drafts, it.seq_lens, it.plan, max_rows=it.max_rows, rows_per_request=rows
    )
    for name in expected._fields:
        mine, theirs = getattr(packed, name), getattr(expected, name)
        assert mine.dtype == theirs.dtype and torch.equal(mine, theirs), name

    values = torch.randn(it.max_rows, 3, generator=it.generator)
    block = verify.unpack(values, packed, -1)
    assert torch.equal(block, reference.unpack(values, it.plan, width, -1, rows))

    emitted = 1 + (torch.rand(batch, generator=it.generator) * (it.plan.verify_lens + 1)).int()
    emitted = torch.minimum(emitted, it.plan.verify_lens + 1).int()
    output = SimpleNamespace(num_emitted=emitted, last_token=it.anchor + 1)
    after = verify.commit(output, packed, it.seq_lens)
    theirs = reference.commit(emitted, output.last_token, it.seq_lens, it.plan, it.max_rows, rows)
    for mine, their in zip(after, theirs):
        assert mine.dtype == their.dtype and torch.equal(mine, their)


def test_by_hand():
    begin = starts([2, 0, 1])
    plan = verify.Schedule(torch.tensor([2, 0, 1]).int(), begin, begin[-1], torch.tensor(0.0))
    packed = verify.pack(
        torch.tensor([10, 20, 30]),
        torch.tensor([[11, 12, 13], [21, 22, 23], [31, 32, 33]]),
        torch.tensor([3, 8, 0]),
        plan,
        max_rows=10,
        rows_per_request=3,
    )
    assert packed.input_ids.tolist() == [10, 11, 12, 20, 0, 0, 30, 31, 0, 0]
    assert packed.positions.tolist() == [3, 4, 5, 8, 0, 0, 0, 1, 0, 0]
    assert packed.request_ids.tolist() == [0, 0, 0, 1, -1, -1, 2, 2, -1, -1]
    assert packed.slot_mapping.tolist() == [3, 4, 5, 8, -1, -1, 0, 1, -1, -1]
    assert packed.sample_rows.tolist() == [0, 1, 2, 3, 6, 7, 0, 0, 0, 0]
    output = SimpleNamespace(
        num_emitted=torch.tensor([2, 1, 2]).int(), last_token=torch.tensor([5, 6, 7])
    )
    after = verify.commit(output, packed, torch.tensor([3, 8, 0]))
    assert after.row_kept.int().tolist() == [1, 1, 0, 1, 0, 0, 1, 1, 0, 0]
    assert after.num_rejected.tolist() == [1, 0, 0] and after.seq_lens.tolist() == [5, 9, 2]


def test_without_gaps_the_sample_rows_are_the_rows():
    it = random_round(5, 4, 2, 5)
    packed = verify.pack(it.anchor, it.drafts, it.seq_lens, it.plan, max_rows=it.max_rows)
    live = int(it.plan.num_rows)
    assert packed.rows_per_request == 0
    assert packed.sample_rows[:live].tolist() == list(range(live))
    assert packed.sample_rows[live:].eq(0).all()


@pytest.mark.parametrize("lens", [[5, 5, 5, 5, 5, 5, 4, 0], [3, 0, 1]], ids=str)
def test_br025_br030_the_layout_does_not_change_the_tokens(lens):
    """Ragged rows, padded rows and one call per request: the same tokens."""
    vocab, width, batch = 64, 5, len(lens)
    generator = torch.Generator().manual_seed(len(lens))
    rows = torch.randn(sum(n + 1 for n in lens), vocab, generator=generator) * 2
    drafts = torch.randint(0, vocab, (batch, width), generator=generator)
    begin = starts(lens)
    law = {"temperature": 0.8, "seeds": torch.arange(batch), "positions": torch.arange(batch) * 9}
    ragged = sampling.rejection_sample(rows, drafts, query_start_loc=begin, **law)

    plan = verify.Schedule(torch.tensor(lens).int(), begin, begin[-1], torch.tensor(0.0))
    packed = verify.pack(
        drafts[:, 0], drafts, law["positions"], plan, max_rows=batch * 6, rows_per_request=6
    )
    of_pass = torch.full((batch * 6, vocab), float("nan"))
    live = packed.request_ids >= 0
    of_pass[live] = rows  # rows of a request stay in order
    again = sampling.rejection_sample(
        of_pass[packed.sample_rows], drafts, query_start_loc=begin, **law
    )
    for name in ("token_ids", "num_accepted", "last_token", "status"):
        assert torch.equal(getattr(ragged, name), getattr(again, name)), name
    for b, n in enumerate(lens):
        alone = sampling.rejection_sample(
            rows[int(begin[b]) : int(begin[b + 1])],
            drafts[b : b + 1],
            query_start_loc=starts([n]),
            **{k: v if k == "temperature" else v[b : b + 1] for k, v in law.items()},
        )
        assert torch.equal(alone.token_ids[0], ragged.token_ids[b])


def test_errors_name_operator_and_argument():
    it = random_round(3, 4, 5, 5)
    it.plan = it.plan._replace(
        verify_lens=torch.tensor([4, 1, 0]).int(), query_start_loc=starts([4, 1, 0])
    )
    with pytest.raises(ValueError, match=r"dspark_ext\.pack: rows_per_request"):
        pack(it, 0)
    with pytest.raises(RuntimeError, match=r"dspark_ext\.pack: rows_per_request.*got 5"):
        pack(it, 4)
    it.max_rows = 14
    with pytest.raises(RuntimeError, match=r"dspark_ext\.pack: max_rows"):
        pack(it, 5)


def test_opcheck():
    it = random_round(3, 4, 11, 5)
    plan = it.plan
    torch.library.opcheck(
        torch.ops.dspark_ext.pack.default,
        (it.anchor, it.drafts, it.seq_lens, plan.verify_lens, plan.query_start_loc)
        + (it.max_rows, None, 0, 5),
    )
    for rows_per_request in (0, 5):
        values = torch.randn(it.max_rows, 7, dtype=torch.bfloat16)
        torch.library.opcheck(
            torch.ops.dspark_ext.unpack.default,
            (values, values.new_zeros(()), plan.query_start_loc, 4, rows_per_request),
        )
