"""What is refused on a GPU, by name."""

import pytest
import torch
from gpukit import GPU, to_gpu
from test_sampling_gpu_streams import draws, inputs

from dspark_ext import sampling


def without_filters(values: dict) -> dict:
    return {key: value for key, value in values.items() if not key.startswith("top")}


@pytest.mark.parametrize("name", list(inputs()))
def test_br057_an_argument_on_the_cpu(name):
    values = to_gpu(inputs())
    values[name] = values[name].cpu()
    with pytest.raises(RuntimeError, match=f"rejection_sample: {name}: expected .*got cpu"):
        sampling.rejection_sample(**values)


@pytest.mark.parametrize("name", list(draws()))
def test_br057_an_argument_of_sample_on_the_cpu(name):
    values = to_gpu(draws())
    values[name] = values[name].cpu()
    with pytest.raises(RuntimeError, match=f"sample: {name}: expected .*got cpu"):
        sampling.sample(**values)


@pytest.mark.parametrize("field", ["token_ids", "num_accepted", "status", "logprobs"])
def test_br057_an_output_on_the_cpu(field):
    values = to_gpu(inputs())
    out = sampling.rejection_sample(**values, return_logprobs=True)
    with pytest.raises(RuntimeError, match=f"{field}: expected device cuda:0, got cpu"):
        sampling.rejection_sample(**values, out=out._replace(**{field: getattr(out, field).cpu()}))


def test_br057_two_devices():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    values = to_gpu(inputs())
    values["seeds"] = values["seeds"].to("cuda:1")
    with pytest.raises(RuntimeError, match="seeds: expected device cuda:0, got cuda:1"):
        sampling.rejection_sample(**values)


def test_sizes_past_the_limits():
    with pytest.raises(RuntimeError, match="logits: expected at most V on a GPU"):
        sampling.target_probs(torch.zeros(1, 1024 * 4096 + 1, device=GPU))
    one = torch.zeros(1, dtype=torch.int64, device=GPU)
    with pytest.raises(RuntimeError, match="draft_token_ids: expected at most K on a GPU=256"):
        sampling.rejection_sample(
            torch.zeros(1, 4, device=GPU), torch.zeros(1, 257, dtype=torch.int64, device=GPU),
            query_start_loc=torch.tensor([0, 1], device=GPU), temperature=1.0, seeds=one,
            positions=one,
        )  # fmt: skip


def test_numbers_become_tensors_on_the_device():
    values = without_filters(to_gpu(inputs()))
    want = sampling.rejection_sample(**values)
    values["temperature"] = float(values["temperature"][0])
    got = sampling.rejection_sample(**values, draft_temperature=values["temperature"])
    assert torch.equal(got.token_ids, want.token_ids)
    assert {x.device.type for x in got if x is not None} == {GPU}


def test_parameters_out_of_range_are_no_errors():
    values = to_gpu(inputs())
    want = sampling.rejection_sample(**values)
    values["temperature"][1] = float("nan")
    got = sampling.rejection_sample(**values)
    assert got.status.tolist() == [0, sampling.STATUS_INVALID_REQUEST, 0, 0]
    kept = [0, 2, 3]
    assert torch.equal(got.token_ids[kept], want.token_ids[kept])
    assert got.token_ids[1].tolist() == [0, -1, -1, -1]
