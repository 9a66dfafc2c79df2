"""The parser of all commands, and how errors are told."""

import argparse
import os
import sys
import warnings

from .. import __version__
from . import bench, calibrate, chat, doctor, generate, inspect, profile, serve
from .errors import Parser, UserError, one_line

COMMANDS = (generate, chat, serve, bench, profile, calibrate, doctor, inspect)
EPILOGUE = """\
Without further arguments a command uses the demo's model pair, SmolLM2-135M-Instruct and a drafter
that comes with this package (93 MB are fetched once). Start with: dspark-ext generate
"""


def make_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="dspark-ext",
        description="Lossless speculative decoding with DSpark drafters.",
        epilog=EPILOGUE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"dspark-ext {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in COMMANDS:
        name = module.__name__.rpartition(".")[2]
        text = module.__doc__ or f"{name}\n"  # python -OO keeps no docstrings
        summary = text.splitlines()[0]
        command = commands.add_parser(name, help=summary, description=text)
        module.add_arguments(command)
        command.set_defaults(run=module.run, parser=command)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns its exit status: 0, 1 for a finding, 2 for an error of the user."""
    options, rest = make_parser().parse_known_args(arguments)
    if rest:
        options.parser.error(f"unrecognized arguments: {' '.join(rest)}")
    warnings.showwarning = _show_warning
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started this
            setattr(sys, name, open(os.devnull, "w"))
        getattr(sys, name).reconfigure(errors="backslashreplace")  # of what the locale cannot write
    try:
        return options.run(options) or 0
    except UserError as error:
        return _fail(options, str(error))
    except KeyboardInterrupt:
        return _fail(options, "interrupted", 130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output is gone, and with it who would read this
        return 1
    except ModuleNotFoundError as error:
        needs = {name.replace("-", "_"): name for name in doctor.PACKAGES}.get(error.name)
        if needs is None:
            raise
        extra = doctor.PACKAGES[needs][2]
        return _fail(options, f"needs {needs}: pip install 'dspark_ext[{extra}]'")
    except (ValueError, ImportError, OSError, RuntimeError) as error:
        if not str(error).startswith("dspark_ext"):
            raise
        return _fail(options, one_line(error))


def _fail(options: argparse.Namespace, message: str, status: int = 2) -> int:
    print(f"{options.parser.prog}: {message}", file=sys.stderr)
    return status


def _show_warning(message, category, filename, lineno, file=None, line=None) -> None:
    if issubclass(category, UserWarning):
        print(f"warning: {one_line(message)}", file=sys.stderr)
