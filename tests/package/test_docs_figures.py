"""Figures of docs/choosing.md are those of the tables they are taken from."""

import json
import re
import sys

import pytest
from doc_examples import REPOSITORY

REPORT = "bench/results/report/report.md"
PAGE = (REPOSITORY / "docs/choosing.md").read_text()


def rows(text: str) -> list[list[str]]:
    """The cells of every row of every table."""
    lines = [line for line in text.split("\n") if line[:1] == "|"]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


def test_the_table_of_schedules_is_that_of_the_simulation():
    results = (REPOSITORY / "bench/results/schedule.md").read_text()
    measured = results.split("## Steps of this CPU, recorded drafts")[1].split("\n## ")[0]
    head, _, *body = rows(measured.split("confidences calibrated:")[1])
    source = {line[0]: dict(zip(head, line, strict=True)) for line in body}
    start = next(i for i, line in enumerate(rows(PAGE)) if line[0] == "requests")
    head, _, *body = rows(PAGE)[start:]
    body = body[: next(i for i, line in enumerate(body) if not line[0].isdigit())]
    assert len(body) == 6
    for line in body:
        for name, value in zip(head, line, strict=True):
            assert source[line[0]][name] == value, (line[0], name)


@pytest.mark.parametrize(
    ("page", "theirs", "ours"),
    [
        (
            "docs/engine.md",
            "| bf16 | 13.0 / 12.5 / 14.2 / 14.3 |",
            "6 rows takes 14.3 ms and one over 1 row 13.0",
        ),
        ("docs/engine.md", "| 1.9 / 12 |", "drafting 1.9 ms"),
        ("docs/engine.md", "| bf16 | 0 | 1.58 |", "1.58 tokens greedily"),
        ("docs/engine.md", "| bf16 | 0.8 | 1.73 |", "1.73 at\ntemperature 0.8"),
        ("docs/engine.md", "1.24x (1.10 / 1.55 / 1.15)", "gained 1.24x"),
        (
            "docs/engine.md",
            "1.24x (1.10 / 1.55 / 1.15)",
            "gains 1.55 where the chat prompt gains 1.10",
        ),
        ("docs/engine.md", "1.55x (1.37 / 1.87 / 1.50)", "1.55x greedy"),
        ("docs/engine.md", "1.67x (1.79 / 1.84 / 1.46)", "1.67x at 0.8"),
        ("docs/engine.md", "which here is 1 in 50", "that is 1 in 50"),
        ("examples/MODEL_CARD.md", "309,644 tokens", "309,644 tokens"),
        ("examples/MODEL_CARD.md", "2645 CPU-seconds", "2645 CPU-seconds"),
        (REPORT, "block fp32 B=1 K=5 V=129280 unfiltered | 451 |", "0.45 ms against"),
        (REPORT, "token fp32 B=1 K=5 V=129280 unfiltered | 259 |", "0.26 ms for one"),
        (REPORT, "block fp32 B=32 K=5 V=129280 unfiltered | 12,120 |", "12.1 against"),
        (REPORT, "token fp32 B=32 K=5 V=129280 unfiltered | 6,286 |", "6.3 ms for 32"),
    ],
)
def test_a_figure_stands_where_it_comes_from(page, theirs, ours):
    assert theirs in (REPOSITORY / page).read_text()
    assert re.sub(r"\s+", " ", ours) in re.sub(r"\s+", " ", PAGE)


def test_the_table_of_presets_is_that_of_the_measurement():
    sys.path.append(str(REPOSITORY / "bench"))
    import generation_report as report

    results = (REPOSITORY / "bench/results/generation.json").read_text().splitlines()
    _, *found = map(json.loads, results)
    shown = PAGE.split(report.BEGIN)[1].split(report.END)[0]
    assert shown.strip() == report.summary(found)

    def gains(way: str, loads: range) -> list[float]:
        return [
            row["times_plain"]
            for row in report.select(found, kind="generation", way=way)
            if row["concurrency"] in loads
        ]

    # what the text beside it says
    assert min(gains("quality", range(1, 2))) > 1
    for way in ("fixed 2", "low_latency", "high_throughput"):
        assert min(gains(way, range(1, 3))) > 1, way
    assert min(gains("high_throughput", range(1, 65))) > 6 / 7 - 0.005
    assert max(gains("low_latency", range(4, 65))) < 1
    assert max(gains("quality", range(8, 65))) < 0.67
    assert max(gains("high_throughput", range(4, 65))) < 1.1
