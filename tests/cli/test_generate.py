"""dspark-ext generate: prompts from everywhere, answers in every form, the numbers that go with
them."""

import io
import json
import sys

import pytest

from dspark_ext import ranges
from dspark_ext.cli import models, screen
from dspark_ext.cli.collect import Collector
from dspark_ext.demo import tiny
from dspark_ext.engine import HuggingFaceTarget

PROMPT = tiny.PROMPTS[0]


def test_text_of_one_prompt_alone_goes_to_standard_output(command, tiny_pair_arguments):
    common = ["generate", PROMPT, "--raw", "--max-new-tokens", 24, "--dtype", "fp32"]
    status, drafted, log = command(*common, *tiny_pair_arguments)
    assert status == 0 and len(drafted) >= 24
    assert "tokens a target pass" in log and "accepted" in log
    status, plain, log = command(*common, *tiny_pair_arguments, "--plain")
    assert status == 0 and plain == drafted  # greedy
    assert "plain decoding" in log and "tokens a target pass" not in log


def test_prompts_of_arguments_files_and_stdin(command, tiny_pair_arguments, tmp_path, lines_of):
    text, lines = tmp_path / "prompts.txt", tmp_path / "prompts.jsonl"
    text.write_text("import os\n\nimport sys\n")
    lines.write_text(
        '"class A"\n{"prompt": "def f", "max_new_tokens": 3}\n{"prompt": [100, 101], "seed": 5}\n'
        '{"messages": [{"role": "user", "content": "hello"}], "temperature": 0.5}\n'
    )
    status, out, _ = command(
        *("generate", "first", "-", "--file", text, "--file", lines, "--json"),
        *("--max-new-tokens", 6, *tiny_pair_arguments),
        stdin="from a pipe\nof two lines\n",
    )
    answers = lines_of(out)
    assert status == 0
    assert [answer["prompt"] for answer in answers] == [
        *("first", "from a pipe\nof two lines", "import os", "import sys"),
        *("class A", "def f", [100, 101], [{"role": "user", "content": "hello"}]),
    ]
    assert [len(answer["token_ids"]) for answer in answers] == [6, 6, 6, 6, 6, 3, 6, 6]
    for answer in answers:
        assert answer["text"] == tiny.decode(answer["token_ids"])


def test_a_line_ends_where_a_file_has_one(command, tiny_pair_arguments, tmp_path, lines_of):
    """Not at other characters of Unicode that end lines; a byte order mark is no text."""
    text, lines = tmp_path / "prompts.txt", tmp_path / "prompts.jsonl"
    text.write_bytes("\ufeffone\x0c two\u2028 three\r\nfour\x85\n".encode())
    lines.write_text("\ufeff" + json.dumps("five\u2028\x85", ensure_ascii=False) + "\n", "utf-8")
    status, out, error = command(
        *("generate", "--file", text, "--file", lines, "--json", "-", *tiny_pair_arguments),
        *("--max-new-tokens", 2),
        stdin="\ufeffsix",
    )
    assert status == 0, error
    assert [json.loads(line)["prompt"] for line in out.split("\n") if line] == [
        *("six", "one\x0c two\u2028 three", "four\x85", "five\u2028\x85"),
    ]


def test_answers_are_written_as_they_are(capsys):
    """Tabs are tabs, and what looks like markup or the name of an emoji is text."""
    text = "a\tb\n\t[bold]x[/]\n:smile: \r\n" + 300 * "word "
    for style in ("", "green"):
        screen.write(screen.consoles()[0], text, style)
        assert capsys.readouterr().out.encode() == text.encode()


def test_an_answer_that_fails_is_a_finding(command, tiny_pair_arguments, monkeypatch):
    whole = HuggingFaceTarget.forward

    def broken(self, batch):
        output = whole(self, batch)
        output.logits.fill_(float("nan"))
        return output

    monkeypatch.setattr(HuggingFaceTarget, "forward", broken)
    for words in (("one",), ("one", "two", "--json")):
        status, _, error = command("generate", *words, "--compare", *tiny_pair_arguments)
        assert status == 1 and "answers ended with an error" in error


@pytest.mark.parametrize("more", [[], ["two"]])
def test_leaving_early_frees_what_runs(command, tiny_pair_arguments, monkeypatch, more):
    """Ctrl-C, or a reader of the output that goes. Streams that are left open are in a cycle of
    references when the interpreter ends, where torch aborts the process (status 134)."""
    kept, load = [], models.load

    def keep(*arguments, **options):
        kept.append(load(*arguments, **options))
        return kept[-1]

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(models, "load", keep)
    monkeypatch.setattr(Collector, "add", interrupted)
    status, _, error = command("generate", "one", *more, *tiny_pair_arguments)
    assert status == 130 and "interrupted" in error
    assert kept[0].engine.slots.available == 8


def test_an_output_that_is_closed(command, tiny_pair_arguments, monkeypatch):
    for more in ([], ["--json"]):
        monkeypatch.setattr(sys, "stdout", None)
        words = ["generate", "one", "--max-new-tokens", 2, *more, *tiny_pair_arguments]
        assert command(*words)[0] == 0


@pytest.mark.parametrize("more", [["--json"], []])
def test_a_locale_that_cannot_write_an_answer(command, tiny_pair_arguments, monkeypatch, more):
    written = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", written)
    words = ["generate", "é €", "é", "--max-new-tokens", 2, *more]
    assert command(*words, *tiny_pair_arguments)[0] == 0
    written.flush()
    text = written.buffer.getvalue().decode("ascii")
    if more:
        assert json.loads(text.splitlines()[0])["prompt"] == "é €"
    else:
        assert r"\u20ac" in text


def test_the_chat_template_is_used_unless_raw(command, tiny_pair_arguments, lines_of):
    def tokens(*arguments):
        words = ["generate", *arguments, "--json", "--max-new-tokens", 12, *tiny_pair_arguments]
        return lines_of(command(*words)[1])[0]["token_ids"]

    templated = "# user: hello\n# assistant:"
    assert tokens("hello") == tokens(templated, "--raw") != tokens("hello", "--raw")


def test_report_and_plots(command, tiny_pair_arguments, tmp_path):
    pytest.importorskip("matplotlib")
    report, plots, image = tmp_path / "report.json", tmp_path / "plots", tmp_path / "all.svg"
    common = ["generate", *tiny.PROMPTS[:3], "--raw", "--max-new-tokens", 40, *tiny_pair_arguments]
    status, out, log = command(*common, "--compare", "--report", report, "--plot", plots)
    assert status == 0
    numbers = json.loads(report.read_text())
    total, speedup = numbers["total"], numbers["speedup"]
    assert total["emitted"] == 120 == sum(each["emitted"] for each in numbers["requests"])
    assert sum(total["acceptance"]["accepted_by_position"]) == total["acceptance"]["accepted"]
    assert total["acceptance"]["accepted"] == sum(r["accepted"] for r in numbers["requests"])
    assert 1 <= total["tokens_per_pass"] <= 6 and 0 < total["acceptance"]["rate"] < 1
    assert speedup["identical"] is True and len(speedup["rounds"]) == 3
    assert f"{speedup['ratio']:.2f}x" in log
    assert {p.name for p in plots.iterdir()} == {
        *("acceptance.png", "verify-lengths.png", "reliability.png")
    }
    assert command(*common, "--plot", image)[0] == 0
    assert image.read_text().lstrip().startswith("<?xml")


def test_without_prompts_built_in_ones_are_answered_and_compared(command, tiny_pair_arguments):
    status, out, log = command("generate", "--max-new-tokens", 8, *tiny_pair_arguments)
    assert status == 0
    assert "Explain why the sky is blue" in out and "Measured on these prompts" in log


def test_bench_shows_both_rates(command, tiny_pair_arguments):
    words = ["bench", *tiny.PROMPTS[:3], "--raw", "--max-new-tokens", 8, "--repeats", 2, "--json"]
    status, out, _ = command(*words, "--concurrency", "1,3", *tiny_pair_arguments)
    rows = json.loads(out)["measurements"]
    assert status == 0 and [row["concurrency"] for row in rows] == [1, 3]
    for row in rows:
        assert row["speedup"]["identical"] is True and 0 < row["acceptance"] < 1
        assert row["lowest"] <= row["speedup"]["ratio"] <= row["highest"]
        assert row["speedup"]["plain_tokens_per_second"] > 0
    assert rows[0]["speedup"]["tokens_per_pass"] == rows[1]["speedup"]["tokens_per_pass"]
    status, out, _ = command(*words[:-1], "--concurrency", "2", *tiny_pair_arguments)
    assert status == 0 and "identical" in out and "per pass" in out


def test_a_trace_has_the_phases_and_the_operators(command, tiny_pair_arguments, tmp_path):
    trace = tmp_path / "trace.json"
    common = ["generate", PROMPT, "--raw", "--max-new-tokens", 12, *tiny_pair_arguments]
    status, _, log = command(*common, "--trace", trace)
    assert status == 0 and "Wrote" in log
    events = json.loads(trace.read_text())["traceEvents"]
    names = [event.get("name") for event in events]
    steps = names.count("dspark.step")
    assert steps > 1
    for phase in ("prefill", "draft", "schedule", "verify", "rejection", "read", "commit", "text"):
        assert names.count(f"dspark.{phase}") == steps and phase in log
    assert "dspark.admission" in names
    assert names.count("dspark_ext::rejection_sample") == steps == names.count("dspark_ext::pack")
    assert not ranges.enabled()


def test_a_trace_that_cannot_be_written_is_told_before_the_run(command, tiny_pair_arguments):
    status, out, log = command(
        *("generate", PROMPT, "--raw", "--trace", "/no/such/folder/trace.json"),
        *tiny_pair_arguments,
    )
    assert status != 0 and out == "" and "--trace" in log
