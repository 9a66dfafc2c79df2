"""What the compilers made of the GPU kernels: resources and instructions, read from the installed
binaries with the vendors' own tools.

A kernel is named as in the source, without namespaces and arguments: "sample_kernel<32>". The first
template argument is the warp size.
"""

import dataclasses
import functools
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sysconfig
import tempfile

import dspark_ext

EXTENSION = pathlib.Path(dspark_ext._C.__file__)
HIP_LIBRARY = EXTENSION.parent / "_hip.so"
BUNDLE_MAGIC = b"__CLANG_OFFLOAD_BUNDLE__"


class MissingToolError(Exception):
    """A tool that reads the binaries is not installed; the message says which."""


@dataclasses.dataclass(frozen=True)
class Kernel:
    backend: str  # "cuda" or "hip"
    architecture: str  # "sm_90a", "gfx942"
    name: str
    resources: dict[str, int]
    instructions: tuple[str, ...]  # without predicates and comments

    @property
    def warp_size(self) -> int:
        return int(re.search(r"<(?:\(int\))?(\d+)", self.name).group(1))

    @property
    def is_foreign(self) -> bool:
        """Compiled for a warp size that this architecture does not have: never launched."""
        return self.warp_size != self.resources.get("wavefront_size", 32)


def run(*command) -> str:
    environment = {**os.environ, "PATH": ":".join([*_tool_folders(), os.environ["PATH"]])}
    return subprocess.run(
        [str(part) for part in command],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    ).stdout


def _tool_folders() -> list[str]:
    """Where tools lie that are not on PATH: Python packages of the CUDA tools, ROCm."""
    site = pathlib.Path(sysconfig.get_path("purelib")) / "nvidia"
    rocm = pathlib.Path(os.environ.get("ROCM_PATH", "/opt/rocm"))
    folders = [*sorted(site.glob("cu*/bin"), reverse=True), pathlib.Path("/usr/local/cuda/bin")]
    return [str(folder) for folder in [*folders, rocm / "llvm/bin"] if folder.is_dir()]


def find_tool(name: str, *, versioned: bool = False) -> str:
    """Path of a tool; of several with a version suffix (llvm-objdump-22) the newest."""
    path = ":".join([*_tool_folders(), os.environ["PATH"]])
    names = [f"{name}-{number}" for number in range(30, 17, -1)] if versioned else []
    for candidate in [*names, name]:
        if found := shutil.which(candidate, path=path):
            return found
    raise MissingToolError(f"{name} is not installed")


def source_name(mangled: str) -> str:
    """A kernel's name without namespaces and arguments."""
    plain = run(find_tool("c++filt"), mangled).strip()
    without_namespaces = re.sub(r"\b\w+::", "", plain).removeprefix("void ")
    return without_namespaces[: without_namespaces.rindex("(")]


# ---- CUDA ---------------------------------------------------------------------------------------


def _cuda_sections(text: str):
    """The parts of a listing of cuobjdump that belong to machine code: (architecture, text)."""
    for part in re.split(r"^Fatbin (?=elf|ptx)", text, flags=re.MULTILINE)[1:]:
        if part.startswith("elf"):
            yield re.search(r"^arch = (\w+)$", part, re.MULTILINE).group(1), part


@functools.cache
def cuda_kernels() -> tuple[Kernel, ...]:
    cuobjdump = find_tool("cuobjdump")
    find_tool("nvdisasm")  # which cuobjdump runs
    instructions = {}
    for architecture, part in _cuda_sections(run(cuobjdump, "-sass", EXTENSION)):
        for body in re.split(r"^\s+Function : ", part, flags=re.MULTILINE)[1:]:
            found = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?(.*?) ?;", body, re.M)
            instructions[architecture, body.split("\n", 1)[0].strip()] = tuple(found)
    kernels = []
    for architecture, part in _cuda_sections(run(cuobjdump, "-res-usage", EXTENSION)):
        for mangled, usage in re.findall(r"^ Function (\S+):\n\s+(.*)$", part, re.MULTILINE):
            numbers = {key: int(value) for key, value in re.findall(r"([A-Z]+):(\d+)", usage)}
            resources = {
                "registers": numbers["REG"],
                "shared": numbers["SHARED"],
                "stack": numbers["STACK"],
                "local": numbers["LOCAL"],
            }
            code = instructions[architecture, mangled]
            kernels.append(Kernel("cuda", architecture, source_name(mangled), resources, code))
    return tuple(sorted(kernels, key=lambda kernel: (kernel.architecture, kernel.name)))


@functools.cache
def ptx_architectures() -> set[str]:
    listing = run(find_tool("cuobjdump"), "-lptx", EXTENSION)
    return {f"compute_{number}" for number in re.findall(r"\.sm_(\w+)\.ptx", listing)}


# ---- HIP ----------------------------------------------------------------------------------------


def code_objects(library: pathlib.Path):
    """(architecture, ELF bytes) of every code object in the bundles of a library."""
    data = library.read_bytes()
    for match in re.finditer(re.escape(BUNDLE_MAGIC), data):
        start, position = match.start(), match.end()
        (count,) = struct.unpack_from("<Q", data, position)
        position += 8
        for _ in range(count):
            offset, size, length = struct.unpack_from("<QQQ", data, position)
            position += 24
            target = data[position : position + length].decode()
            position += length
            if size and target.startswith("hip"):
                code = data[start + offset : start + offset + size]
                yield target.rsplit("-", 1)[-1].split(":")[0], code


def _hip_resources(notes: str) -> dict[str, dict[str, int]]:
    """Resources by mangled name, from the notes of a code object."""
    keys = {
        "vgpr_count": "vgprs",
        "agpr_count": "agprs",
        "sgpr_count": "sgprs",
        "group_segment_fixed_size": "lds",
        "private_segment_fixed_size": "scratch",
        "vgpr_spill_count": "vgpr_spills",
        "sgpr_spill_count": "sgpr_spills",
        "wavefront_size": "wavefront_size",
    }
    found = {}
    for block in re.split(r"^  - (?=\.)", notes, flags=re.MULTILINE)[1:]:
        fields = dict(re.findall(r"^(?: {4})?\.(\w+):\s+(\S+)$", block, re.MULTILINE))
        if "name" in fields:
            found[fields["name"]] = {
                name: int(fields[key]) for key, name in keys.items() if key in fields
            }
    return found


@functools.cache
def hip_kernels() -> tuple[Kernel, ...]:
    readelf = find_tool("llvm-readelf", versioned=True)
    objdump = find_tool("llvm-objdump", versioned=True)
    kernels = []
    with tempfile.TemporaryDirectory() as folder:
        for architecture, code in code_objects(HIP_LIBRARY):
            path = pathlib.Path(folder) / "code.elf"
            path.write_bytes(code)
            listing = run(objdump, "-d", "--no-show-raw-insn", path)
            bodies = dict(re.findall(r"^[0-9a-f]+ <(\S+)>:\n((?:[^\n].*\n)*)", listing, re.M))
            for mangled, resources in _hip_resources(run(readelf, "--notes", path)).items():
                lines = [line.split("//")[0].strip() for line in bodies[mangled].splitlines()]
                code_lines = tuple(line for line in lines if line and line != "...")
                name = source_name(mangled)
                kernels.append(Kernel("hip", architecture, name, resources, code_lines))
    return tuple(sorted(kernels, key=lambda kernel: (kernel.architecture, kernel.name)))


def kernels_of(backend: str) -> tuple[Kernel, ...]:
    """All kernels in the build.

    Raises:
        MissingToolError: a tool that reads the binary is not installed.
    """
    return {"cuda": cuda_kernels, "hip": hip_kernels}[backend]()
