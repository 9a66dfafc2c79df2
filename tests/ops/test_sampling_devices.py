"""The operators registered for GPU tensors, as far as that shows without a GPU."""

import pytest
import torch
from test_sampling_compile import acceptance_arguments, arguments, draw_arguments, row_arguments

import dspark_ext

CALLS = {
    "rejection_sample": lambda: arguments(),
    "block_acceptance": lambda: acceptance_arguments("cpu"),
    "sample": lambda: draw_arguments("cpu"),
    "target_probs": lambda: row_arguments("cpu"),
}


@pytest.mark.parametrize("name", CALLS)
def test_br057_logits_on_the_cpu_are_refused_by_name(name):
    """What a call meets whose other tensors are on a GPU."""
    if dspark_ext.build_info()["gpu"] is None:
        pytest.skip("this build serves no GPU")
    operator = getattr(torch.ops.dspark_ext, name).default
    gpu_kernel = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    with pytest.raises(RuntimeError, match=rf"dspark_ext.{name}: (target_)?logits: .*got cpu"):
        operator.redispatch(gpu_kernel, *CALLS[name]())
