"""Inputs on the GPU and captured graphs."""

from __future__ import annotations

import torch
from backends import moved

GPU = "cuda"  # ROCm builds of torch use this name too


def to_gpu(inputs: dict, device=GPU) -> dict:
    return {key: moved(value, device) for key, value in inputs.items()}


def on_cpu(out) -> tuple:
    values = out if isinstance(out, tuple) else (out,)
    return tuple(x.cpu() if torch.is_tensor(x) else x for x in values)


def capture(function):
    """`function()` as a graph: the graph and the tensors that each replay writes."""
    warm_up = torch.cuda.Stream()
    warm_up.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm_up):
        function()
    torch.cuda.current_stream().wait_stream(warm_up)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = function()
    return graph, out
