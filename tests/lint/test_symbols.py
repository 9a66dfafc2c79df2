"""The extension links against torch's stable C interface only, so one build serves several torch
versions."""

import re
import shutil
import subprocess

import pytest

import dspark_ext

NM = shutil.which("nm")
pytestmark = pytest.mark.skipif(NM is None, reason="nm (binutils) is not installed")


def symbols(*flags):
    output = subprocess.run(
        [NM, "-D", "-C", *flags, dspark_ext._C.__file__], check=True, capture_output=True, text=True
    )
    return [line.split(maxsplit=1)[-1].removeprefix("U ") for line in output.stdout.splitlines()]


def test_needs_no_unstable_torch_symbol():
    unstable = re.compile(r"(^|[ (<*&,])(at|c10|caffe2|torch)::")
    needed = symbols("--undefined-only")
    assert not [name for name in needed if unstable.search(name)]


def test_needs_the_stable_interface():
    """Guards the test above: the tool must have seen torch's symbols at all."""
    assert any(name.startswith(("torch_", "aoti_torch_")) for name in symbols("--undefined-only"))


def test_exports_only_the_module():
    exported = symbols("--defined-only")
    assert any("PyInit__C" in name for name in exported)
    own = [name for name in exported if "dspark::" in name]
    assert not own, own
