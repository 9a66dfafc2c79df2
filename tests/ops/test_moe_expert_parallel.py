"""dspark_ext.moe.ExpertParallel over gloo: 1, 2 and 4 ranks give the bits of a single process."""

import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import expert_parallel_worker as worker
import pytest
import torch
import torch.distributed as dist

from dspark_ext import moe

SCRIPT = pathlib.Path(worker.__file__)
SIZES = [1, 2, 4]


@functools.cache
def results(size: int) -> list[dict]:
    """What each rank found, once per number of ranks."""
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path}
    if pathlib.Path("/sys/class/net/lo").exists():
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, str(SCRIPT), str(rank), str(size), folder],
                env=environment,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]
        errors = [rank.communicate()[1] for rank in ranks]
        files = [pathlib.Path(folder) / f"rank{rank}.json" for rank in range(size)]
        return [
            json.loads(file.read_text()) if file.exists() else {"start": error}
            for file, error in zip(files, errors)
        ]


NAMES = [f"{mode}: {name}" for name in worker.cases(2) for mode in ("exact", "fixed", "layer")]


@pytest.mark.parametrize("name", [*NAMES, "dispatch", "overflow"])
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"ranks={size}")
def test_over_gloo(size, name):
    """BR-049 among them: ranks with no tokens, with no experts, with nothing to do."""
    for rank, found in enumerate(results(size)):
        failures = {key: error for key, error in found.items() if error is not None}
        assert name in found, f"rank {rank} did not come so far: {failures}"
        assert found[name] is None, f"rank {rank}: {found[name]}"


# ---- in this process: a group of one ------------------------------------------------------------


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    store = dist.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_experts_are_spread_evenly(group, monkeypatch):
    monkeypatch.setattr(dist, "get_world_size", lambda group: 4)
    assert moe.ExpertParallel(group, 10).experts_per_rank == [3, 3, 2, 2]
    assert moe.ExpertParallel(group, 2).experts_per_rank == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_experts": 0}, "num_experts: expected at least 1 .*got 0"),
        ({"experts_per_rank": [7]}, "num_experts: .*sum of experts_per_rank=7, got 8"),
        ({"experts_per_rank": [4, 4]}, "experts_per_rank: expected 1 numbers >= 0"),
        ({"max_rows": 4}, "max_rows: expected None without max_tokens, got 4"),
        ({"max_tokens": -1}, "max_tokens: expected at least 0, got -1"),
    ],
    ids=str,
)
def test_errors_of_the_constructor(group, arguments, message):
    with pytest.raises(ValueError, match="dspark_ext.ExpertParallel: " + message):
        moe.ExpertParallel(group, **{"num_experts": 8, **arguments})


def test_errors_of_dispatch(group):
    ep = moe.ExpertParallel(group, 8, max_tokens=2)
    with pytest.raises(ValueError, match=r"dispatch: ids: .*got \[2, 3\] and \[1, 4\]"):
        ep.dispatch(torch.zeros(2, 3), torch.zeros(1, 4).int())
    with pytest.raises(ValueError, match="dispatch: ids: expected int32 or int64, got float32"):
        ep.dispatch(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(ValueError, match="dispatch: x: expected at most max_tokens=2 rows, got 3"):
        ep.dispatch(torch.zeros(3, 3), torch.zeros(3, 4).int())


FAKE = """
import torch, torch.distributed as dist
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from dspark_ext import moe

dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)

def layer(ep, x, ids, weights):
    return ep(x, ids, weights, lambda x, plan: moe.permute(x, plan) * 2)

with FakeTensorMode():
    arguments = torch.empty(6, 8), torch.empty(6, 3, dtype=torch.int32), torch.empty(6, 3)
    assert layer(moe.ExpertParallel(None, 16, max_tokens=6), *arguments).shape == (6, 8)
    assert layer(moe.ExpertParallel(None, 16, max_tokens=9, max_rows=5), *arguments).shape == (6, 8)
    try:
        layer(moe.ExpertParallel(None, 16), *arguments)
    except DataDependentOutputException:
        print("reads the counts")
"""


def test_a_fixed_capacity_reads_nothing_back():
    """Tensors without data do: no size of a message comes from one. Exact messages need the counts,
    which shows that reading would have been noticed."""
    path = os.pathsep.join(filter(None, sys.path))
    run = subprocess.run(
        [sys.executable, "-c", FAKE],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split("\n")[0] == "reads the counts"
