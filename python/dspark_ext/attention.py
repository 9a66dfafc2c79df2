"""Attention over a key/value cache for decoding on a CPU, one result per row whatever the batch."""

from . import _operators as _ops


def attention(query, key_cache, value_cache, slots, key_start, key_end, scale):
    """Softmax attention of each row over a range of one cache slot, with grouped query heads.

    Row n attends to keys `key_start[n]` .. `key_end[n] - 1` of slot `slots[n]`, head h to key/value
    head `g = h * Hkv // Hq`:

        out[n, h] = sum_j softmax_j(scale * <query[n, h], key[j, g]>) * value[j, g]

    Causal decoding, verification and prefill use `key_start = 0`, `key_end = position + 1`; a draft
    block that sees a window of context and all of itself gives all its rows the same range.

    Everything is float32 and in a fixed order. Scores and weighted sums are chains of fused
    multiply-adds, over head elements and over keys, ascending from 0. Scores are multiplied by
    `fl32(scale * log2(e))`; weights are `exp2_nonpositive` (docs/numerics.md, section 2) of the
    scores less their maximum; their total runs over 16 lanes (lane = (key - key_start) mod 16, then
    a halving tree); one division ends it. So a row of the result depends on its own query, range
    and cache entries alone: the same bits for any other rows in the call, any thread count and
    instruction set. Cache entries outside a row's range never reach its result, whatever they hold.
    No gradient is defined.

    Args:
        query: `[N, Hq, D]` float32, `1 <= D <= 256`. Rows of one slot that stand next to each other
            share the reads of the cache.
        key_cache: `[S, L, Hkv, D]` float32 or bfloat16 (widened exactly), `Hq` a multiple of `Hkv`;
            any strides with the last dimension contiguous.
        value_cache: as `key_cache`, the same dtype.
        slots: `[N]` int32, below S; a negative slot marks a padding row.
        key_start: `[N]` int32, first key, 0 to L.
        key_end: `[N]` int32, one past the last key, 0 to L.
        scale: float that multiplies the scores, usually `D ** -0.5`.

    Returns:
        `[N, Hq, D]` float32. Rows without keys (`key_start >= key_end`) and padding rows are zero.

    Raises:
        RuntimeError: a shape, dtype, slot or range does not fit; the message names the argument.
            Ranges of padding rows are not looked at.
    """
    return _ops.attention(query, key_cache, value_cache, slots, key_start, key_end, scale)
