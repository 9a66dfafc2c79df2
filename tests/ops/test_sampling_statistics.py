"""`rejection_sample` with the statistics that the drafter measured."""

import pytest
import torch
from drafted import B, drafted
from kit import same

from dspark_ext import sampling


@pytest.mark.parametrize("method", ["block", "token", "greedy"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("threads", [1, 8])
def test_they_change_no_bit(method, dtype, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for seed in range(4):
            block, given = drafted(dtype, seed=seed)
            want = sampling.rejection_sample(**given, method=method)
            got = sampling.rejection_sample(
                **given, method=method, draft_statistics=block.statistics
            )
            assert same(want, got)
    finally:
        torch.set_num_threads(before)


def test_they_are_used_where_the_temperature_is_theirs():
    """Statistics that are not of the rows change the result: so the rows were not measured. Under
    another temperature they are not looked at."""
    block, given = drafted(temperature=torch.full((B,), 1.0))
    false = block.statistics._replace(tile_sum=block.statistics.tile_sum * 0.01)
    want = sampling.rejection_sample(**given)
    assert not same(want, sampling.rejection_sample(**given, draft_statistics=false))
    given["draft_temperature"] = torch.full((B,), 0.9)
    want = sampling.rejection_sample(**given)
    assert same(want, sampling.rejection_sample(**given, draft_statistics=false))


def test_one_request_may_have_another_temperature():
    block, given = drafted()
    given["draft_temperature"] = given["temperature"].clone()
    given["draft_temperature"][0] = 0.4
    want = sampling.rejection_sample(**given)
    assert same(want, sampling.rejection_sample(**given, draft_statistics=block.statistics))


def test_out_variant_takes_them():
    block, given = drafted()
    want = sampling.rejection_sample(**given)
    out = sampling.RejectionOutput(*(torch.full_like(x, 9) for x in want))
    del given["return_logprobs"]
    sampling.rejection_sample(**given, draft_statistics=block.statistics, out=out)
    assert same(want, out)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s: s[:3], r"expected 4 tensors or none, got 3"),
        (lambda s: s._replace(tile_max=s.tile_max[..., :1].contiguous()), r"tile_max: .*tiles"),
        (lambda s: s._replace(tile_sum=s.tile_sum.double()), r"tile_sum: .*float32"),
        (lambda s: s._replace(temperature=s.temperature[:, :1].contiguous()), r"temperature: .*K"),
        (lambda s: s._replace(tile_nan=s.tile_nan.bool()), r"tile_nan: .*uint8"),
    ],
)
def test_errors_name_the_tensor(spoil, message):
    block, given = drafted()
    with pytest.raises(RuntimeError, match=f"rejection_sample: draft_statistics.*{message}"):
        sampling.rejection_sample(**given, draft_statistics=spoil(block.statistics))


def test_they_need_draft_logits():
    block, given = drafted()
    given["draft_logits"] = None
    with pytest.raises(RuntimeError, match="draft_statistics: expected none without draft_logits"):
        sampling.rejection_sample(**given, draft_statistics=block.statistics)


def test_opcheck():
    block, given = drafted()
    names = [
        "target_logits", "draft_token_ids", "draft_logits", "draft_probs", "query_start_loc",
        "method", "temperature", "draft_temperature", "top_k", "top_p", "min_p", "seeds",
        "positions", "synthetic_acceptance_rates", "uniforms",
    ]  # fmt: skip
    given["method"] = "block"
    arguments = [*(given.get(name) for name in names), list(block.statistics), True]
    torch.library.opcheck(torch.ops.dspark_ext.rejection_sample.default, arguments)


def test_no_requests_have_statistics_of_none():
    block, given = drafted()
    none = {key: value[:0] for key, value in given.items() if torch.is_tensor(value)}
    none["query_start_loc"] = torch.zeros(1, dtype=given["query_start_loc"].dtype)
    statistics = type(block.statistics)(*(each[:0] for each in block.statistics))
    found = sampling.rejection_sample(**{**given, **none}, draft_statistics=statistics)
    assert found.token_ids.shape == (0, given["draft_token_ids"].shape[1] + 1)
