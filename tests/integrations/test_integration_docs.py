"""The examples of docs/integrations.md and docs/migrating.md run as they are printed."""

import pathlib
import re

import pytest

from dspark_ext.integrations import vllm_plugin

DOCS = pathlib.Path(__file__).parents[2] / "docs"
EXAMPLES = [
    (page, number, code)
    for page in ("integrations.md", "migrating.md")
    for number, code in enumerate(
        re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    )
]


@pytest.mark.parametrize("page, number, code", EXAMPLES, ids=lambda value: str(value)[:20])
def test_an_example_runs(page, number, code):
    exec(compile(code, f"{page}:{number}", "exec"), {})


def test_both_pages_have_examples():
    assert {page for page, _, _ in EXAMPLES} == {"integrations.md", "migrating.md"}


def test_every_setting_of_the_plugin_is_described():
    text = (DOCS / "integrations.md").read_text()
    assert all(f"`{choice}`" in text for choice in vllm_plugin.CHOICES)
    for _, name in vllm_plugin._PARAMETERS:
        if "." not in name and name != "apply_top_k_top_p":
            assert f"`{name}`" in text, name


def test_the_settings_of_vllm_are_read_as_the_table_says():
    from dspark_ext.engine import SpeculativeConfig

    def read(**values):
        return SpeculativeConfig.from_dict(values)

    assert read(enable_adaptive_verification=False).schedule == "fixed"
    assert read(rejection_sample_method="standard").rejection_sample_method in ("standard", "token")
    assert read(method="ngram", prompt_lookup_max=3).prompt_lookup_max == 3
    assert read(enforce_eager=None).schedule == "fixed"
    rates = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 2.5}
    assert read(**rates, num_speculative_tokens=5, allow_lossy=True).allow_lossy
    for refused in ({"method": "eagle3"}, {"enforce_eager": True}, {"quantization": "fp8"}, rates):
        with pytest.raises(ValueError):
            read(**refused)
