"""What the pages with examples print is what running them prints."""

import re
import subprocess
import sys

import pytest
import torch
from doc_examples import REPOSITORY, run, session


@pytest.fixture(autouse=True)
def printing_of_tensors():
    options = torch._tensor_str.PRINT_OPTS
    kept = (options.precision, options.sci_mode)
    yield
    torch.set_printoptions(precision=kept[0], sci_mode=kept[1])


@pytest.mark.parametrize("page", ["docs/concepts.md", "docs/api.md"])
def test_the_page_prints_what_it_says(page):
    if page == "docs/api.md":
        pytest.importorskip("transformers")
        pytest.importorskip("prometheus_client")
    assert len(session(page).examples) > 20
    _, complaints = run(page)
    assert not complaints, "".join(complaints)


def test_the_pictures_are_drawn_from_what_the_page_computes(tmp_path):
    pytest.importorskip("matplotlib")
    script = REPOSITORY / "docs/pictures/draw.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, timeout=300)
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == {path.name for path in script.parent.glob("*.svg")}
    page = (REPOSITORY / "docs/concepts.md").read_text()
    for name in drawn:
        assert f"(pictures/{name})" in page
        words = [_texts(folder / name) for folder in (tmp_path, script.parent)]
        assert words[0] == words[1] and len(words[0]) > 10, f"{name}: run docs/pictures/draw.py"


def _texts(picture) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]+)</text>", picture.read_text())


def test_the_index_names_every_page():
    index = (REPOSITORY / "docs/README.md").read_text()
    pages = {path.name for path in (REPOSITORY / "docs").glob("*.md")} - {"README.md"}
    assert pages == set(re.findall(r"\]\(([\w-]+\.md)\)", index))
    assert "(docs/README.md)" in (REPOSITORY / "README.md").read_text()
