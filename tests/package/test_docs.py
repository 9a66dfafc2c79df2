"""README and docs stay true: links resolve and the README's example runs."""

import pathlib
import re

import pytest
import torch

REPOSITORY = pathlib.Path(__file__).parents[2]
PAGES = ["README.md", *sorted(f"docs/{page.name}" for page in REPOSITORY.glob("docs/*.md"))]


@pytest.mark.parametrize("page", PAGES)
def test_links_resolve(repository, page):
    path = repository / page
    links = re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", path.read_text())
    assert links or page != "README.md"
    missing = [link for link in links if not (path.parent / link).exists()]
    assert missing == []


def anchors(path: pathlib.Path) -> set[str]:
    """Of a page's headings, as they are made from the words."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_anchors_resolve(repository, page):
    path = repository / page
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", path.read_text()):
        assert anchor in anchors(path.parent / target if target else path), (target, anchor)


@pytest.mark.parametrize("page", PAGES)
def test_every_python_example_is_python(repository, page):
    text = (repository / page).read_text()
    for example in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        compile(example, page, "exec")


def test_the_example_of_the_readme_runs(repository):
    code = re.search(r"```python\n(.*?)```", (repository / "README.md").read_text(), re.DOTALL)
    names = {}
    exec(code.group(1), names)
    out = names["out"]
    assert 1 <= out.num_emitted.item() <= 4
    emitted = out.token_ids[0, : out.num_emitted.item()]
    assert ((emitted >= 0) & (emitted < names["vocab_size"])).all()
    assert (out.token_ids[0, out.num_emitted.item() :] == -1).all()
    assert torch.equal(emitted[:-1], names["draft_token_ids"][0, : len(emitted) - 1])


def test_the_example_in_losslessness_is_right():
    """Acceptance of a greedy draft under logits (2, 1, 0) at temperatures 0 and 1 (BR-065)."""
    from dspark_ext.sampling import target_probs

    probs = target_probs(torch.tensor([[2.0, 1.0, 0.0]]), temperature=1.0)
    assert probs[0, 0].item() == pytest.approx(0.665, abs=5e-4)
    assert target_probs(torch.tensor([[2.0, 1.0, 0.0]]), temperature=0.0)[0, 0].item() == 1.0
