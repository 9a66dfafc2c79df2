"""The ledger: totals against the arithmetic of the published sizes, and against real files."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from checkpoints import HEADS, V41, edit, make, saved
from released_configs import V41 as V41_FLASH
from safetensors.torch import load_file

from dspark_ext.draft_head import read_config
from dspark_ext.draft_head.checkpoint import CheckpointError
from dspark_ext.draft_head.ledger import ledger
from dspark_ext.draft_head.names import PARTS, part_of

DOCS = pathlib.Path(__file__).parents[2] / "docs/checkpoints.md"


@pytest.fixture(scope="module")
def flash():
    return ledger(V41_FLASH)


def test_v41_flash_has_the_published_number_of_parameters(flash):
    d, inner, v = 5120, 2304, 129280
    assert flash["experts"].parameters == 3 * 128 * 3 * d * inner == 13_589_544_960
    assert flash["shared experts"].parameters == 3 * 3 * d * inner
    projections = d * 1280 + 1280 * 64 * 512 + d * 512 + 64 * 512 * 1024 + 8 * 1024 * d
    assert projections == 126_615_552
    assert flash["attention"].parameters == 3 * (projections + 64)
    assert flash["main_proj"].parameters == 3 * d * d == 78_643_200
    assert flash["Markov"].parameters == 2 * v * 256 == 66_191_360
    assert flash["routers"].parameters == 3 * 128 * (d + 2)
    assert flash["hyper-connections"].parameters == 6 * (24 * 4 * d + 24 + 3)
    assert flash["confidence"].parameters == d + 256
    assert flash["norms"].parameters == 3 * (2 * d + 1280 + 512) + 2 * d
    main = 3 * 129 * 3 * d * inner + 3 * projections + 3 * d * d + 2 * v * 256
    assert main <= flash.total.parameters <= main * 1.001
    assert abs(flash.total.parameters / 14.2e9 - 1) < 0.002


def test_v41_flash_has_the_bytes_of_its_formats(flash):
    experts = flash["experts"]
    assert experts.bytes == experts.parameters * 17 // 32  # 4.25 bits: 4, and 8 for 32 of them
    assert abs(experts.bytes / 7.2e9 - 1) < 0.005
    assert experts.weight_bytes == experts.parameters // 2
    for part in ("shared experts", "main_proj"):
        row = flash[part]
        assert row.weight_bytes == row.parameters and row.scale_bytes == row.parameters // 1024
    assert flash["attention"].scale_bytes == 3 * 126_615_552 // 1024
    assert flash["Markov"].bytes == 2 * flash["Markov"].parameters
    assert flash["hyper-connections"].scale_bytes == 0  # its tensors called scale are parameters
    assert flash["hyper-connections"].bytes == 4 * flash["hyper-connections"].parameters
    assert flash.total.bytes == sum(row.bytes for row in flash.rows)


def test_docs_show_this_ledger(flash):
    text = DOCS.read_text(encoding="utf-8")
    for line in str(flash).splitlines()[1:]:
        assert line in text, line


@pytest.mark.parametrize("name", HEADS)
def test_a_head_its_config_and_its_files_have_one_ledger(tmp_path, name):
    config, dtype = HEADS[name]
    head, directory = saved(tmp_path, config, dtype)
    ledgers = [ledger(head), ledger(config), ledger(directory), ledger(directory / "config.json")]
    parameters = [{row.part: (row.tensors, row.parameters) for row in e.rows} for e in ledgers]
    assert parameters[0] == parameters[1] == parameters[2] == parameters[3]
    stored = load_file(directory / "model.safetensors")
    assert ledgers[2].total.bytes == sum(tensor.nbytes for tensor in stored.values())
    assert ledgers[0].total.bytes == sum(t.nbytes for t in head.state_dict().values())
    scales = sum(t.nbytes for key, t in stored.items() if key.endswith(".scale"))
    assert ledgers[2].total.scale_bytes == scales
    for part in {row.part for row in ledgers[0].rows} - {"norms"}:  # those are written narrower
        assert ledgers[0][part].bytes == ledgers[2][part].bytes


def test_every_tensor_has_one_part_and_short_names_match_whole():
    for config, dtype in HEADS.values():
        for name in make(config, dtype).state_dict():
            assert part_of(name) in PARTS
    assert part_of("mtp.2.markov_head.markov_w1.weight") == "Markov"
    assert part_of("mtp.2.ffn.experts.12.w1.weight") == "experts"
    assert part_of("mtp.0.attn.q_norm.weight") == "norms"
    for stranger in (
        "markov_w1.weight",
        "mtp.2.ffn.experts.1.markov_w1.weight",
        "mtp.2.ffn.experts.1.w11.weight",
        "model.mtp.2.ffn.experts.1.w1.weight",
        "mtp.2.markov_head.w1.weight",
        "layers.0.ffn.experts.0.w1.weight",
    ):
        with pytest.raises(ValueError, match="is no tensor of a draft head"):
            part_of(stranger)


def test_strangers_in_a_file_are_told(tmp_path):
    _, directory = saved(tmp_path, *V41)
    edit(directory, lambda t: t | {"mtp.0.stranger": t["mtp.0.attn_norm.weight"].clone()})
    with pytest.raises(CheckpointError, match="mtp.0.stranger is no tensor of a draft head"):
        ledger(directory)


def test_table_and_numbers_agree(flash):
    table = flash.table()
    assert table.row_count == len(flash.rows) + 1
    values = flash.to_dict()["parts"]
    assert values["total"]["parameters"] == flash.total.parameters
    assert values["experts"]["bytes"] == flash["experts"].bytes
    for row in flash.rows:
        assert f"{row.parameters:,}" in str(flash)


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "dspark_ext.draft_head.ledger", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment},
    )


@pytest.mark.parametrize("width", ["80", "140"], ids=["narrow", "wide"])
def test_command_line(tmp_path, width):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(V41_FLASH))
    result = run(config, COLUMNS=width)
    assert result.returncode == 0 and result.stderr == ""
    for words in ("experts", "hyper-connections", "13,589,544,960", "14,225,362,530", "4.25"):
        assert words in result.stdout


def test_command_line_for_programs_and_its_errors(tmp_path):
    head, directory = saved(tmp_path, *V41)
    result = run(directory, "--json")
    assert result.returncode == 0
    assert json.loads(result.stdout) == ledger(directory).to_dict()
    missing = run(tmp_path / "nowhere")
    assert missing.returncode == 1 and missing.stdout == ""
    assert "nowhere is no file and no directory" in missing.stderr
    assert read_config(json.loads((directory / "config.json").read_text())) == head.config
