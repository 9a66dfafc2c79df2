"""The portable layer names no vendor, no instruction set and no torch; the arithmetic is pinned."""

import re

import pytest

from ._sources import FAMILIES, ROOT, code_files, text, without_comments

INTRINSICS = re.compile(
    r"immintrin|x86intrin|arm_neon|arm_sve|\b_mm\d*_|\b__m(128|256|512)|__builtin_ia32|\basm\b"
)
VENDOR = re.compile(r"cuda|\bhip|__shfl|__ballot|threadIdx|blockIdx|__global__|nvcc", re.IGNORECASE)
TORCH = re.compile(r"#\s*include\s*[<\"](torch|ATen|c10|aten)/")
FAST_MATH = re.compile(
    r"-ffast-math|-Ofast|-funsafe-math|-fassociative-math|-freciprocal-math|-ffinite-math"
    r"|-ffp-contract=(fast|on)"
)


def portable_headers():
    """csrc/device and the headers of every op folder that state an algorithm, not a backend."""
    names = [p for p in code_files("csrc/device") if p.name != "backend.h"]
    for family in FAMILIES:
        for name in ("args.h", "algorithm.h"):
            if (ROOT / "csrc/ops" / family / name).is_file():
                names.append(f"csrc/ops/{family}/{name}")
    return [str(name) for name in names]


def test_there_is_a_portable_layer():
    assert any(name.startswith("csrc/device/") for name in portable_headers())


@pytest.mark.parametrize("path", portable_headers())
def test_portable_header(path):
    code = without_comments(text(path))
    for rule in (INTRINSICS, VENDOR, TORCH):
        assert not rule.search(code), f"{path}: {rule.search(code).group(0)}"
    assert "torch" not in code


@pytest.mark.parametrize("family", FAMILIES)
def test_cpu_kernels_are_free_of_torch(family):
    for path in code_files(f"csrc/ops/{family}"):
        if path.name.startswith("cpu"):
            code = without_comments(text(path))
            assert not TORCH.search(code) and "torch::" not in code, path
            if path.suffix == ".cpp":
                assert "namespace dspark::DSPARK_ISA {" in code, path


def test_only_the_glue_sees_torch():
    allowed = re.compile(r"csrc/(bindings|host)/|csrc/ops/\w+/op\w*\.(cpp|h)$")
    for path in code_files("csrc"):
        if TORCH.search(without_comments(text(path))):
            assert allowed.match(str(path)), f"{path} includes torch headers"


def test_operators_use_the_stable_interface():
    unstable = re.compile(r"#\s*include\s*[<\"](ATen|c10|torch/(torch|extension|library|all)\.h)")
    for path in code_files("csrc"):
        assert not unstable.search(without_comments(text(path))), path


def test_contraction_is_off():
    cmake = text("CMakeLists.txt")
    flags = re.search(r"set\(DSPARK_NUMERICS_FLAGS ([^)]*)\)", cmake).group(1)
    assert "-ffp-contract=off" in flags
    for target in ("cpu_${isa}", "glue"):
        options = re.search(r"target_compile_options\(" + re.escape(target) + r"([^)]*)\)", cmake)
        assert "${DSPARK_NUMERICS_FLAGS}" in options.group(1), target
    for path in ["CMakeLists.txt", *code_files("cmake")]:
        assert not FAST_MATH.search(text(path)), path


def test_no_source_turns_fast_math_on():
    pragma = re.compile(r"#\s*pragma\s+(GCC\s+optimize|STDC\s+FP_CONTRACT\s+ON|clang\s+fp)")
    for path in code_files("csrc"):
        assert not pragma.search(text(path)), path
