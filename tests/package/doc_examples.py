"""Runs the `pycon` blocks of a page, in order, in one session, and compares what they print."""

import doctest
import pathlib
import re

REPOSITORY = pathlib.Path(__file__).parents[2]


def session(page: str) -> doctest.DocTest:
    """The page's examples, with the line numbers of the page."""
    text = (REPOSITORY / page).read_text()
    blocks = [(m.group(1), text.count("\n", 0, m.start(1))) for m in _BLOCK.finditer(text)]
    examples = []
    for block, line in blocks:
        for example in doctest.DocTestParser().get_examples(block):
            example.lineno += line
            examples.append(example)
    return doctest.DocTest(examples, {}, page, page, 0, None)


def run(page: str, names: dict | None = None) -> tuple[dict, list[str]]:
    """The session's names, and what was printed otherwise than the page says."""
    test = session(page)
    test.globs.update(names or {})
    complaints: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    runner.run(test, out=complaints.append, clear_globs=False)
    return test.globs, complaints


_BLOCK = re.compile(r"^```pycon\n(.*?)^```$", re.DOTALL | re.MULTILINE)
