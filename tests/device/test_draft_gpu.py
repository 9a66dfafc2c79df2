"""The draft operators on the GPU: every bit of the CPU backend, also captured and replayed."""

import draft_sweep as sweep
import pytest
import torch
from backends import moved
from gpukit import GPU, capture, on_cpu
from kit import bits_equal


def there(case: dict) -> list:
    return [moved(x, GPU) if torch.is_tensor(x) else x for x in case.values()]


def same_bits(mine, theirs) -> bool:
    pairs = zip(on_cpu(mine), on_cpu(theirs), strict=True)
    return all(
        a.dtype == b.dtype and a.shape == b.shape and bits_equal(a.reshape(-1), b.reshape(-1))
        for a, b in pairs
    )


def agree(case: dict) -> None:
    operator = torch.ops.dspark_ext.markov_sample
    assert same_bits(operator(*there(case)), operator(*case.values()))


@pytest.mark.parametrize("kind", sweep.HEADS)
def test_many_small_calls(kind):
    for seed in range(200):
        case = sweep.any_markov_case(seed, kind)
        if not case["base_logits"].isnan().any():  # which NaN comes out is the hardware's
            agree(case)


@pytest.mark.parametrize("kind", sweep.HEADS)
@pytest.mark.parametrize("batch", [1, 3, 8, 16, 32, 64, 70, 256])
def test_batches_at_full_size(batch, kind):
    """Far more blocks than run at a time."""
    agree(
        sweep.markov_case(
            batch, kind, batch, 3, 32000, 256, target=129280, width=512, dtype=torch.bfloat16
        )
    )


def test_runs_are_repeatable():
    case = there(sweep.markov_case(1, "rnn", 48, 5, 129280, 256, dtype=torch.bfloat16))
    first = torch.ops.dspark_ext.markov_sample(*case)
    for _ in range(20):
        assert same_bits(torch.ops.dspark_ext.markov_sample(*case), first)


@pytest.mark.parametrize("kind", sweep.HEADS)
def test_br024_replay_with_other_inputs(kind):
    def inputs(seed):
        return sweep.markov_case(seed, kind, 12, 4, 5000, 64, dtype=torch.bfloat16)

    static = {k: x.to(GPU) if torch.is_tensor(x) else x for k, x in inputs(0).items()}
    graph, out = capture(lambda: torch.ops.dspark_ext.markov_sample(*static.values()))
    for seed in (2, 4, 6, 8):
        fresh = inputs(seed)
        for name, value in fresh.items():
            if torch.is_tensor(value):
                static[name].copy_(value)
        for x in out:
            x.view(torch.uint8).fill_(0x7F)
        graph.replay()
        assert same_bits(out, torch.ops.dspark_ext.markov_sample(*fresh.values()))


def test_invalid_requests_touch_no_others():
    case = sweep.markov_case(3, "gated", 5, 3)
    want = torch.ops.dspark_ext.markov_sample(*case.values())
    case["temperature"][1] = float("nan")
    case["anchor"][4] = -7
    got = on_cpu(torch.ops.dspark_ext.markov_sample(*there(case)))
    kept = torch.tensor([0, 2, 3])
    for mine, theirs in zip(got, want, strict=True):
        assert bits_equal(mine[kept].reshape(-1), theirs[kept].reshape(-1))
    assert got[0][1].tolist() == [-1] * 3 and got[3][1].isnan().all()
    assert (got[2][4, 0] == 0).all()


def test_a_call_does_not_synchronise():
    case = there(sweep.markov_case(1, "vanilla", 3, 3))
    torch.ops.dspark_ext.markov_sample(*case)
    torch.cuda.set_sync_debug_mode("error")
    try:
        torch.ops.dspark_ext.markov_sample(*case)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_confidence_and_calibrate():
    for seed in range(40):
        case = sweep.confidence_case(seed, 7, 5, (300, 4096)[seed % 2], 256, seed % 3 == 0)
        on_gpu = [moved(x, GPU) if torch.is_tensor(x) else x for x in case]
        got = torch.ops.dspark_ext.confidence(*on_gpu)
        assert same_bits(got, torch.ops.dspark_ext.confidence(*case))
    logits, heat = torch.randn(999, 5) * 9, torch.rand(5) + 0.1
    got = torch.ops.dspark_ext.calibrate(logits.to(GPU), heat.to(GPU))
    assert same_bits(got, torch.ops.dspark_ext.calibrate(logits, heat))


# ---- matrix units -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sweep.HEADS)
@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float16], ids=str)
def test_matrix_units_give_a_request_its_bits_in_any_batch(kind, weights):
    case = sweep.markov_case(
        5, kind, 130, 3, 32000, 256, weights=weights, dtype=torch.bfloat16, exact=False
    )
    operator = torch.ops.dspark_ext.markov_sample
    whole = on_cpu(operator(*there(case)))
    assert same_bits(operator(*there(case)), whole)
    per_request = ("base_logits", "anchor", "hidden", "temperature", "seeds", "positions")
    for chosen in (slice(0, 1), slice(0, 17), slice(60, 130), torch.arange(129, -1, -2)):
        part = {
            name: value[chosen].contiguous() if name in per_request and value is not None else value
            for name, value in case.items()
        }
        assert same_bits(operator(*there(part)), [tensor[chosen] for tensor in whole])


@pytest.mark.parametrize("weights", [torch.bfloat16, torch.float16], ids=str)
def test_matrix_units_are_near_the_exact_path(weights):
    """The first logits of a vanilla head: u is the same and is not rounded."""
    case = sweep.markov_case(
        6, "vanilla", 40, 1, 32000, 256, weights=weights, dtype=torch.float32, exact=False
    )
    got = on_cpu(torch.ops.dspark_ext.markov_sample(*there(case)))[1][:, 0].double()
    u = case["w1"][case["anchor"]].double()
    exact = case["base_logits"][:, 0].double() + u @ case["w2"].double().T
    magnitude = u.abs() @ case["w2"].double().abs().T
    bound = 256 * 2.0**-22 * magnitude + 2.0**-23 * exact.abs()
    if weights == torch.float16:  # gfx90a reads subnormal operands as zeros
        bound = bound + 2.0**-14 * (u.abs().sum(1, keepdim=True) + 256 * 6.0)
    assert ((got - exact).abs() <= bound).all()
