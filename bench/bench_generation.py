"""Whole generation and single steps: plain decoding and DSpark, by load, temperature and preset.

python bench/bench_generation.py --json bench/results/generation.json
python bench/bench_generation.py --quick       a tiny pair, seconds: shows that all works

The demo's pair. Per load, all ways serve the same requests in turns (generation_runs.py); greedy
text is checked against plain decoding token by token. The report says what its figures are.
"""

import argparse
import json
import os
import pathlib

import generation_pairs
import generation_report
import generation_runs
import harness
import torch

TEMPERATURES = (0.0, 0.8)
CONCURRENCIES = (1, 2, 4, 8, 16, 32, 64)
PROFILED = ("plain", "quality", "low_latency")
LONGEST_PROMPT = 64


def arguments(argv=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a tiny pair and few tokens")
    parser.add_argument("--weights", choices=generation_pairs.DTYPES, default="bf16")
    parser.add_argument("--concurrency", help="loads, with commas (default: 1,2,4 .. 64)")
    parser.add_argument("--tokens", type=int, help="tokens per request (default: 40)")
    parser.add_argument("--steps", type=int, help="single steps per way and load (default: 8)")
    parser.add_argument("--threads", type=int, default=1, help="torch threads (default: 1)")
    parser.add_argument(
        "--clock",
        choices=generation_runs.CLOCKS,
        help="what seconds are (default: processor with one thread, else wall)",
    )
    parser.add_argument("--json", type=pathlib.Path, help="write header and rows as JSON lines")
    for name, suffix in (("markdown", ".md"), ("plot", ".png")):
        about = f"write the report (default: beside the numbers of --json, as {suffix})"
        parser.add_argument(f"--{name}", type=pathlib.Path, help=about)
    options = parser.parse_args(argv)
    if options.json:
        options.markdown = options.markdown or options.json.with_suffix(".md")
        options.plot = options.plot or options.json.with_suffix(".png")
    options.clock = options.clock or ("processor" if options.threads == 1 else "wall")
    default = "1,4" if options.quick else ",".join(map(str, CONCURRENCIES))
    options.concurrency = sorted({int(n) for n in (options.concurrency or default).split(",")})
    options.tokens = options.tokens or (12 if options.quick else 40)
    options.steps = options.steps or (2 if options.quick else 8)
    return options


def measure(options, tell=print) -> tuple[dict, list[dict]]:
    """(facts, rows)"""
    torch.set_num_threads(options.threads)
    most = max(options.concurrency)
    make = generation_pairs.tiny_pair if options.quick else generation_pairs.demo_pair
    longest = LONGEST_PROMPT + max(options.tokens, generation_runs.tokens_of(options.steps))
    pair = make(options.weights, len(generation_runs.WAYS) * most, longest)
    facts = harness.header(harness.copy_bandwidth())
    runs = generation_runs.Runs(pair, most, options.tokens, options.clock)
    facts |= {
        "pair": pair.name,
        "weights": options.weights,
        "tokens_per_request": options.tokens,
        "clock": options.clock,
        "load_average": round(os.getloadavg()[0], 1),
        "cost_table": runs.cost_table.to_dict(),
    }
    runs.generate(0.0, 1)  # warm
    rows = []
    for temperature in TEMPERATURES:
        for concurrency in options.concurrency:
            found = runs.generate(temperature, concurrency)
            profiled = PROFILED if temperature == TEMPERATURES[0] else ()
            found += runs.steps(temperature, concurrency, options.steps, profiled)
            rows += found
            for row in found[: len(generation_runs.WAYS)]:
                tell(
                    f"T={temperature} {concurrency:>2} at once, {row['way']}: "
                    f"{row['tokens_per_second']:.1f} tokens/s, {row['times_plain']:.2f} of plain, "
                    f"{row['tokens_per_pass']:.2f} tokens per pass"
                )
    return facts, rows


def main(argv=None) -> None:
    options = arguments(argv)
    facts, rows = measure(options, lambda line: print(line, flush=True))
    text = generation_report.markdown(facts, rows)
    print(text)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text("\n".join(json.dumps(entry) for entry in [facts, *rows]) + "\n")
    if options.markdown:
        options.markdown.write_text(text)
    if options.plot:
        generation_report.plot(facts, rows, options.plot)


if __name__ == "__main__":
    main()
