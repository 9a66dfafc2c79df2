"""Every `dspark-ext` line of the README and docs is one that the parser takes, and every command
and its help is documented."""

import re
import shlex
from pathlib import Path

import pytest

from dspark_ext.cli.main import COMMANDS, make_parser

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def documented():
    found = []
    for page in PAGES:
        for block in re.findall(r"```\w*\n(.*?)```", page.read_text(), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                match = re.match(r"(?:.*\|\s*|\$ |[A-Z_]+=\S+ )*(dspark-ext .*)", line)
                if match:
                    found.append((page.name, match[1].partition("  #")[0].partition(" > ")[0]))
    return found


@pytest.mark.parametrize("page, line", documented(), ids=lambda text: text[:60])
def test_the_parser_takes_it(page, line):
    options, rest = make_parser().parse_known_args(shlex.split(line)[1:])
    assert rest == [] and callable(options.run)


def test_every_command_is_documented():
    text = (ROOT / "docs/command-line.md").read_text()
    for module in COMMANDS:
        name = module.__name__.rpartition(".")[2]
        assert f"\n## {name}\n" in text
        assert any(line.split()[1] == name for _, line in documented())


@pytest.mark.parametrize("module", COMMANDS, ids=lambda module: module.__name__)
def test_help_is_shown(command, module):
    status, out, _ = command(module.__name__.rpartition(".")[2], "--help")
    assert status == 0 and module.__doc__.splitlines()[0][:40] in out
