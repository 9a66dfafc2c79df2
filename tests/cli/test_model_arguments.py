"""Targets and drafters that the model arguments choose."""

import json

import pytest

from dspark_ext.demo import tiny

PROMPT = tiny.PROMPTS[0]
SETTINGS = ["--raw", "--max-new-tokens", 24, "--dtype", "fp32", "--threads", 1, "--max-len", 200]


def tokens(command, *arguments):
    status, out, err = command("generate", PROMPT, "--json", *SETTINGS, *arguments)
    assert status == 0, err
    return json.loads(out)["token_ids"]


@pytest.fixture(scope="module")
def other_directory(tmp_path_factory, model_directory):
    """A random model of a type that the engine's own layers do not know, with bytes as tokens."""
    import torch
    import transformers

    path = tmp_path_factory.mktemp("models") / "gpt"
    torch.manual_seed(0)
    config = transformers.GPTNeoXConfig(
        vocab_size=256,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=256,
    )
    transformers.GPTNeoXForCausalLM(config).save_pretrained(path)
    for file in model_directory.glob("tokenizer*"):
        (path / file.name).write_bytes(file.read_bytes())
    return path


def test_every_drafter_gives_the_tokens_of_plain_decoding(command, model_directory, fixtures):
    target = ["--target", model_directory]
    plain = tokens(command, *target, "--drafter", "none")
    for drafter in (fixtures / "tiny_drafter.safetensors", "ngram", model_directory):
        assert tokens(command, *target, "--drafter", drafter) == plain


@pytest.mark.parametrize("flavour", ["qwen3", "deepseek_v41"])
def test_a_head_of_a_released_flavour(command, model_directory, tmp_path, flavour):
    import draft_heads

    from dspark_ext.draft_head import save_draft_head

    if flavour == "qwen3":
        config = draft_heads.dense(flavour, hidden_size=128, vocab_size=256)
    else:
        config = draft_heads.deepseek(
            flavour, hidden_size=128, vocab_size=256, dspark_noise_token_id=0
        )
    save_draft_head(draft_heads.make(config), tmp_path / "head")
    target = ["--target", model_directory]
    plain = tokens(command, *target, "--drafter", "none")
    assert tokens(command, *target, "--drafter", tmp_path / "head") == plain


def test_settings_choose_the_drafter(command, model_directory):
    target = ["--target", model_directory]
    plain = tokens(command, *target, "--drafter", "none")
    for settings, told in (
        ({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}, "ngram"),
        ({"model": str(model_directory), "num_speculative_tokens": 2}, "tiny"),
    ):
        words = ["generate", PROMPT, *SETTINGS, *target]
        words += ["--speculative-config", json.dumps(settings)]
        drafts = settings["num_speculative_tokens"]
        status, _, log = command(*words)
        assert status == 0 and f"drafter {told}, blocks of {drafts}" in log
        assert tokens(command, *words[2:][-4:]) == plain
        status, _, err = command(*words, "--drafter", "none")
        assert status == 2 and "--drafter: none contradicts" in err


def test_presets_and_settings_of_a_file(command, tiny_pair_arguments, tmp_path):
    path = tmp_path / "settings.json"
    path.write_text('{"schedule": "threshold", "confidence_threshold": 0.5}')
    words = ["bench", PROMPT, "--raw", "--max-new-tokens", 8, "--repeats", 1, *tiny_pair_arguments]
    words += ["--concurrency", "1"]
    status, out, _ = command(*words, "--speculative-config", path)
    assert status == 0 and "schedule threshold" in out
    status, out, _ = command(*words, "--preset", "low_latency")
    assert status == 0 and "schedule early_stop" in out
    status, out, _ = command(
        *words, "--preset", "low_latency", "--speculative-config", '{"schedule": "fixed"}'
    )
    assert status == 0 and "schedule fixed" in out
    cache = tmp_path / "costs.json"
    settings = {"schedule": "early_stop", "cost_table_cache": str(cache)}
    status, out, _ = command(*words, "--speculative-config", json.dumps(settings))
    assert status == 0 and "schedule early_stop" in out and cache.exists()


def test_a_model_of_another_type(command, other_directory):
    target = ["--target", other_directory]
    plain = tokens(command, *target, "--drafter", "none")
    assert len(plain) == 24 and tokens(command, *target) == plain  # n-grams are the default
    assert tokens(command, *target, "--drafter", other_directory) == plain


def test_models_that_do_not_fit(command, model_directory, other_directory, tmp_path, fixtures):
    common = ["generate", PROMPT, "--threads", 1]
    for arguments, expected in (
        (["--target", other_directory, "--drafter", fixtures / "tiny_drafter.safetensors"], "taps"),
        (["--target", model_directory, "--drafter", "demo"], "--target"),
        (["--target", model_directory, "--device", "nowhere"], "--device"),
    ):
        status, out, err = command(*common, *arguments)
        assert (status, out) == (2, "") and expected in err and err.count("\n") == 1, err


def test_lossy_settings_have_to_be_allowed_and_are_marked(command, tiny_pair_arguments):
    settings = {"rejection_sample_method": "synthetic", "synthetic_acceptance_length": 3.0}
    words = ["generate", PROMPT, "--json", *tiny_pair_arguments, "--speculative-config"]
    status, _, err = command(*words, json.dumps(settings))
    assert status == 2 and "allow_lossy" in err
    status, out, err = command(*words, json.dumps({**settings, "allow_lossy": True}))
    assert status == 0 and json.loads(out)["lossy"] is True and "LOSSY" in err


@pytest.mark.parametrize(
    "settings",
    [
        {"blocks_per_step": 2},
        {"preset": "high_throughput"},
        {"preset": "quality", "num_speculative_tokens": 2},
        {"schedule": "budget", "verify_budget": 4},
        {"schedule": "uniform"},
        {"min_acceptance": 0.99, "acceptance_window": 2},
        {"rejection_sample_method": "token", "draft_sample_method": "greedy"},
    ],
    ids=str,
)
def test_every_kind_of_setting_is_reported_and_drawn(
    command, tiny_pair_arguments, tmp_path, settings
):
    words = ["generate", *tiny.PROMPTS[:2], "--raw", "--max-new-tokens", 24, "--json"]
    words += tiny_pair_arguments
    files = ["--report", tmp_path / "r.json", "--plot", tmp_path / "p.png"]
    status, out, err = command(*words, *files, "--speculative-config", json.dumps(settings))
    assert status == 0, err
    plain = command(*words, "--plain")[1]
    texts = [[json.loads(line)["text"] for line in each.splitlines()] for each in (out, plain)]
    assert texts[0] == texts[1] and (tmp_path / "p.png").exists()
    total = json.loads((tmp_path / "r.json").read_text())["total"]
    assert total["emitted"] == 48
    assert total["verified_drafts"] == total["acceptance"]["drafted"] > 0
