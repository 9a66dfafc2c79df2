"""Blocks are never lost, never shared, and give the bits of the dense cache."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_models import served_model

from dspark_ext.engine import (
    BlockPool,
    CacheFullError,
    CausalLMTarget,
    DSparkDrafter,
    DSparkEngine,
    HuggingFaceTarget,
    SamplingParams,
)
from dspark_ext.engine.paging import SlotBlocks, make_pool


def held_blocks(pool) -> list[int]:
    held = pool.table[pool.table >= 0].tolist()
    assert len(set(held)) == len(held)
    assert sorted(held) == sorted(set(range(pool.num_blocks)) - set(pool._free))
    for slot in range(pool.num_slots):
        assert (pool.table[slot] >= 0).tolist() == [
            index < pool.held(slot) for index in range(pool.table.shape[1])
        ]
    return held


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(1, 12),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 21)), max_size=40),
)
def test_blocks_are_held_once_or_free(block_size, num_blocks, calls):
    """A slot and a length to reserve; length 0 releases, odd lengths grow row by row."""
    pool = BlockPool(4, 20, block_size, num_blocks)
    for slot, length in calls:
        free, held = pool.available, pool.held(slot)
        wanted = -(-min(length, 20) // block_size)
        if length == 0:
            pool.release(slot)
            assert pool.held(slot) == 0 and pool.available == free + held
        elif wanted > num_blocks:
            with pytest.raises(CacheFullError, match="altogether"):
                pool.reserve(slot, length)
        elif length % 2 and length < 20 and wanted - held <= free:
            pool.grow(torch.tensor([slot, -1]), torch.tensor([length - 1, 99]))
        else:
            fits = pool.reserve(slot, length)
            assert fits == (wanted - held <= free)
            if not fits:
                assert (pool.available, pool.held(slot)) == (free, held)
        held_blocks(pool)
    for slot in range(4):
        pool.release(slot)
    assert pool.available == num_blocks


def test_rows_follow_the_block_table():
    pool = BlockPool(2, 8, 3, 4)
    pool.reserve(1, 4)
    pool.reserve(0, 2)
    pool.reserve(1, 7)
    slots, positions = torch.tensor([1, 1, 1, 0, -1]), torch.tensor([0, 4, 6, 1, 5])
    assert pool.table.tolist() == [[2, -1, -1], [0, 1, 3]]
    assert pool.rows(slots, positions).tolist() == [0, 4, 9, 7, 12]
    with pytest.raises(
        CacheFullError, match="slot 0 needs a block for position 3 and none of .* 4"
    ):
        pool.grow(torch.tensor([0]), torch.tensor([3]))
    with pytest.raises(ValueError, match="positions: expected 0..7, got 8 for slot 0"):
        pool.grow(torch.tensor([0]), torch.tensor([8]))


def test_the_dense_cache_is_one_block_per_slot():
    pool = make_pool(3, 10, None, None)
    assert isinstance(pool, SlotBlocks) and pool.reserve(2, 10)
    pool.release(2)
    assert pool.rows(torch.tensor([2, -1]), torch.tensor([9, 4])).tolist() == [29, 30]
    with pytest.raises(ValueError, match="num_blocks: expected None without a block_size, got 5"):
        make_pool(3, 10, None, 5)
    with pytest.raises(ValueError, match="block_size: expected >= 1, got 0"):
        make_pool(3, 10, 0, None)


GREEDY = SamplingParams(temperature=0.0, max_new_tokens=12)


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_the_lean_target_gives_the_same_tokens_from_blocks(serve, tiny_pair, prompts, block_size):
    """And with fewer blocks than all slots could need: requests wait for room, no block is lost."""
    model, head = tiny_pair
    wanted = [o.token_ids for o in serve(max_requests=3).generate(prompts, GREEDY).outputs]
    longest = max(len(prompt) for prompt in prompts) + 12
    target = HuggingFaceTarget(
        model,
        head.config.dspark_target_layer_ids,
        max_requests=3,
        max_len=160,
        block_size=block_size,
        num_blocks=-(-longest // block_size) + 2,
    )
    engine = DSparkEngine(target, DSparkDrafter.for_target(head, target))
    free = target.pool.available
    assert [o.token_ids for o in engine.generate(prompts, GREEDY).outputs] == wanted
    assert target.pool.available == free == target.pool.num_blocks
    stream = engine.stream(prompts, GREEDY)
    next(iter(stream))
    assert target.pool.available < free
    stream.close()
    assert target.pool.available == free


def test_a_request_that_no_pool_of_this_size_could_hold_is_refused():
    target = CausalLMTarget(
        served_model("llama"), max_requests=2, max_len=32, block_size=4, num_blocks=3
    )
    engine = DSparkEngine(target)
    assert len(engine.generate([[1] * 4], GREEDY.__class__(max_new_tokens=8), speculative=False)
               .outputs[0].token_ids) == 8  # fmt: skip
    with pytest.raises(CacheFullError, match="a request of 16 positions needs 4 blocks"):
        engine.generate([[1] * 4], GREEDY, speculative=False)
