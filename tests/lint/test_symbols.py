"""The extension links against torch's stable C interface only, so one build serves several torch
versions; and against no GPU library, so that it loads everywhere."""

import pathlib
import re
import shutil
import subprocess

import pytest

import dspark_ext

NM = shutil.which("nm")
pytestmark = pytest.mark.skipif(NM is None, reason="nm (binutils) is not installed")


EXTENSION = pathlib.Path(dspark_ext._C.__file__)
HIP_LIBRARY = EXTENSION.parent / "_hip.so"
LIBRARIES = [path for path in (EXTENSION, HIP_LIBRARY) if path.exists()]
UNSTABLE = re.compile(r"(^|[ (<*&,])(at|c10|caffe2|torch)::")


def symbols(*flags, library=EXTENSION):
    output = subprocess.run(
        [NM, "-D", "-C", *flags, library], check=True, capture_output=True, text=True
    )
    return [line.split(maxsplit=1)[-1].removeprefix("U ") for line in output.stdout.splitlines()]


def needed_libraries(library):
    output = subprocess.run(
        [shutil.which("readelf") or "objdump", "-d" if shutil.which("readelf") else "-p", library],
        check=True,
        capture_output=True,
        text=True,
    )
    return re.findall(r"NEEDED\)?\s+(?:Shared library: \[)?([\w.+-]+)", output.stdout)


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda path: path.name.split(".")[0])
def test_needs_no_unstable_torch_symbol(library):
    needed = symbols("--undefined-only", library=library)
    assert needed
    assert not [name for name in needed if UNSTABLE.search(name)]


def test_needs_the_stable_interface():
    """Guards the test above: the tool must have seen torch's symbols at all."""
    assert any(name.startswith(("torch_", "aoti_torch_")) for name in symbols("--undefined-only"))


def test_exports_only_the_module():
    exported = symbols("--defined-only")
    assert any("PyInit__C" in name for name in exported)
    own = [name for name in exported if "dspark::" in name]
    assert not own, own


def test_the_extension_needs_no_gpu_library():
    """It is imported where there is no driver; the CUDA runtime is linked in."""
    needed = needed_libraries(EXTENSION)
    assert "libtorch_cpu.so" in needed
    assert not [name for name in needed if re.search(r"cuda|nvrtc|hip|hsa|rocm", name)]
    gpu = re.compile(r"^(w )?(_*cuda[A-Z]|cu[A-Z]|_*hip[A-Z])")
    assert not [name for name in symbols("--undefined-only") if gpu.search(name)]


def test_the_hip_library_exports_only_its_table_and_needs_no_torch():
    facts = dspark_ext.build_info()["hip"]
    if not facts["built"]:
        pytest.skip(facts["reason"])
    exported = [name.split()[-1] for name in symbols("--defined-only", library=HIP_LIBRARY)]
    assert exported == ["dspark_hip_backend"]
    needed = needed_libraries(HIP_LIBRARY)
    assert any(name.startswith("libamdhip64.so") for name in needed)
    assert not [name for name in needed if "torch" in name or "c10" in name]
