"""What a head remembers: only what was appended, whatever came with it and in which order."""

import re

import draft_heads
import pytest
import torch

from dspark_ext import draft_head
from dspark_ext.draft_head import ContextState

CONFIGS = {name: draft_heads.CONFIGS[name] for name in ("v41", "v4", "qwen3", "gemma4-k=v")}
LONG = 17  # positions, more than window + rollback
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(params=CONFIGS)
def head(request):
    return draft_heads.make(CONFIGS[request.param])


def rows(head, slot, position, seed_anchor=11):
    return draft_heads.hidden(head, [seed_anchor], [position], [slot])


def alone(config, count, request):
    """Rows of a request in a head of its own, appended at once."""
    head = draft_heads.make(config)
    draft_heads.fill(head, 0, count, seed=request)
    return rows(head, 0, count)


def test_chunks_do_not_matter(head):
    whole = alone(head.config, LONG, 1)
    for chunk in (1, 2, 5, 7):
        for start in range(0, LONG, chunk):
            draft_heads.fill(head, 3, min(start + chunk, LONG), start=start)
        torch.testing.assert_close(rows(head, 3, LONG), whole, **CLOSE)


def test_ragged_batches_in_any_order(head):
    """Three requests of different lengths, their rows mixed up within each call."""
    counts, slots = [LONG, 4, 9], [5, 0, 2]
    generator = torch.Generator().manual_seed(3)
    for start in range(0, LONG, 6):
        parts = []
        for request, (count, slot) in enumerate(zip(counts, slots)):
            positions = torch.arange(start, max(start, min(start + 6, count)))
            features = draft_heads.features(head.config, count, seed=request)[positions]
            parts.append((features, positions, torch.full_like(positions, slot)))
        mixed = [torch.cat(values) for values in zip(*parts)]
        order = torch.randperm(len(mixed[1]), generator=generator)
        head.append(*(values[order] for values in mixed))
    together = draft_heads.hidden(head, [11] * 3, counts, slots)
    for request, count in enumerate(counts):
        one = alone(head.config, count, request)
        torch.testing.assert_close(together[request : request + 1], one, **CLOSE)
    backwards = draft_heads.hidden(head, [11] * 3, counts[::-1], slots[::-1])
    torch.testing.assert_close(backwards.flip(0), together, **CLOSE)


def test_a_chunk_longer_than_the_ring_in_reverse(head):
    count = 3 * LONG - 20
    backwards = torch.arange(count - 1, -1, -1)
    rows_back = draft_heads.features(head.config, count, seed=1)[backwards]
    head.append(rows_back, backwards, torch.full_like(backwards, 3))
    torch.testing.assert_close(rows(head, 3, count), alone(head.config, count, 1), **CLOSE)


def test_the_same_calls_give_the_same_bits(head):
    again = draft_heads.make(head.config)
    for each in (head, again):
        draft_heads.fill(each, 1, LONG, seed=1)
        draft_heads.fill(each, 4, 6, seed=2)
    first, second = (
        draft_heads.draft(each, [11, 12], [LONG, 6], [1, 4], seeds=torch.tensor([3, 4]))
        for each in (head, again)
    )
    assert torch.equal(first.token_ids, second.token_ids)
    assert torch.equal(first.logits, second.logits)
    assert torch.equal(first.confidence, second.confidence)


def test_the_rows_of_a_block_leave_nothing_behind(head):
    draft_heads.fill(head, 1, 9)
    before = {name: value.clone() for name, value in head.context.named_buffers()}
    for _ in range(2):
        draft_heads.draft(head, [11], [9], [1], num_drafts=8)
    for name, value in head.context.named_buffers():
        assert torch.equal(value, before[name]), name


def test_rejected_and_padding_rows_write_nothing(head):
    draft_heads.fill(head, 1, 9)
    clean = rows(head, 1, 9)
    noise = torch.full((4, head.config.num_features), float("nan"))
    head.append(noise, torch.tensor([9, 10, 11, 0]), torch.tensor([-1, -1, -1, -1]))
    assert torch.equal(rows(head, 1, 9), clean)
    assert head.context.lengths.tolist() == [0, 9, 0, 0, 0, 0]


def test_a_padding_request_among_others(head):
    draft_heads.fill(head, 1, 9)
    noise = torch.full((1, head.config.num_features), float("nan"))
    head.append(noise, torch.tensor([0]), torch.tensor([-1]))
    both = draft_heads.draft(head, [11, 0], [9, 0], [1, -1])
    assert both.logits.isfinite().all()
    empty = draft_heads.hidden(head, [0], [0], [0])  # slot 0 has no context
    padded = draft_heads.hidden(head, [0], [0], [-1])
    torch.testing.assert_close(padded, empty, **CLOSE)


def test_rollback_equals_never_having_appended(head):
    for keep in (LONG, LONG - 1, LONG - 4):
        draft_heads.fill(head, 2, LONG, seed=1)
        head.truncate(torch.tensor([2]), torch.tensor([keep]))
        assert head.context.lengths[2] == keep
        torch.testing.assert_close(rows(head, 2, keep), alone(head.config, keep, 1), **CLOSE)
        draft_heads.fill(head, 2, LONG, seed=1, start=keep)  # and going on
        torch.testing.assert_close(rows(head, 2, LONG), alone(head.config, LONG, 1), **CLOSE)


def test_appending_earlier_takes_back_what_was_there(head):
    """The tokens of another branch replace those from their position on."""
    draft_heads.fill(head, 2, LONG, seed=1)
    start = LONG - 3
    head.append(
        draft_heads.features(head.config, LONG, seed=9)[start : start + 1],
        torch.tensor([start]),
        torch.tensor([2]),
    )
    other = draft_heads.make(head.config)
    draft_heads.fill(other, 0, start, seed=1)
    other.append(
        draft_heads.features(head.config, LONG, seed=9)[start : start + 1],
        torch.tensor([start]),
        torch.tensor([0]),
    )
    torch.testing.assert_close(rows(head, 2, start + 1), rows(other, 0, start + 1), **CLOSE)


def test_a_slot_is_used_again_by_a_shorter_request(head):
    draft_heads.fill(head, 2, LONG, seed=1)
    draft_heads.fill(head, 2, 3, seed=8)
    assert head.context.lengths[2] == 3
    torch.testing.assert_close(rows(head, 2, 3), alone(head.config, 3, 8), **CLOSE)


def test_too_much_rolled_back_is_an_error_where_a_window_forgets():
    head = draft_heads.make(CONFIGS["v41"], max_rollback=4)
    draft_heads.fill(head, 2, LONG)
    with pytest.raises(ValueError, match=r"truncate: slot 2 needs positions 6\.\.11 at length 12"):
        head.truncate(torch.tensor([2]), torch.tensor([LONG - 5]))
    assert head.context.lengths[2] == LONG
    with pytest.raises(ValueError, match="lengths: expected 0..17 for slot 2, got 18"):
        head.truncate(torch.tensor([2]), torch.tensor([18]))
    dense = draft_heads.make(CONFIGS["qwen3"])
    draft_heads.fill(dense, 2, LONG)
    dense.truncate(torch.tensor([2]), torch.tensor([1]))
    torch.testing.assert_close(rows(dense, 2, 1), alone(dense.config, 1, 1), **CLOSE)


def test_a_window_needs_the_end_of_a_prompt_only():
    head = draft_heads.make(CONFIGS["v41"])
    draft_heads.fill(head, 2, LONG, start=LONG - head.config.window)
    torch.testing.assert_close(rows(head, 2, LONG), alone(head.config, LONG, 1), **CLOSE)
    with pytest.raises(ValueError, match="expected consecutive ones from at most 17 for slot 2"):
        draft_heads.fill(head, 2, 25, start=20)


def test_nothing_of_an_earlier_request_is_left_before_a_gap():
    head = draft_heads.make(CONFIGS["v41"])
    draft_heads.fill(head, 2, LONG - 1, seed=7)
    head.truncate(torch.tensor([2]), torch.tensor([0]))
    draft_heads.fill(head, 2, LONG, start=LONG - head.config.window)
    with pytest.raises(ValueError, match="has given up 10..10"):
        head.truncate(torch.tensor([2]), torch.tensor([LONG - 1]))


def test_an_anchor_whose_context_is_missing_is_refused(head):
    draft_heads.fill(head, 2, 5)
    with pytest.raises(ValueError, match="positions: expected 0..5 for slot 2 .*, got 6"):
        draft_heads.draft(head, [11], [6], [2])
    with pytest.raises(ValueError, match="draft: slot: expected 0..5, got 6"):
        draft_heads.draft(head, [11], [0], [6])
    with pytest.raises(RuntimeError, match="allocate_context has not been called"):
        head.context = None
        draft_heads.draft(head, [11], [5], [2])


@pytest.mark.parametrize(
    "positions,slots,words",
    [
        ([1], [0], "expected consecutive ones from at most 0 for slot 0, got 1 rows in 1..1"),
        ([0, 2], [0, 0], "expected consecutive ones .* got 2 rows in 0..2"),
        ([0, 0], [0, 0], "expected consecutive ones .* got 2 rows in 0..0"),
        ([0, 0, 2], [0, 0, 0], "positions: expected each position of a slot once"),
        ([0, 1, 0, 0, 2], [0, 0, 1, 1, 1], "positions: expected each position of a slot once"),
        ([[0]], [[0]], r"append: positions: expected int64 \[1\], got int64 \[1, 1\]"),
        ([0, 1], [0], r"append: slots: expected int64 \[2\], got int64 \[1\]"),
        ([0.0], [0], r"append: positions: expected int64 \[1\], got float32 \[1\]"),
        ([40], [0], r"positions: expected 0..39, got 40..40"),
        ([-1], [0], r"positions: expected 0..39, got -1..-1"),
        ([0], [6], r"append: slot: expected 0..5, got 6"),
    ],
)
def test_rows_that_cannot_be_are_refused(positions, slots, words):
    head = draft_heads.make(CONFIGS["qwen3"])
    features = torch.zeros(len(positions), head.config.num_features)
    with pytest.raises(ValueError, match=words):
        head.append(features, torch.tensor(positions), torch.tensor(slots))


def test_lengths_for_other_slots_are_refused(head):
    draft_heads.fill(head, 0, 3)
    with pytest.raises(ValueError, match=r"truncate: lengths: expected int64 \[2\], got int64"):
        head.truncate(torch.tensor([0, 1]), torch.tensor([1]))
    assert head.context.lengths.tolist() == [3, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "anchor,positions,slots,words",
    [
        ([-1], [5], [2], r"anchor: expected ids in \[0, 37\), got -1"),
        ([37], [5], [2], r"anchor: expected ids in \[0, 37\), got 37"),
        ([[1]], [[5]], [[2]], r"anchor: expected int64 \[B=1\], got int64 \[1, 1\]"),
        ([1], [5, 5], [2], r"positions: expected int64 \[B=1\], got int64 \[2\]"),
        ([1], [5], [2, 2], r"slots: expected int64 \[B=1\], got int64 \[2\]"),
    ],
)
def test_requests_that_cannot_be_are_refused(head, anchor, positions, slots, words):
    draft_heads.fill(head, 2, 5)
    with pytest.raises(ValueError, match="dspark_ext.draft_head: draft: " + words):
        draft_heads.draft(head, anchor, positions, slots)


def test_no_requests_get_no_drafts(head):
    block = draft_heads.draft(head, [], [], [])
    assert block.token_ids.shape == (0, 5) and block.logits.shape == (0, 5, 37)


def test_a_context_needs_its_target_and_sizes():
    head = draft_head.make_draft_head(CONFIGS["v41"])
    with pytest.raises(RuntimeError, match="allocate_context: bind_target has not been called"):
        head.allocate_context(2, 10)
    head = draft_heads.make(CONFIGS["v41"])
    for name in ("max_requests", "max_len", "max_rollback"):
        sizes = {"max_requests": 2, "max_len": 10, name: -1}
        with pytest.raises(ValueError, match=f"allocate_context: {name}: expected at least 0"):
            head.allocate_context(**sizes)


def test_features_of_another_width_are_refused(head):
    with pytest.raises(ValueError, match="append: features: expected"):
        head.append(torch.zeros(1, 3), torch.tensor([0]), torch.tensor([0]))


@pytest.mark.parametrize("name", ["qwen3", "qwen3-1+K", "qwen3-reduced", "gemma4"])
def test_dense_heads_read_no_device_value(name):
    """On the meta device, which has no values to read."""
    config = draft_heads.CONFIGS[name]
    head = draft_head.make_draft_head(config, dtype=torch.bfloat16, device="meta")
    with torch.device("meta"):
        size = (config.vocab_size, config.hidden_size)
        head.bind_target(torch.empty(size), torch.empty(size))
        head.allocate_context(4, 30)
        rows = torch.zeros(6, dtype=torch.int64)
        head.append(torch.empty(6, config.num_features), rows, rows)
        made = head.draft(
            rows[:3], rows[:3], rows[:3], temperature=torch.ones(3), seeds=rows[:3], num_drafts=7
        )
    assert made.token_ids.shape == (3, 7) and made.logits.shape == (3, 7, config.vocab_size)
    with pytest.raises(NotImplementedError):
        head.truncate(rows[:1], rows[:1])


# --- hand-over ---


def hand_over(head, count, tmp_path=None):
    draft_heads.fill(head, 4, count)
    state = head.export_state(4)
    if tmp_path is not None:
        state.save(tmp_path / "state.safetensors")
        state = ContextState.load(tmp_path / "state.safetensors")
    return state


@pytest.mark.parametrize("count", [0, 1, 5, LONG])
def test_export_and_import_equal_continuing(head, count, tmp_path):
    other = draft_heads.make(head.config, max_requests=2, max_len=60, max_rollback=9)
    draft_heads.fill(other, 1, 30, seed=7)  # somebody else was there
    other.import_state(1, hand_over(head, count, tmp_path))
    assert other.context.lengths.tolist() == [0, count]
    torch.testing.assert_close(rows(other, 1, count), rows(head, 4, count), **CLOSE)
    for each, slot in ((head, 4), (other, 1)):
        draft_heads.fill(each, slot, count + 3, start=count)
    torch.testing.assert_close(rows(other, 1, count + 3), rows(head, 4, count + 3), **CLOSE)


def test_a_windowed_state_is_as_long_as_the_window():
    head = draft_heads.make(CONFIGS["v41"])
    state = hand_over(head, LONG)
    assert state.positions.tolist() == list(range(LONG - head.config.window, LONG))
    assert state.tensors["kv"].shape == (3, 6, 12) and state.length == LONG


def test_an_import_leaves_nothing_of_who_was_there():
    """Rolling back behind the imported window fails instead of finding the other's positions."""
    head = draft_heads.make(CONFIGS["v41"])
    draft_heads.fill(head, 0, LONG - 1, seed=7)
    head.import_state(0, hand_over(head, LONG))
    with pytest.raises(ValueError, match="has given up 10..10"):
        head.truncate(torch.tensor([0]), torch.tensor([LONG - 1]))


def broken(state, **changes):
    return ContextState({**state.header, **changes}, state.positions, dict(state.tensors))


@pytest.mark.parametrize(
    "field,value",
    [
        ("format", "dspark_ext.draft_context.v0"),
        ("flavour", "qwen3"),
        ("num_layers", "2"),
        ("entries", '{"kv": [16]}'),
        ("dtype", "bfloat16"),
        ("window", "null"),
    ],
)
def test_a_state_of_something_else_names_the_field(field, value):
    head = draft_heads.make(CONFIGS["v41"])
    state = hand_over(head, LONG)
    words = f"import_state: {field}: expected .*, got {re.escape(value)}"
    with pytest.raises(ValueError, match=words):
        head.import_state(0, broken(state, **{field: value}))
    del state.header[field]
    with pytest.raises(ValueError, match=f"import_state: {field}: expected .*, got None"):
        head.import_state(0, state)
    assert head.context.lengths[0] == 0


def test_a_state_with_holes_is_refused():
    head = draft_heads.make(CONFIGS["v41"])
    for change in (
        lambda s: setattr(s, "positions", s.positions + torch.tensor([0, 0, 0, 0, 0, 1])),
        lambda s: setattr(s, "positions", s.positions[1:]),
        lambda s: setattr(s, "positions", s.positions.int()),
        lambda s: setattr(s, "positions", s.positions - 2**62),
        lambda s: setattr(s, "positions", s.positions + 2**62),
    ):
        state = hand_over(head, LONG)
        change(state)
        with pytest.raises(ValueError, match="import_state: positions: expected"):
            head.import_state(0, state)
    state = hand_over(head, LONG)
    state.tensors["kv"] = state.tensors["kv"][:, 1:]
    with pytest.raises(ValueError, match=r"tensors\['kv'\]: expected float32 \[3, 6, 12\], got"):
        head.import_state(0, state)
    state = hand_over(head, LONG)
    state.tensors["extra"] = torch.zeros(1)
    with pytest.raises(ValueError, match=r"tensors: expected \['kv'\], got \['extra', 'kv'\]"):
        head.import_state(0, state)


def test_a_state_longer_than_the_slots_is_refused():
    head = draft_heads.make(CONFIGS["qwen3"])
    small = draft_heads.make(CONFIGS["qwen3"], max_len=10)
    with pytest.raises(ValueError, match="positions: expected at most max_len 10, got 17"):
        small.import_state(0, hand_over(head, LONG))
    with pytest.raises(ValueError, match="import_state: slot: expected 0..5, got 6"):
        head.import_state(6, hand_over(head, LONG))
