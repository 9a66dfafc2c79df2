"""The portable layer names no vendor, no instruction set and no torch; the arithmetic is pinned."""

import re

import pytest

from ._sources import FAMILIES, code_files, text, without_comments

INTRINSICS = re.compile(
    r"immintrin|x86intrin|arm_neon|arm_sve|\b_mm\d*_|\b__m(128|256|512)|__builtin_ia32|\basm\b"
)
VENDOR = re.compile(r"cuda|\bhip|__shfl|__ballot|threadIdx|blockIdx|__global__|nvcc", re.IGNORECASE)
TORCH = re.compile(r"#\s*include\s*[<\"](torch|ATen|c10|aten)/")
FAST_MATH = re.compile(
    r"-ffast-math|-Ofast|-funsafe-math|-fassociative-math|-freciprocal-math|-ffinite-math"
    r"|-ffp-contract=(fast|on)"
)


BACKEND_FILE = re.compile(r"^(cpu|op)(\b|_)|^checks\.h$")  # of one backend, or host code


def portable_headers():
    """csrc/device and what the op folders hold for every backend, launch sequences included."""
    names = [p for p in code_files("csrc/device") if p.name != "backend.h"]
    for family in FAMILIES:
        for path in code_files(f"csrc/ops/{family}"):
            if not BACKEND_FILE.search(path.name):
                names.append(path)
    return [str(name) for name in names]


def test_there_is_a_portable_layer():
    names = portable_headers()
    assert any(name.startswith("csrc/device/") for name in names)
    assert "csrc/ops/sampling/launch.cu" in names
    assert "csrc/ops/sampling/algorithm.h" in names


def test_op_families_do_not_include_each_other():
    include = re.compile(r'#\s*include\s*"ops/(\w+)/')
    for family in FAMILIES:
        for path in code_files(f"csrc/ops/{family}"):
            others = set(include.findall(text(path))) - {family}
            assert not others, f"{path} includes {others}"


def test_includes_point_down():
    """device < backends < ops < bindings; host code and torch stand beside the ops."""
    include = re.compile(r'#\s*include\s*"(\w+)/')
    below = {"device": {"device"}, "backends": {"device", "backends"}}
    for folder, allowed in below.items():
        for path in code_files(f"csrc/{folder}"):
            if path.name == "backend.h" and folder == "device":
                continue  # the switch that picks a shim
            found = set(include.findall(text(path)))
            assert found <= allowed, f"{path} includes {found - allowed}"


def test_kernels_are_short():
    """A kernel function fits on one screen: 60 lines."""
    start = re.compile(r"^DSPARK_KERNEL", re.MULTILINE)
    found = 0
    for path in code_files("csrc/ops"):
        source = text(path)
        for match in start.finditer(source):
            found += 1
            body = source[match.start() : source.index("\n}\n", match.start())]
            assert body.count("\n") <= 60, f"{path}: {body[:80]}"
    assert found > 0


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
        refuses_them = str(path).endswith("cmake/CheckCompiler.cmake")
        assert refuses_them or not FAST_MATH.search(text(path)), path


def test_no_source_turns_fast_math_on():
    pragma = re.compile(r"#\s*pragma\s+(GCC\s+optimize|STDC\s+FP_CONTRACT\s+ON|clang\s+fp)")
    for path in code_files("csrc"):
        assert not pragma.search(text(path)), path
