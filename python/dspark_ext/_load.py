"""Loads the compiled part, or says in one line why that is impossible."""

import pathlib
import platform

TORCH_MINIMUM = (2, 10)  # the stable ABI that _C is built for


def _minimum() -> str:
    return ".".join(map(str, TORCH_MINIMUM))


_REINSTALL_TORCH = f"install it again: pip install --force-reinstall 'torch>={_minimum()}'"


def check_torch(version: str) -> None:
    """Raise ImportError unless `version` is a torch release that _C can run on."""
    major, minor = (int(part) for part in version.split(".")[:2])
    if (major, minor) < TORCH_MINIMUM:
        raise ImportError(
            f"dspark_ext: built for torch >= {_minimum()}, found torch {version}; "
            f"upgrade it with: pip install 'torch>={_minimum()}'"
        )


def load_error(reason: ImportError, torch_version: str, folder: pathlib.Path) -> ImportError:
    """The error for a compiled part that is missing from `folder` or does not load."""
    built = sorted(path.name for path in folder.glob("_C.*.so"))
    return ImportError(
        f"dspark_ext: the compiled part did not load: built for torch >= {_minimum()} as "
        f"{', '.join(built) or 'nothing (no _C.*.so in ' + str(folder) + ')'}, "
        f"found torch {torch_version} with Python {platform.python_version()} on "
        f"{platform.machine()} ({reason}); "
        "rebuild it with: pip install --force-reinstall --no-deps ."
    )


try:
    import torch  # before _C, which links against its libraries
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError(
        f"dspark_ext: torch is missing; install it with: pip install 'torch>={_minimum()}'"
    ) from None
except OSError as error:  # one of its libraries
    raise ImportError(f"dspark_ext: torch does not load: {error}; {_REINSTALL_TORCH}") from None
if not hasattr(torch, "__version__"):  # a folder without code is a package too
    raise ImportError(
        f"dspark_ext: torch is only {torch.__spec__.origin or list(torch.__path__)}: a file of "
        f"that name, or what an incomplete removal has left; {_REINSTALL_TORCH}"
    )

check_torch(torch.__version__)
try:
    from . import _C  # registers torch.ops.dspark_ext
except ImportError as error:
    _folder = pathlib.Path(__file__).parent
    raise load_error(error, torch.__version__, _folder) from None

try:
    _C.cpu_isa()
except RuntimeError as error:  # DSPARK_CPU_ISA; an operator would say it less clearly
    raise ImportError(f"dspark_ext: {error}") from None

if torch.version.hip:  # only there is the runtime that the HIP kernels are linked with
    _C.use_hip(str(pathlib.Path(_C.__file__).parent / "_hip.so"))

__version__ = _C.build_facts()["version"]
