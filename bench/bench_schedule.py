"""What scheduling buys: tokens per second of every way to verify, at 1 to 256 requests at a time.

python bench/bench_schedule.py [--markdown FILE] [--json FILE] [--plot FILE]
python bench/bench_schedule.py --measure      times the steps of this CPU into bench/data first

Replays recorded drafts (record_traces.py) under the package's own schedules, at costs from a table
measured on a CPU and from a model of an H200 (schedule_costs.py). NOTES.md says how to read it.
"""

import argparse
import datetime
import json
import pathlib
import sys

import schedule_costs
import torch
from schedule_simulation import POLICIES, Loop, recorded, split, synthetic

BENCH = pathlib.Path(__file__).parent
RESULTS = BENCH / "results"
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# The same loop under a load that comes and goes, from a cold start.
CHANGING_LOAD = (1, 4, 16, 64, 256, 64, 16, 4, 1, 256, 1)
PHASE_STEPS = 200  # plain steps' worth of tokens
WARM_UP_STEPS = 32  # not counted, except under the changing load
CHOICES = ("none", *(f"fixed {n}" for n in range(1, schedule_costs.NUM_DRAFTS + 1)))
ADAPTIVE = ("gate + early_stop, smooth", "gate + lagged")
STEPS = 600  # plain steps' worth of tokens of a run, so that probes occur in it


def run(costs, traces, concurrencies, num_tokens: int) -> dict[str, dict[str, list[dict]]]:
    """By kind of confidence and policy, an entry per concurrency and one for a changing load."""
    found = {}
    for kind, blocks in traces.items():
        found[kind] = {}
        for policy in POLICIES:
            found[kind][policy.name] = entries = []
            for count in concurrencies:
                loop = Loop(policy, blocks, costs, count)
                loop.serve(count, WARM_UP_STEPS * count)
                entries.append(entry(loop.serve(count, max(num_tokens, STEPS * count)), count))
            loop = Loop(policy, blocks, costs, max(concurrencies))
            outcomes = [loop.serve(count, PHASE_STEPS * count) for count in CHANGING_LOAD]
            tokens, seconds = sum(o.tokens for o in outcomes), sum(o.seconds for o in outcomes)
            entries.append({"tokens_per_second": tokens / seconds})
        print(f"  {costs.name}, {kind}: done", file=sys.stderr)
    return found


def entry(outcome, count: int) -> dict:
    blocks = outcome.steps * count
    figures = {
        "tokens_per_second": outcome.tokens_per_second,
        "tokens_per_request_and_step": outcome.tokens / blocks,
        "verified_per_request_and_step": outcome.verified / blocks,
        "drafting_steps": outcome.drafting_steps / outcome.steps,
    }
    return {name: float(f"{value:.5g}") for name, value in figures.items()}


def best_of_choices(policies: dict[str, list[dict]]) -> list[tuple[float, str]]:
    """Per entry, the fastest of plain decoding and all fixed lengths."""
    columns = [[(e["tokens_per_second"], name) for e in policies[name]] for name in CHOICES]
    return [max(row) for row in zip(*columns, strict=True)]


def worst_case(policies: dict[str, list[dict]], name: str) -> float:
    """Smallest ratio of a policy to the best of none and fixed."""
    best = best_of_choices(policies)
    rates = [e["tokens_per_second"] for e in policies[name]]
    return min(rate / top for rate, (top, _) in zip(rates, best, strict=True))


def table(policies: dict[str, list[dict]], concurrencies) -> str:
    names = list(policies)
    best = best_of_choices(policies)
    lines = [
        "| requests | " + " | ".join(names) + " | best of none and fixed |",
        "|---" * (len(names) + 2) + "|",
    ]
    for i, count in enumerate([*concurrencies, "changing"]):
        rates = [policies[name][i]["tokens_per_second"] for name in names]
        cells = [f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}" for rate in rates]
        lines.append(f"| {count} | " + " | ".join(cells) + f" | {best[i][1]} |")
    worst = [f"{worst_case(policies, name):.3f}" for name in names]
    lines.append("| **worst ratio to that** | " + " | ".join(worst) + " | |")
    return "\n".join(lines)


def report(results: dict, facts: dict, concurrencies) -> str:
    lines = [__doc__.partition("\n")[0], "", facts["date"]]
    for name, found in results.items():
        lines += ["", f"## {name}", ""]
        lines += [f"- {key}: {json.dumps(value)}" for key, value in facts[name].items()]
        for kind, policies in found.items():
            lines += ["", f"Tokens per second, confidences {kind}:", ""]
            lines.append(table(policies, concurrencies))
    lines += ["", "Worst ratio to the best of none and fixed, any load above:"]
    for name in ADAPTIVE:
        worst = min(worst_case(p, name) for found in results.values() for p in found.values())
        lines.append(f"{name}: {worst:.3f}.")
    return "\n".join(lines) + "\n"


def plot(results: dict, concurrencies, path: pathlib.Path) -> None:
    """Throughput by concurrency, relative to plain decoding."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    styles = {
        "none": ("black", "-"),
        "fixed 1": ("tab:orange", ":"),
        "fixed 3": ("tab:orange", "--"),
        "fixed 5": ("tab:orange", "-"),
        "threshold 0.5": ("tab:green", "-"),
        "uniform lagged": ("tab:purple", "--"),
        "early_stop": ("tab:blue", ":"),
        "early_stop, smooth": ("tab:blue", "--"),
        "lagged": ("tab:red", "--"),
        "gate + early_stop, smooth": ("tab:blue", "-"),
        "gate + lagged": ("tab:red", "-"),
    }
    kinds = list(next(iter(results.values())))
    figure, axes = pyplot.subplots(
        len(kinds), len(results), figsize=(17, 9), sharex=True, squeeze=False
    )
    for column, (name, found) in enumerate(results.items()):
        for row, kind in enumerate(kinds):
            policies, axis = found[kind], axes[row][column]
            plain = [e["tokens_per_second"] for e in policies["none"][: len(concurrencies)]]
            for policy, (color, line) in styles.items():
                rates = [e["tokens_per_second"] for e in policies[policy][: len(concurrencies)]]
                ratios = [rate / base for rate, base in zip(rates, plain, strict=True)]
                axis.plot(concurrencies, ratios, line, color=color, label=policy)
            axis.set_xscale("log", base=2)
            axis.set_title(f"{name};\nconfidences {kind}", fontsize=9)
            axis.grid(alpha=0.3)
            axis.set_xticks(concurrencies, [str(count) for count in concurrencies])
    for axis in axes[-1]:
        axis.set_xlabel("requests at a time")
    for axes_of_row in axes:
        axes_of_row[0].set_ylabel("tokens per second / plain decoding")
    lines, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(lines, labels, loc="lower center", ncol=6, fontsize=9)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=75)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="tables whose title contains this text")
    parser.add_argument("--measure", action="store_true", help="time this CPU's steps first")
    parser.add_argument("--repeats", type=int, default=5, help="timed calls, with --measure")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--tokens", type=int, default=12000, help="tokens of a run, at least")
    parser.add_argument("--markdown", type=pathlib.Path, help="write the tables")
    parser.add_argument("--json", type=pathlib.Path, help="write facts and figures")
    parser.add_argument("--plot", type=pathlib.Path, help="write a PNG (needs matplotlib)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    data = schedule_costs.DATA
    if options.measure:
        measured = schedule_costs.measure_cpu(repeats=options.repeats, threads=options.threads)
        (data / "cost_cpu.json").write_text(json.dumps(measured, indent=1) + "\n")
        print(json.dumps(measured["facts"]))
    torch.set_num_threads(1)
    pair, good = recorded(data / "traces.npz"), synthetic()
    facts, results = {"date": datetime.date.today().isoformat()}, {}
    for title, costs, arrays in (
        ("Steps of this CPU, recorded drafts", schedule_costs.cpu(), pair),
        ("Steps of an H200 (model), recorded drafts", schedule_costs.h200(), pair),
        (
            "Steps of an H200 (model), drafts of a good drafter (invented)",
            schedule_costs.h200(),
            good,
        ),
    ):
        if options.only not in title:
            continue
        traces, trace_facts = split(arrays)
        facts[title] = {"costs": costs.facts, "drafts": trace_facts}
        results[title] = run(costs, traces, CONCURRENCIES, options.tokens)
    text = report(results, facts, CONCURRENCIES)
    print(text)
    if options.markdown:
        options.markdown.write_text(text)
    if options.json:
        options.json.write_text(json.dumps({"facts": facts, "results": results}) + "\n")
    if options.plot:
        plot(results, CONCURRENCIES, options.plot)


if __name__ == "__main__":
    main()
