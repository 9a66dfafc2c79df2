"""The compiled GPU kernels: what they use, and what they must not. Needs no GPU.

Each test reads the binaries of the build under test; where a backend is not built or a tool to read
it is missing, it is skipped and says so.
"""

import re

import pytest
from kernel_binaries import MissingToolError, kernels_of, ptx_architectures
from resource_table import entries, read_table

import dspark_ext

# Kernels that read rows, each entry once: they must do it 16 bytes at a time.
STREAMING = (
    *("row_statistics_kernel", "residual_masses_kernel", "target_probs_kernel"),
    *("permute_kernel", "combine_kernel", "grouped_gemm_kernel"),
    *("markov_step_kernel", "matrix_step_kernel", "matrix_gemm_kernel"),
    *("shard_statistics_kernel", "draw_shard_kernel"),
)
# Kernels of a 16-bit type that multiply by matrix units, and how many instructions do that where
# all of a loop is in registers: for each number of tiles of requests or of rows of x, the steps of
# the loop, four instructions each.
MATRIX = {
    "matrix_step_kernel": (1 + 2 + 4) * 8 * 4,
    "matrix_gemm_kernel<..., PlainWeights": (1 + 2 + 4) * 3 * 4,
    "matrix_gemm_kernel<..., Fp8Weights": (1 + 2) * 3 * 2 * 4,
    "matrix_gemm_kernel<..., Fp4Weights": (1 + 2) * 4 * 4 * 4,
}
# The same of wide instructions: two or four tiles of x make one or two, with four instructions a
# step, on gfx950 two. There weights with E8M0 scales and a bfloat16 have scaled ones: two for every
# other step.
WIDE = {"Fp8Weights": 3 * 3 * 2 * 4, "Fp4Weights": 3 * 4 * 4 * 4}
SCALED = {
    r"Fp8Weights<Fp8E4M3, BFloat16, WideTiles<BFloat16 ?>, true": 3 * 3 * 2,
    r"Fp4Weights<BFloat16": 3 * 4 * 2 * 2,
}

BACKENDS = ["cuda", "hip"]
WIDE_LOAD = {"cuda": r"LDG\.E\.(\w+\.)*128", "hip": r"global_load_(dwordx4|b128)"}
MATRIX_INSTRUCTION = {
    ("cuda", "BFloat16"): r"HMMA\.16816\.F32\.BF16\b",
    ("cuda", "Float16"): r"HMMA\.16816\.F32 ",
    ("hip", "BFloat16"): r"v_mfma_f32_16x16x16_?bf16",
    ("hip", "Float16"): r"v_mfma_f32_16x16x16_?f16",
    ("wide", "BFloat16"): r"v_mfma_f32_32x32x(8|16)_?bf16",
    ("wide", "Float16"): r"v_mfma_f32_32x32x(8|16)_?f16",
}
SCALED_INSTRUCTION = r"v_mfma_scale_f32_32x32x64_f8f6f4"
# A kernel on warpgroups, where there are some: widths of products, 16 bits on both sides.
WARPGROUP = "warpgroup_gemm_kernel"
WARPGROUP_INSTRUCTIONS = (
    *(rf"HGMMA\.64x{columns}x16\.F32" for columns in (16, 32, 48, 64)),
    r"UBLKCP",  # copies of stretches of memory
    r"SYNCS\.PHASECHK",  # and waits for them
)
HIP_WITH_MATRIX_UNITS = ("gfx90a", "gfx942", "gfx950")
LOCAL_MEMORY = {"cuda": r"(LDL|STL)\b", "hip": r"(scratch|buffer)_(load|store)"}


def built(backend):
    """Facts and kernels of a backend of this build; skips where there are none to read."""
    facts = dspark_ext.build_info()[backend]
    if not facts["built"]:
        pytest.skip(f"{backend}: {facts['reason']}")
    try:
        return facts, kernels_of(backend)
    except MissingToolError as error:
        pytest.skip(f"{backend}: {error}")


def usable(backend):
    kernels = [kernel for kernel in built(backend)[1] if not kernel.is_foreign]
    assert kernels
    return kernels


def where(kernel):
    return f"{kernel.architecture} {kernel.name}"


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_architecture_has_every_kernel_br056(backend):
    facts, kernels = built(backend)
    architectures = {name for name in facts["architectures"] if not name.startswith("compute_")}
    assert {kernel.architecture for kernel in kernels} == architectures
    names = {name: {k.name for k in kernels if k.architecture == name} for name in architectures}
    assert all(names[architecture] == names[next(iter(names))] for architecture in names)
    if backend == "cuda":
        wanted = {name for name in facts["architectures"] if name.startswith("compute_")}
        assert ptx_architectures() == wanted


@pytest.mark.parametrize("backend", BACKENDS)
def test_resources_are_those_of_the_table(backend):
    facts, kernels = built(backend)
    recorded = read_table().get(backend)
    assert recorded is not None, "run tests/machine_code/update.py"
    if recorded["compiler"] != facts["compiler"]:
        pytest.skip(
            f"{backend}: recorded with {recorded['compiler']}, built by {facts['compiler']}"
        )
    found = entries(kernels)
    for architecture in found:
        if architecture not in recorded["kernels"]:
            pytest.skip(f"{backend}: {architecture} is not one of the recorded architectures")
        assert found[architecture] == recorded["kernels"][architecture], (
            f"{architecture}: if the change is meant, run tests/machine_code/update.py"
        )


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_local_memory(backend):
    """Neither a spilled register nor an indexed local array."""
    local = re.compile(LOCAL_MEMORY[backend])
    for kernel in usable(backend):
        memory = ("stack", "local", "scratch", "vgpr_spills")
        assert not any(kernel.resources.get(key, 0) for key in memory), where(kernel)
        assert not [line for line in kernel.instructions if local.match(line)], where(kernel)


@pytest.mark.parametrize("backend", BACKENDS)
def test_streaming_kernels_load_16_bytes(backend):
    wide = re.compile(WIDE_LOAD[backend])
    kernels = usable(backend)
    names = {kernel.name.split("<")[0] for kernel in kernels}
    assert set(STREAMING) <= names, "STREAMING names a kernel that does not exist"
    for kernel in kernels:
        if kernel.name.split("<")[0] in STREAMING:
            assert any(wide.match(line) for line in kernel.instructions), where(kernel)


def matrix_kind(kernel):
    """The key of a kernel in MATRIX, or None."""
    for kind in MATRIX:
        name, _, format = kind.partition("<..., ")
        if kernel.name.split("<")[0] == name and format in kernel.name:
            return kind
    return None


def matrix_instructions(kernel, half):
    """What a kernel multiplies with, and how many of them it has."""
    if "WideTiles" not in kernel.name:
        return MATRIX_INSTRUCTION[kernel.backend, half], MATRIX[matrix_kind(kernel)]
    is_gfx950 = kernel.architecture == "gfx950"
    for format, count in SCALED.items():
        if is_gfx950 and re.search(format, kernel.name):
            return SCALED_INSTRUCTION, count
    (count,) = (count for format, count in WIDE.items() if format in kernel.name)
    return MATRIX_INSTRUCTION["wide", half], count // 2 if is_gfx950 else count


@pytest.mark.parametrize("backend", BACKENDS)
def test_matrix_kernels_use_matrix_instructions(backend):
    kernels = [kernel for kernel in usable(backend) if matrix_kind(kernel)]
    if backend == "hip":
        kernels = [k for k in kernels if k.architecture in HIP_WITH_MATRIX_UNITS]
        wanted = set(HIP_WITH_MATRIX_UNITS) & set(built("hip")[0]["architectures"])
    else:
        wanted = {kernel.architecture for kernel in usable("cuda")}
    assert {kernel.architecture for kernel in kernels} == wanted
    for kernel in kernels:
        half = re.search(r"\bB?Float16\b", kernel.name).group(0)
        instruction, count = matrix_instructions(kernel, half)
        found = [line for line in kernel.instructions if re.match(instruction, line)]
        every = [line for line in kernel.instructions if re.match("v_mfma|HMMA", line)]
        assert len(found) == len(every) == count, where(kernel)
    assert {matrix_kind(kernel) for kernel in kernels} == set(MATRIX)


def test_warpgroup_kernels_use_what_only_they_have():
    """Of each step, as many products as it has columns; elsewhere the kernel only traps."""
    kernels = [kernel for kernel in usable("cuda") if kernel.name.startswith(WARPGROUP)]
    assert kernels
    for kernel in kernels:
        if kernel.architecture != "sm_90a":
            assert not any(line.startswith("HGMMA") for line in kernel.instructions), where(kernel)
            continue
        per_step = 16 if "Fp4" in kernel.name else 8 if "Fp8" in kernel.name else 4
        for pattern in WARPGROUP_INSTRUCTIONS:
            found = [line for line in kernel.instructions if re.match(pattern, line)]
            wanted = per_step if pattern.startswith("HGMMA") else 1
            assert len(found) >= wanted, (where(kernel), pattern)
        assert kernel.resources["registers"] <= 168, where(kernel)  # 384 threads


def test_waves_have_the_size_of_the_architecture():
    for kernel in built("hip")[1]:
        expected = 64 if kernel.architecture.startswith("gfx9") else 32
        assert kernel.resources["wavefront_size"] == expected, where(kernel)


def test_cuda_has_warps_of_32_only():
    assert {kernel.warp_size for kernel in built("cuda")[1]} == {32}


def test_a_kernel_of_a_foreign_wave_size_only_traps():
    """HIP code holds both sizes for every architecture; the one it lacks takes next to no room."""
    foreign = [kernel for kernel in built("hip")[1] if kernel.is_foreign]
    assert foreign
    for kernel in foreign:
        assert kernel.instructions[0].startswith("s_trap"), where(kernel)
        executed = [line for line in kernel.instructions if not re.match("s_(nop|code_end)", line)]
        assert len(executed) <= 16, where(kernel)
