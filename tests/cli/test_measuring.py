"""dspark-ext profile, calibrate and inspect."""

import json
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from dspark_ext.calibration import Calibration
from dspark_ext.demo import tiny
from dspark_ext.verify import CostTable

sys.path.append(str(Path(__file__).parents[1] / "draft_head"))
from checkpoints import V41, make  # noqa: E402

from dspark_ext.draft_head import save_draft_head  # noqa: E402

FIXTURES = Path(__file__).parents[1] / "fixtures"


def test_profile_writes_a_cost_table(command, tiny_pair_arguments, tmp_path):
    out_file = tmp_path / "cost.json"
    words = ["profile", "--max-requests", 2, "--out", out_file, *tiny_pair_arguments]
    status, out, _ = command(*words)
    table = CostTable.load(out_file)
    assert status == 0 and table.rows[-1] == 12 and table.request_rows == [1, 2]
    assert "rows of a pass" in out and "plain steps" in out
    status, out, err = command(*words, "--json", "--form", "sglang_rates")
    assert status == 2 and "--form" in err  # it has no curve by requests
    status, out, _ = command(*words, "--json", "--form", "vllm")
    assert status == 0 and set(json.loads(out)) >= {"num_tokens", "verify_ms", "num_reqs"}


def test_profile_and_calibrate_verify_every_draft_whatever_the_settings(
    command, tiny_pair_arguments, tmp_path
):
    settings = {"schedule": "threshold", "confidence_threshold": 0.9, "num_speculative_tokens": 3}
    common = ["--max-requests", 1, *tiny_pair_arguments, "--speculative-config"]
    out_file = tmp_path / "cost.json"
    words = ["profile", "--out", out_file, *common, json.dumps(settings)]
    assert command(*words)[0] == 0 and CostTable.load(out_file).rows[-1] == 4
    words = ["calibrate", *tiny.PROMPTS, "--raw", "--out", out_file, *common, json.dumps(settings)]
    status, _, err = command(*words)
    assert status == 0, err
    assert Calibration.load(out_file).num_samples > 50
    assert len(Calibration.load(out_file).temperatures) == 3


def test_calibrate_writes_what_the_commands_read(command, tiny_pair_arguments, tmp_path):
    out_file, plot = tmp_path / "calibration.json", tmp_path / "reliability.png"
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(text.strip() for text in tiny.PROMPTS * 4))
    words = ["--file", prompts, "--raw", "--max-new-tokens", 40, *tiny_pair_arguments]
    status, out, log = command("calibrate", *words, "--out", out_file, "--plot", plot)
    assert status == 0 and plot.exists() and "ECE held out" in out
    calibration = Calibration.load(out_file, num_drafts=5)
    assert calibration.num_samples > 100
    assert calibration.dataset.startswith("prompts.txt (sha256 ")
    assert calibration.conditions["drafter"] == "tiny_drafter"
    assert sum(calibration.ece_after) < sum(calibration.ece_before)
    use = ["generate", tiny.PROMPTS[0], "--raw", "--max-new-tokens", 8, *tiny_pair_arguments]
    status, calibrated, _ = command(*use, "--calibration", out_file)
    assert status == 0 and calibrated == command(*use)[1]


def test_a_calibration_changes_the_confidences_and_nothing_else(serve, prompts):
    import torch

    from dspark_ext.cli.calibrated import CalibratedDrafter
    from dspark_ext.engine import DSparkEngine, SamplingParams

    engine = serve()
    temperatures = (0.5, 1.0, 2.0, 1.0, 4.0)
    drafter = CalibratedDrafter(engine.drafter, Calibration(temperatures))
    calibrated = DSparkEngine(engine.target, drafter)
    params = SamplingParams(temperature=0.8, seed=3, max_new_tokens=20)
    before, after = (list(each.stream(prompts[:1], params)) for each in (engine, calibrated))
    assert [event.token_ids for event in before] == [event.token_ids for event in after]
    for old, new in zip(before, after):
        scale = torch.tensor(temperatures[: len(old.confidences)])
        expected = (torch.logit(torch.tensor(old.confidences)) / scale).sigmoid()
        torch.testing.assert_close(torch.tensor(new.confidences), expected, rtol=1e-4, atol=1e-5)


def test_calibrate_needs_confidences(command, tiny_pair_arguments):
    status, _, err = command("calibrate", "hi", *tiny_pair_arguments, "--drafter", "none")
    assert status == 2 and "--drafter: a calibration needs a drafter" in err


def test_inspect_a_released_head(command, tmp_path):
    config, dtype = V41
    save_draft_head(make(config, dtype), tmp_path)
    status, out, _ = command("inspect", tmp_path)
    assert status == 0 and "draft head, deepseek_v41" in out and "hyper-connections" in out
    assert "Complete: no tensor is missing" in out
    status, out, _ = command("inspect", tmp_path, "--json")
    facts = json.loads(out)
    assert facts["findings"] == {} and facts["parts"]["total"]["parameters"] > 0

    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["mtp.0.attn_norm.weight"]
    tensors["mtp.0.surplus.weight"] = tensors["mtp.0.main_norm.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    status, out, _ = command("inspect", tmp_path)
    assert status == 1
    assert "missing (1):\n  mtp.0.attn_norm.weight" in out
    assert "unexpected (1):\n  mtp.0.surplus.weight" in out


def test_inspect_the_compact_head_a_target_and_a_config(command, model_directory, tmp_path):
    drafter = FIXTURES / "tiny_drafter.safetensors"
    status, out, _ = command("inspect", drafter, "--json")
    facts = json.loads(out)
    assert status == 0 and facts["flavour"] == "compact"
    assert (
        sum(part["bytes"] for name, part in facts["parts"].items() if name != "total")
        == (facts["parts"]["total"]["bytes"])
    )
    assert facts["parts"]["total"]["bytes"] < drafter.stat().st_size
    status, out, _ = command("inspect", model_directory)
    assert status == 0 and "target, LlamaForCausalLM" in out and "model_type: llama" in out
    config = tmp_path / "config.json"
    config.write_text('{"model_type": "unheard_of"}')
    status, out, _ = command("inspect", config)
    assert status == 1 and "cannot tell the flavour" in out


@pytest.mark.parametrize("config", ["{", "[]", '{"hidden_size": "wide"}', '{"a": 1}', ""])
def test_inspect_a_compact_head_with_a_wrong_config(command, tmp_path, config):
    path = tmp_path / "head.safetensors"
    tensors = load_file(FIXTURES / "tiny_drafter.safetensors")
    save_file(tensors, path, metadata={"format": "dspark_ext.draft_head.v1", "config": config})
    status, out, err = command("inspect", path)
    assert status == 1 and "config (1):" in out and err == ""


@pytest.mark.parametrize("content", [b"", b"\x80\x02}q\x00.", b'{"a": 1}'], ids=["", "pickle", "x"])
def test_inspect_hostile_files(command, tmp_path, content):
    path = tmp_path / "head.safetensors"
    path.write_bytes(content)
    status, out, err = command("inspect", path)
    assert status == 1 and "unreadable files (1):" in out and err == ""
