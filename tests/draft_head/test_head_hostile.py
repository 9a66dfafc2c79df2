"""What users do to heads: no target bound, casts, other modes, slots twice, files that are torn."""

import copy
import pathlib

import checkpoints
import draft_heads
import pytest
import torch

from dspark_ext.draft_head import ContextState, load_draft_head, make_draft_head
from dspark_ext.engine import DSparkDrafter, HeadDrafter

CONFIGS = draft_heads.CONFIGS
TINY = pathlib.Path(__file__).parents[1] / "fixtures/tiny_drafter.safetensors"
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def without(directory, *names):
    checkpoints.edit(directory, lambda tensors: [tensors.pop(name) for name in names] and None)


@pytest.mark.parametrize("names", [["lm_head"], ["embed_tokens"], ["embed_tokens", "lm_head"]])
def test_a_head_without_its_target_does_not_draft(tmp_path, names):
    """torch would read the missing matrix from memory that nobody has written."""
    _, directory = checkpoints.saved(tmp_path, *checkpoints.HEADS["qwen3-bfloat16"])
    without(directory, *(f"{name}.weight" for name in names))
    head = load_draft_head(directory)
    with pytest.raises(RuntimeError, match="allocate_context: bind_target has not been called"):
        head.allocate_context(2, 16)
    with pytest.raises(RuntimeError, match="draft: bind_target has not been called"):
        draft_heads.draft(head, [3], [0], [0])


@pytest.mark.parametrize("name", ["qwen3-bfloat16", "qwen3-reduced-bfloat16"])
def test_tied_embeddings_are_the_output_matrix(tmp_path, name):
    _, directory = checkpoints.saved(tmp_path, *checkpoints.HEADS[name])
    without(directory, "lm_head.weight")
    checkpoints.edit_json(directory, lambda values: values | {"tie_word_embeddings": True})
    head = load_draft_head(directory)
    drafted = torch.arange(head.config.draft_vocab_size) + (0 if head.d2t is None else head.d2t)
    assert torch.equal(head.lm_head.weight, head.embed_tokens.weight[drafted])
    head.allocate_context(2, 16)
    assert draft_heads.draft(head, [3], [0], [0]).token_ids.shape == (1, 5)


def test_tied_embeddings_do_not_replace_an_output_matrix(tmp_path):
    written, directory = checkpoints.saved(tmp_path, *checkpoints.HEADS["qwen3-bfloat16"])
    checkpoints.edit_json(directory, lambda values: values | {"tie_word_embeddings": True})
    checkpoints.assert_same_state(load_draft_head(directory), written)


@pytest.mark.parametrize("weight", [torch.nn.Embedding(37, 24), torch.zeros(37, 24).char()])
def test_what_is_bound_is_a_float_tensor(weight):
    head = draft_heads.make(CONFIGS["qwen3"])
    with pytest.raises(ValueError, match=r"embedding: expected a float tensor \[37, 24\], got"):
        head.bind_target(weight, weight)


@pytest.mark.parametrize("name", ["v41", "v4", "qwen3", "gemma4", "qwen3-dflash"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cast_head_is_one_made_in_that_dtype(name, dtype):
    config = CONFIGS[name]
    head, made = draft_heads.make(config), make_draft_head(config, dtype=dtype)
    draft_heads.fill(head, 1, 3)
    wide = {key: value.clone() for key, value in head.state_dict().items()}
    back = copy.deepcopy(head).to(dtype).float()
    assert head.to(dtype) is head and head.dtype == head.context.dtype == dtype
    for key, value in made.state_dict().items():
        narrow = wide[key] if value.dtype == torch.float32 else wide[key].to(value.dtype)
        assert head.state_dict()[key].dtype == value.dtype, key
        assert torch.equal(head.state_dict()[key], narrow), key
    for each, logits in ((head, dtype), (back, torch.float32)):
        draft_heads.fill(each, 1, 9, start=3)
        block = draft_heads.draft(each, [11], [9], [1])
        assert block.logits.dtype == logits and block.logits.isfinite().all()
        assert each.export_state(1).header["dtype"] == str(logits).removeprefix("torch.")


def test_codes_and_scales_are_not_cast(tmp_path):
    written, directory = checkpoints.saved(tmp_path, *checkpoints.V41)
    head = load_draft_head(directory).half()
    for name, value in written.state_dict().items():
        if value.dtype not in (torch.bfloat16, torch.float32):
            found = head.state_dict()[name]
            assert torch.equal(checkpoints.bits(found), checkpoints.bits(value)), name


def test_a_block_whose_window_is_gone_is_refused():
    head = draft_heads.make(CONFIGS["v41"], max_rollback=2)
    draft_heads.fill(head, 2, 30)
    message = r"draft: slot 2 needs positions 21\.\.26 at length 27 and has given up 21\.\.21"
    with pytest.raises(ValueError, match=message):
        draft_heads.draft(head, [3, 3], [30, 27], [2, 2])
    draft_heads.draft(head, [3, 3, 3], [30, 28, 0], [2, 2, -1])
    draft_heads.draft(head, [3], [0], [2])  # sees nothing, and needs nothing


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_integers_of_any_width_are_indices(dtype):
    """torch takes uint8 for a mask."""
    head = draft_heads.make(CONFIGS["v41"], max_requests=1)
    draft_heads.fill(head, 0, 4)
    wanted = draft_heads.draft(head, [3, 5], [4, 0], [0, 0])
    given = (torch.tensor(values, dtype=dtype) for values in ([3, 5], [4, 0], [0, 0]))
    found = head.draft(*given, temperature=0.8, seeds=torch.tensor([5, 6]))
    assert torch.equal(found.logits, wanted.logits)
    assert torch.equal(found.token_ids, wanted.token_ids)
    with pytest.raises(ValueError, match=r"slots: expected int64 \[B=1\], got bool \[1\]"):
        head.draft(
            torch.tensor([3]), torch.tensor([0]), torch.tensor([True]), temperature=1.0, seeds=1
        )


def test_cells_of_other_slots_are_not_exported():
    head = load_draft_head(TINY)
    drafter = DSparkDrafter(
        head, torch.zeros(256, 128), torch.zeros(256, 128), max_requests=2, max_len=20
    )
    assert len(drafter.export_slot(1, 20)["keys.0"]) == 20
    for slot, length in ((2, 3), (-1, 3), (0, 21)):
        with pytest.raises(ValueError, match=f"a slot below 2 and a length .* got {slot} and"):
            drafter.export_slot(slot, length)


def test_a_slot_is_truncated_once():
    head = draft_heads.make(CONFIGS["qwen3"])
    draft_heads.fill(head, 2, 9)
    with pytest.raises(ValueError, match=r"truncate: slots: expected each slot once, got \[2, 2\]"):
        head.truncate(torch.tensor([2, 2]), torch.tensor([5, 3]))
    assert head.context.lengths[2] == 9


@pytest.mark.parametrize("name", ["v41", "qwen3"])
def test_a_context_made_in_inference_mode_is_used_outside(name):
    head = draft_heads.make(CONFIGS[name])
    with torch.inference_mode():
        head.allocate_context(2, 20)
        draft_heads.fill(head, 0, 4)
    draft_heads.fill(head, 0, 9, start=4)
    other = draft_heads.make(CONFIGS[name])
    draft_heads.fill(other, 0, 9)
    ours, theirs = (draft_heads.hidden(each, [3], [9], [0]) for each in (head, other))
    torch.testing.assert_close(ours, theirs, **CLOSE)


def test_drafters_of_one_head_have_a_context_each():
    head = draft_heads.make(CONFIGS["qwen3"])
    drafters = [HeadDrafter(head, max_requests=2, max_len=10) for _ in range(2)]
    for drafter, count in zip(drafters, (3, 5)):
        positions = torch.arange(count)
        rows = draft_heads.features(head.config, count, seed=count)
        drafter.append(rows, positions, torch.zeros_like(positions))
    for drafter, count in zip(drafters, (3, 5)):
        assert drafter.export_slot(0, count)["positions"].tolist() == list(range(count))


@pytest.mark.parametrize("size", [0, -1, 2.5])
def test_a_drafter_has_blocks_of_one_draft_at_least(size):
    with pytest.raises(ValueError, match="block_size: expected an integer >= 1, got"):
        HeadDrafter(draft_heads.make(CONFIGS["qwen3"]), max_requests=2, max_len=9, block_size=size)


def exported(name="v41"):
    head = draft_heads.make(CONFIGS[name])
    draft_heads.fill(head, 0, 9)
    return head, head.export_state(0)


def test_positions_of_another_shape_are_refused():
    head, state = exported()
    state.positions = torch.tensor(8)
    with pytest.raises(ValueError, match=r"positions: expected int64 \[n\], got int64 \[\]"):
        head.import_state(1, state)


def test_a_torn_state_names_its_file(tmp_path):
    path = tmp_path / "request.safetensors"
    exported()[1].save(path)
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(ValueError, match="request.safetensors: Error while deserializing"):
        ContextState.load(path)


def test_a_full_disk_leaves_the_state_before(tmp_path, monkeypatch):
    path, (_, state) = tmp_path / "request.safetensors", exported()
    state.save(path)
    draft_heads.check_full_disk(monkeypatch, path, state.save)
