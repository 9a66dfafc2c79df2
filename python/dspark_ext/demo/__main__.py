"""`python -m dspark_ext.demo`: SmolLM2-135M-Instruct answers with and without DSpark, measured."""

import os

# Idle OpenMP threads that spin take the cores from the ones that work. Read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import argparse
from pathlib import Path

from rich.console import Console

from . import experiments, loading, race, report
from .prompts import DEMO


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m dspark_ext.demo", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs, about 30 s")
    parser.add_argument("--threads", type=int, help="threads of torch (default: what is faster)")
    parser.add_argument("--dtype", choices=loading.DTYPES, default="bf16", help="of the weights")
    parser.add_argument("--out", type=Path, default=Path("demo-results"), help="plots and numbers")
    parser.add_argument("--drafter", type=Path, default=loading.DRAFTER, help="safetensors file")
    return parser.parse_args()


def main() -> None:
    arguments, console = parse_arguments(), Console()
    served = loading.serve(console, arguments.dtype, arguments.threads, arguments.drafter)
    numbers = {"machine": served.describe()}

    tokens = 40 if arguments.quick else 96
    races = []
    for title, temperature in (("greedy", 0.0), ("sampled at T=0.8", 0.8)):
        console.rule(f"[bold]{title}[/]: plain decoding beside DSpark, each by its own clock")
        for kind, question in DEMO.items():
            races.append(race.run(console, served, kind, question, temperature, tokens))
    console.rule("[bold]What it took")
    numbers["races"] = report.show_races(console, races)

    console.rule("[bold]A batch, with and without the confidence scheduler")
    size = loading.BATCH // 2 if arguments.quick else loading.BATCH
    batches = experiments.run_batches(console, served, size, tokens // 2)
    numbers["batch"] = report.show_batches(console, batches, size)
    numbers["acceptance"] = report.show_acceptance(console, batches[experiments.ALL_DRAFTS])
    numbers["reliability"] = report.reliability(batches[experiments.ALL_DRAFTS])

    console.rule("[bold]Is the law unchanged?")
    law = experiments.first_token_law(console, served, runs=320 if arguments.quick else 640)
    numbers["law"] = report.show_law(console, law)

    report.write(console, arguments.out, numbers)
    if not all(each.identical for each in races if each.identical is not None):
        raise SystemExit("greedy output differs from plain greedy decoding")


if __name__ == "__main__":
    main()
