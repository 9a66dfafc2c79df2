"""What is compiled in is named in THIRD_PARTY_NOTICES, which comes with every distribution."""

import re

# First folder of an include in angle brackets, or the whole name: whose code that is.
OWNERS = {
    "cuda_runtime.h": "CUDA runtime",
    "cuda_bf16.h": "CUDA runtime",
    "cuda_fp16.h": "CUDA runtime",
    "hip": "HIP",
    "pybind11": "pybind11",
    "torch": "PyTorch",
}
# Of the compiler and the C library.
SYSTEM = {"cpuid.h", "dlfcn.h", "immintrin.h", "sanitizer", "sys", "ucontext.h", "unistd.h"}


def included(repository) -> set[str]:
    found = set()
    for folder in ("csrc", "hip"):
        for path in (repository / folder).rglob("*"):
            if path.suffix in (".h", ".cpp", ".cu"):
                found.update(re.findall(r"^\s*#\s*include <([^>]+)>", path.read_text(), re.M))
    standard = re.compile(r"[a-z_]+")  # <cstdint>, <vector>
    return {name.split("/")[0] for name in found if not standard.fullmatch(name)} - SYSTEM


def test_every_header_of_others_is_accounted_for(repository):
    names = included(repository)
    assert {"pybind11", "torch"} <= names <= set(OWNERS)
    notices = (repository / "THIRD_PARTY_NOTICES").read_text()
    for owner in {OWNERS[name] for name in names} | {"CUDA runtime", "HIP"}:
        assert re.search(rf"^\(\d\) {owner}$", notices, re.MULTILINE), owner


def test_the_licence_has_its_whole_text(repository):
    text = (repository / "LICENSE").read_text()
    assert "Apache License" in text and "END OF TERMS AND CONDITIONS" in text
    assert len(text) > 11_000
