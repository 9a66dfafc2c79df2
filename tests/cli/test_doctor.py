"""dspark-ext doctor: what it finds here, and what it says of machines that lack something."""

import builtins
import importlib.metadata
import json

import pytest

import dspark_ext
from dspark_ext.cli import doctor


def checks_by_name():
    return {check.name: check for check in doctor.all_checks()}


def test_it_tells_what_is_here(command):
    status, out, _ = command("doctor", "--json")
    checks = {check["name"]: check for check in json.loads(out)}
    assert status == 0
    assert dspark_ext.build_info()["cpu"]["active"] in checks["dspark_ext"]["found"]
    assert checks["operators"]["status"] == "ok" and checks["torch"]["status"] == "ok"
    status, out, _ = command("doctor")
    assert status == 0 and out.endswith("Models can be served here.\n")


def test_a_needed_package_that_is_missing_fails(command, monkeypatch):
    found = importlib.metadata.version

    def version(name):
        if name in ("safetensors", "uvicorn"):
            raise importlib.metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    status, out, _ = command("doctor")
    assert status == 1 and out.endswith("Missing: safetensors\n")
    assert "-> pip install '.[demo]'" in out and "-> pip install '.[serve]'" in out


def test_broken_operators_are_noticed(monkeypatch):
    def wrong(*arguments, **options):
        from types import SimpleNamespace

        import torch

        return SimpleNamespace(token_ids=torch.zeros(1, 4, dtype=torch.int64))

    monkeypatch.setattr("dspark_ext.sampling.rejection_sample", wrong)
    check = checks_by_name()["operators"]
    assert check.status == doctor.MISSING and "pip install" in check.remedy


def test_a_forced_instruction_set_and_an_empty_cache_are_notes(monkeypatch, tmp_path):
    monkeypatch.setenv("DSPARK_CPU_ISA", "baseline")
    monkeypatch.setenv("DSPARK_CACHE", str(tmp_path))
    checks = checks_by_name()
    assert checks["dspark_ext"].status == doctor.NOTE and "unset" in checks["dspark_ext"].remedy
    assert checks["demo model"].status == doctor.NOTE and "93 MB" in checks["demo model"].remedy


class FakeTorch:
    """A torch build and the GPU it sees."""

    def __init__(self, cuda=None, hip=None, available=True, capability=(9, 0), arch="gfx942"):
        self.version = self
        self.cuda_version, self.hip = cuda, hip
        self.available, self.capability, self.gcnArchName = (
            available,
            capability,
            arch + ":sramecc+",
        )

    @property
    def cuda(self):
        return FakeVersionAndDevice(self)


class FakeVersionAndDevice:
    """`torch.version.cuda` and the module `torch.cuda` in one: true if it is a CUDA build."""

    def __init__(self, torch):
        self._torch = torch

    def __bool__(self):
        return self._torch.cuda_version is not None

    def is_available(self):
        return self._torch.available

    def get_device_capability(self, index):
        return self._torch.capability

    def get_device_properties(self, index):
        return self._torch


NOT_BUILT = {"built": False, "architectures": [], "reason": "no nvcc"}
CUDA = {"built": True, "architectures": ["sm_90a", "compute_80"], "reason": None}
ONLY_90 = {"built": True, "architectures": ["sm_90a"], "reason": None}
HIP = {"built": True, "architectures": ["gfx942"], "reason": None}


@pytest.mark.parametrize(
    "torch, half, status, text",
    [
        (FakeTorch(), NOT_BUILT, "note", "no nvcc; install its compiler"),
        (FakeTorch(), CUDA, "note", "install a torch built for CUDA"),
        (FakeTorch(cuda="13.0", available=False), CUDA, "note", "check the driver"),
        (FakeTorch(cuda="13.0"), CUDA, "ok", ""),
        (FakeTorch(cuda="13.0", capability=(8, 6)), CUDA, "ok", ""),
        (FakeTorch(cuda="13.0", capability=(8, 6)), ONLY_90, "note", "built without sm_86"),
    ],
)
def test_every_state_of_a_gpu_has_its_remedy(monkeypatch, torch, half, status, text):
    monkeypatch.setattr(doctor.Path, "exists", lambda path: str(path) == "/dev/nvidia0")
    cuda, hip = doctor._gpus(torch, {"cuda": half, "hip": HIP})
    assert (cuda.status, hip.status) == (status, "ok") and text in cuda.remedy


@pytest.mark.parametrize("arch, status", [("gfx942", "ok"), ("gfx1030", "note")])
def test_the_architecture_of_an_amd_gpu_is_compared(monkeypatch, arch, status):
    monkeypatch.setattr(doctor.Path, "exists", lambda path: str(path) == "/dev/kfd")
    torch = FakeTorch(hip="7.0", arch=arch)
    _, check = doctor._gpus(torch, {"cuda": CUDA, "hip": HIP})
    assert check.status == status


def test_a_wrong_instruction_set_and_a_broken_torch_are_findings(monkeypatch):
    monkeypatch.setattr(
        dspark_ext, "build_info", lambda: (_ for _ in ()).throw(ImportError("DSPARK_CPU_ISA: x"))
    )
    assert checks_by_name()["dspark_ext"].remedy == "unset DSPARK_CPU_ISA"
    real_import = builtins.__import__

    def broken_torch(name, *arguments, **options):
        if name == "torch":
            raise OSError("libcudart.so.13: cannot open shared object file")
        return real_import(name, *arguments, **options)

    checks = []
    monkeypatch.setattr(builtins, "__import__", broken_torch)
    assert doctor._torch(checks) is None
    assert checks[0].status == doctor.MISSING and "--force-reinstall" in checks[0].remedy


def test_old_torch_and_no_torch(monkeypatch):
    import torch

    checks = []
    monkeypatch.setattr(torch, "__version__", "2.4.0")
    assert doctor._torch(checks) is None and "upgrade" in checks[0].remedy
    real_import = builtins.__import__

    def without_torch(name, *arguments, **options):
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'")
        return real_import(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_torch)
    assert doctor._torch(checks) is None and checks[1].status == doctor.MISSING
