"""dspark_ext.attention against float64, over ragged ranges, and the same row whatever the batch."""

import pytest
import torch

from dspark_ext.attention import attention

DTYPES = [torch.float32, torch.bfloat16]


def caches(slots, length, heads, size, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (slots, length, heads, size)
    keys = torch.randn(shape, generator=generator).to(dtype)
    values = torch.randn(shape, generator=generator).to(dtype)
    return keys, values


def queries(rows, heads, size, seed=1):
    return torch.randn(rows, heads, size, generator=torch.Generator().manual_seed(seed)) * 2


def int32(values):
    return torch.tensor(values, dtype=torch.int32)


def float64_attention(query, keys, values, slots, starts, ends, scale):
    out = torch.zeros(query.shape, dtype=torch.float64)
    group = query.shape[1] // keys.shape[2]
    for n, (slot, start, end) in enumerate(zip(slots.tolist(), starts.tolist(), ends.tolist())):
        if slot < 0 or start >= end:
            continue
        k = keys[slot, start:end].double().repeat_interleave(group, 1)
        v = values[slot, start:end].double().repeat_interleave(group, 1)
        scores = torch.einsum("hd,jhd->hj", query[n].double(), k) * scale
        out[n] = torch.einsum("hj,jhd->hd", torch.softmax(scores, 1), v)
    return out


def assert_close(result, expected, keys):
    """A few hundred roundings of float32 at the size of the values."""
    assert result.dtype == torch.float32
    limit = 2e-5 * float(keys.abs().max())
    assert float((result.double() - expected).abs().max()) <= limit


def ragged(rows, slots, length, seed=2):
    generator = torch.Generator().manual_seed(seed)
    slot = torch.randint(0, slots, (rows,), generator=generator)
    ends = torch.randint(1, length + 1, (rows,), generator=generator)
    starts = (torch.rand(rows, generator=generator) * ends).floor()
    return slot.int(), starts.int(), ends.int()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (9, 3), (8, 1)], ids=lambda h: f"heads={h}")
@pytest.mark.parametrize("size", [1, 16, 24, 64, 80, 256], ids=lambda d: f"head_size={d}")
def test_equals_float64(dtype, heads, size):
    query_heads, key_heads = heads
    keys, values = caches(3, 70, key_heads, size, dtype)
    query = queries(11, query_heads, size)
    ranges = ragged(11, 3, 70)
    result = attention(query, keys, values, *ranges, size**-0.5)
    expected = float64_attention(query, keys, values, *ranges, size**-0.5)
    assert_close(result, expected, values)


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 33, 127, 129, 1000], ids=str)
def test_number_of_keys(length):
    keys, values = caches(1, length, 2, 32)
    query = queries(1, 4, 32)
    ranges = (int32([0]), int32([0]), int32([length]))
    expected = float64_attention(query, keys, values, *ranges, 0.2)
    assert_close(attention(query, keys, values, *ranges, 0.2), expected, values)


def test_causal_prefill_and_decode_are_the_same_bits():
    """Row i of a pass over 40 tokens sees keys 0 .. i; decoding one token at a time does too."""
    keys, values = caches(2, 40, 3, 64, torch.bfloat16)
    query = queries(40, 9, 64)
    slots, starts = torch.ones(40, dtype=torch.int32), torch.zeros(40, dtype=torch.int32)
    ends = torch.arange(1, 41, dtype=torch.int32)
    whole = attention(query, keys, values, slots, starts, ends, 0.125)
    steps = [
        attention(query[i : i + 1], keys, values, slots[:1], starts[:1], ends[i : i + 1], 0.125)
        for i in range(40)
    ]
    assert torch.equal(whole, torch.cat(steps))
    assert_close(whole, float64_attention(query, keys, values, slots, starts, ends, 0.125), values)


def test_a_row_does_not_depend_on_the_batch():
    keys, values = caches(4, 90, 3, 64)
    query = queries(33, 9, 64)
    slots, starts, ends = ragged(33, 4, 90)
    slots[4:10], slots[20:26] = 2, 2  # neighbours that share a slot

    def rows(index):
        return attention(query[index], keys, values, slots[index], starts[index], ends[index], 0.1)

    alone = torch.cat([rows(torch.tensor([i])) for i in range(33)])
    for count in range(1, 34):
        assert torch.equal(rows(torch.arange(count)), alone[:count]), f"{count} rows"
    order = torch.randperm(33, generator=torch.Generator().manual_seed(0))
    assert torch.equal(rows(order), alone[order])
    by_slot = torch.argsort(slots, stable=True)
    assert torch.equal(rows(by_slot), alone[by_slot])
    assert torch.equal(rows(torch.tensor([7] * 20)), alone[7].expand(20, -1, -1))


def test_bidirectional_block_behind_a_window():
    """A draft block: every row sees the last 16 context keys and the whole block of 5."""
    keys, values = caches(2, 60, 2, 32)
    context, block, window = 41, 5, 16
    query = queries(block, 4, 32)
    slots = torch.zeros(block, dtype=torch.int32)
    starts = torch.full((block,), context - window, dtype=torch.int32)
    ends = torch.full((block,), context + block, dtype=torch.int32)
    result = attention(query, keys, values, slots, starts, ends, 0.2)
    assert_close(result, float64_attention(query, keys, values, slots, starts, ends, 0.2), values)
    spoiled_keys, spoiled_values = keys.clone(), values.clone()
    for cache in (spoiled_keys, spoiled_values):
        cache[1] = float("nan")
        cache[0, : context - window] = float("nan")
        cache[0, context + block :] = float("inf")
    again = attention(query, spoiled_keys, spoiled_values, slots, starts, ends, 0.2)
    assert torch.equal(result, again)


@pytest.mark.parametrize(("start", "end"), [(0, 0), (5, 5), (7, 3), (9, 9)])
def test_no_keys_gives_zeros(start, end):
    keys, values = caches(1, 9, 2, 16)
    query = queries(3, 2, 16)
    result = attention(
        query, keys, values, int32([0, 0, 0]), int32([0, start, 0]), int32([4, end, 9]), 0.25
    )
    assert bool((result[1] == 0).all()) and bool((result[[0, 2]] != 0).any())


def test_padding_rows_are_zero_and_not_looked_at():
    keys, values = caches(2, 9, 2, 16)
    query = queries(3, 2, 16)
    query[1] = float("nan")
    result = attention(
        query, keys, values, int32([0, -1, 1]), int32([0, -5, 2]), int32([4, 999, 9]), 0.25
    )
    assert bool((result[1] == 0).all()) and bool(result.isfinite().all())


def test_one_key_returns_its_value():
    keys, values = caches(1, 6, 2, 16)
    query = queries(1, 4, 16)
    result = attention(query, keys, values, int32([0]), int32([3]), int32([4]), 0.25)
    assert torch.equal(result[0], values[0, 3].repeat_interleave(2, 0))


def test_large_scores_do_not_overflow():
    """Scores of +-1e4 and more: the softmax is a one-hot, nothing is NaN."""
    keys, values = caches(1, 20, 1, 16)
    query = queries(4, 1, 16, seed=5) * 1e4
    ranges = (int32([0] * 4), int32([0] * 4), int32([20] * 4))
    result = attention(query, keys, values, *ranges, 1.0)
    assert bool(result.isfinite().all())
    scores = torch.einsum("nd,jd->nj", query[:, 0], keys[0, :, 0])
    best = scores.topk(2, dim=1).values
    assert float((best[:, 0] - best[:, 1]).min()) > 100  # no near tie among the inputs
    assert_close(result[:, 0], values[0, scores.argmax(1), 0].double(), values)


def test_equal_keys_average():
    keys, values = caches(1, 48, 1, 8)
    keys[:] = 1.0
    result = attention(queries(1, 1, 8), keys, values, int32([0]), int32([0]), int32([48]), 0.5)
    assert_close(result, values.double().mean(1), values)


def test_strided_caches():
    """A layer's view of a cache that interleaves keys and values."""
    generator = torch.Generator().manual_seed(3)
    both = torch.randn(2, 30, 2, 4, 16, generator=generator)
    keys, values = both[:, :, 0], both[:, :, 1]
    query, ranges = queries(7, 8, 16), ragged(7, 2, 30)
    result = attention(query, keys, values, *ranges, 0.25)
    dense = attention(query, keys.contiguous(), values.contiguous(), *ranges, 0.25)
    assert torch.equal(result, dense)
    wide = torch.zeros(7, 16, 16)
    wide[:, ::2] = query
    assert torch.equal(attention(wide[:, ::2], keys, values, *ranges, 0.25), dense)


def test_no_rows():
    keys, values = caches(1, 4, 2, 16)
    result = attention(torch.zeros(0, 4, 16), keys, values, int32([]), int32([]), int32([]), 1.0)
    assert result.shape == (0, 4, 16)


def test_thread_count_changes_nothing():
    keys, values = caches(3, 200, 3, 64, torch.bfloat16)
    query, ranges = queries(20, 9, 64), ragged(20, 3, 200)
    threads, results = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            results.append(attention(query, keys, values, *ranges, 0.125))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_inputs_stay_as_they_are():
    keys, values = caches(2, 30, 2, 16)
    inputs = [queries(5, 4, 16), keys, values, *ragged(5, 2, 30)]
    before = [t.clone() for t in inputs]
    attention(*inputs, 0.25)
    assert all(torch.equal(a, b) for a, b in zip(before, inputs))


def base_arguments():
    keys, values = caches(2, 8, 2, 16)
    return {
        "query": queries(3, 4, 16),
        "key_cache": keys,
        "value_cache": values,
        "slots": int32([0, 1, 0]),
        "key_start": int32([0, 0, 2]),
        "key_end": int32([8, 3, 5]),
    }


BASE = base_arguments()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"query": BASE["query"][0]}, "query"),
        ({"query": BASE["query"].double()}, "query"),
        ({"query": BASE["query"][:, :3]}, "query"),
        ({"query": BASE["query"][:, :, :8]}, "query|key_cache"),
        ({"key_cache": BASE["key_cache"][0]}, "key_cache"),
        ({"key_cache": BASE["key_cache"].half()}, "key_cache"),
        ({"key_cache": BASE["key_cache"][..., ::2]}, "key_cache|query"),
        ({"value_cache": BASE["value_cache"][:, :7]}, "value_cache"),
        ({"value_cache": BASE["value_cache"].bfloat16()}, "value_cache"),
        ({"slots": int32([0, 1])}, "slots"),
        ({"slots": int32([0, 2, 0])}, "slots"),
        ({"slots": torch.tensor([0, 1, 0])}, "slots"),
        ({"key_start": int32([0, -1, 0])}, "key_start"),
        ({"key_start": int32([0, 0])}, "key_start"),
        ({"key_end": int32([8, 9, 8])}, "key_end"),
        ({"key_end": int32([8])}, "key_end"),
    ],
)
def test_errors_name_operator_and_argument(changes, word):
    with pytest.raises(RuntimeError) as error:
        attention(**{**BASE, **changes}, scale=0.25)
    message = str(error.value)
    assert "dspark_ext.attention: " in message
    assert any(part in message for part in word.split("|")), message


def test_opcheck():
    torch.library.opcheck(torch.ops.dspark_ext.attention.default, (*BASE.values(), 0.25))


def test_compiles_in_one_graph():
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(**BASE, scale=0.25), attention(**BASE, scale=0.25))
