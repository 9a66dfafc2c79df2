"""The files that the lint tests read."""

import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("bench", "cmake", "csrc", "examples", "hip", "python", "tests")
CODE = (".h", ".cpp", ".cu", ".py", ".cmake")
FAMILIES = tuple(sorted(p.name for p in (ROOT / "csrc/ops").iterdir() if p.is_dir()))

# Families whose Python functions stand in a package of another name, which re-exports them.
PACKAGES = {"moe": "moe", "router": "moe"}


def python_module(family):
    """Name of the module of dspark_ext that has the functions of a family."""
    return PACKAGES.get(family, family)


def code_files(*folders):
    """Source files below `folders` (default: all of them), as paths relative to the repository."""
    found = []
    for folder in folders or FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            hidden = any(part.startswith(".") for part in path.relative_to(ROOT).parts)
            if path.is_file() and path.suffix in CODE and not hidden:
                found.append(path.relative_to(ROOT))
    return found


def text(path):
    return (ROOT / path).read_text(encoding="utf-8")


def without_comments(source):
    """C++ text with // and /* */ comments blanked out; line numbers stay."""
    out, i, quote = [], 0, None
    while i < len(source):
        two = source[i : i + 2]
        if quote:
            out.append(source[i])
            if source[i] == "\\":
                out.append(source[i + 1])
                i += 1
            elif source[i] == quote:
                quote = None
        elif two == "//":
            i = source.find("\n", i)
            if i < 0:
                break
            continue
        elif two == "/*":
            end = source.index("*/", i) + 2
            out.append("\n" * source.count("\n", i, end))
            i = end
            continue
        else:
            if source[i] == '"':
                quote = '"'
            out.append(source[i])
        i += 1
    return "".join(out)
