"""Errors of the user, which are told in one line, and of wrong arguments."""

import argparse
import difflib
import re
import sys
from contextlib import contextmanager
from typing import NoReturn


class UserError(Exception):
    """Something the user can put right; its text is one line that names the argument."""


@contextmanager
def told_of(argument: str, *kinds: type[Exception]):
    """Turn errors of the given kinds (default: those of files and values) into a `UserError`."""
    caught = kinds or (OSError, ValueError)
    try:
        yield
    except caught as error:
        raise UserError(f"{argument}: {one_line(error)}") from error


def one_line(error: BaseException | str) -> str:
    """The text of an error without line breaks and without the name of the function raising it."""
    text = re.sub(r"\s+", " ", str(error)).strip() or type(error).__name__
    return re.sub(r"^dspark_ext(\.\w+)*: ", "", text)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose complaints are one line; an unknown option names the nearest one."""

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: (\S+)", message)
        if unknown:
            options = [name for action in self._actions for name in action.option_strings]
            near = difflib.get_close_matches(unknown[1].split("=")[0], options, n=1)
            message = f"unknown argument {unknown[1]}" + (f" (nearest: {near[0]})" if near else "")
        print(f"{self.prog}: {one_line(message)} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)
