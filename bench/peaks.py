"""What a machine can do, measured: the yardsticks of every benchmark in the run that uses them.

Best of a few repeats, on one device. On a CPU with one thread the clock is processor time, so that
other work on the machine counts less; on a GPU it is a pair of events.

copy_gb_per_s    a large copy, reads and writes counted
read_gb_per_s    a large reduction (two streams), reads only
fp32_gflop_per_s, bf16_gflop_per_s    square matrix products, two flops a multiply-add; on a CPU the
                 better of torch.mm and oneDNN on a packed weight
call_us          a torch operator on one element, from Python
"""

import time

import torch

CPU_ELEMENTS, GPU_ELEMENTS = 32 << 20, 256 << 20
CPU_SIDE, GPU_SIDE = 1024, 8192


def best_seconds(function, device: str, repeats: int = 7) -> float:
    """The least time of a call; the first one is not counted."""
    function()
    if device != "cpu":
        return min(gpu_seconds(function) for _ in range(repeats))
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    seconds = []
    for _ in range(repeats):
        start = clock()
        function()
        seconds.append(clock() - start)
    return min(seconds)


def gpu_seconds(function) -> float:
    """Between two events around the call."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def copy_bandwidth(device: str = "cpu", elements: int | None = None) -> float:
    """Bytes per second."""
    source = torch.ones(elements or _elements(device), device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / best_seconds(lambda: target.copy_(source), device)


def read_bandwidth(device: str = "cpu", elements: int | None = None) -> float:
    """Bytes per second of the best reduction of torch."""
    left = torch.ones(elements or _elements(device), device=device)
    right = torch.ones_like(left)
    one = left.nbytes / best_seconds(left.sum, device)
    return max(one, 2 * left.nbytes / best_seconds(lambda: torch.dot(left, right), device))


def matrix_flops(dtype: torch.dtype, device: str = "cpu", side: int | None = None) -> float:
    """Flops per second of a square product."""
    side = side or (CPU_SIDE if device == "cpu" else GPU_SIDE)
    left = torch.randn(side, side, device=device).to(dtype)
    right = torch.randn(side, side, device=device).to(dtype)
    seconds = best_seconds(lambda: left @ right, device)
    if device == "cpu" and torch.backends.mkldnn.is_available():
        packed = torch.ops.mkldnn._reorder_linear_weight(right)
        multiply = torch.ops.mkldnn._linear_pointwise
        seconds = min(
            seconds, best_seconds(lambda: multiply(left, packed, None, "none", [], ""), device)
        )
    return 2 * side**3 / seconds


def call_seconds(device: str = "cpu", calls: int = 200) -> float:
    """Of a small operator, launched from Python."""
    one = torch.ones(1, device=device)

    def run() -> None:
        for _ in range(calls):
            torch.relu(one)

    return best_seconds(run, device) / calls


def measure(device: str = "cpu", scale: int = 1) -> dict:
    """All of them; `scale` divides the sizes (for a test of the harness)."""
    elements = _elements(device) // scale
    side = (CPU_SIDE if device == "cpu" else GPU_SIDE) // min(scale, 8)
    return {
        "copy_gb_per_s": round(copy_bandwidth(device, elements) / 1e9, 2),
        "read_gb_per_s": round(read_bandwidth(device, elements) / 1e9, 2),
        "fp32_gflop_per_s": round(matrix_flops(torch.float32, device, side) / 1e9, 1),
        "bf16_gflop_per_s": round(matrix_flops(torch.bfloat16, device, side) / 1e9, 1),
        "call_us": round(call_seconds(device) * 1e6, 2),
    }


def _elements(device: str) -> int:
    return CPU_ELEMENTS if device == "cpu" else GPU_ELEMENTS
