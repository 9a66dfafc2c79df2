"""Runs the V2 runner's rejection sampler with the plugin registered, without a GPU engine.

Prints JSON: what its module calls, and what it samples for three requests.
"""

import json
import types

import torch
from vllm.plugins import load_general_plugins

load_general_plugins()

from vllm.v1.worker.gpu.spec_decode import rejection_sampler

from dspark_ext.integrations import vllm_plugin


class Sampler:
    """As much of the runner's sampler as `_verify` uses: no filters, one temperature per slot."""

    use_fp64_gumbel = False

    def __init__(self):
        def on_device(values):
            return types.SimpleNamespace(gpu=values)

        self.sampling_states = types.SimpleNamespace(
            temperature=on_device(torch.tensor([1.0, 0.0, 0.0, 1.0])),
            seeds=on_device(torch.tensor([4, 5, 6, 7])),
        )

    def apply_sampling_params(self, logits, *args):
        return logits


config = types.SimpleNamespace(
    num_speculative_tokens=2, enable_adaptive_verification=True, rejection_sample_method="block"
)
sampler = rejection_sampler.RejectionSampler(Sampler(), config, torch.device("cpu"))
likely = [3, 1, 2, 0, 4, 2]
logits = torch.full((6, 5), -50.0)
logits[torch.arange(6), torch.tensor(likely)] = 50.0
drafts = torch.tensor([0, 3, 1, 0, 0, 3])  # entry i + 1 is judged by row i
_, sampled, num_sampled = sampler._verify(
    logits,
    None,
    drafts,
    torch.arange(6),
    torch.tensor([0, 3, 4, 6], dtype=torch.int32),
    torch.tensor([3, 1, 2]),
    None,
    torch.tensor([3, 3, 3, 1, 2, 2]),
    torch.tensor([0, 1, 2, 0, 0, 1]),
    None,
    drafts,
)
report = {
    "module": rejection_sampler.rejection_sample.__wrapped__.__module__,
    "function": rejection_sampler.rejection_sample.__code__.co_filename,
    "plugin": vllm_plugin.__file__,
    "sampled": sampled.tolist(),
    "num_sampled": num_sampled.tolist(),
}
print("REPORT " + json.dumps(report))
