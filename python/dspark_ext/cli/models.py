"""The arguments that choose target, drafter and settings, and what is loaded for them."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import UserError, told_of

if TYPE_CHECKING:
    from ..engine import DSparkEngine

DEMO = "demo"
DTYPES = ("bf16", "fp32")
PRESETS = ("low_latency", "high_throughput", "quality")
MOST_THREADS = max(256, 2 * (os.cpu_count() or 1))
MAX_LEN = 2048  # positions per request, where the model has more
DRAFTING = (  # settings that say which drafts are made, not which are verified
    *("method", "model", "prompt_lookup_min", "prompt_lookup_max", "num_speculative_tokens"),
    *("draft_sample_method", "rejection_sample_method", "prefill_chunk", "seed"),
    *("allow_lossy", "synthetic_acceptance_rates", "synthetic_acceptance_length"),
)


def add_arguments(parser, *, max_requests: int) -> None:
    """The model arguments, the same for every command."""
    group = parser.add_argument_group("models")
    group.add_argument(
        "--target",
        default=DEMO,
        metavar="MODEL",
        help="directory of a Hugging Face causal LM, or `demo` (SmolLM2-135M-Instruct; default)",
    )
    group.add_argument(
        "--drafter",
        metavar="DRAFTER",
        help="a DSpark draft head (safetensors file or directory), `demo`, `ngram` (prompt "
        "lookup), directory of a small Hugging Face model, or `none`; default: demo for the "
        "demo's target, else ngram",
    )
    group.add_argument(
        "--speculative-config",
        metavar="JSON",
        help="settings as a JSON object or a file of one; vLLM's speculative-config is read too",
    )
    group.add_argument("--preset", choices=PRESETS, help="settings for a purpose (docs/engine.md)")
    group.add_argument(
        "--dtype",
        choices=DTYPES,
        default="bf16",
        help="of the weights, where the engine's own layers run them (default: bf16)",
    )
    group.add_argument("--device", default="cpu", help="where the target runs (default: cpu)")
    group.add_argument(
        "--threads", type=thread_count, help="threads of torch (default: what is faster)"
    )
    group.add_argument(
        "--max-len", type=positive, help=f"positions per request (default: at most {MAX_LEN})"
    )
    group.add_argument(
        "--max-requests",
        type=positive,
        default=max_requests,
        help=f"requests served at once (default: {max_requests})",
    )
    group.add_argument(
        "--block-size", type=positive, help="positions per block of a paged cache (default: dense)"
    )
    group.add_argument(
        "--num-blocks", type=positive, help="blocks of it (default: enough for all requests)"
    )
    group.add_argument(
        "--calibration",
        type=Path,
        metavar="FILE",
        help="of `dspark-ext calibrate`, for the drafter",
    )


def positive(text: str) -> int:
    """An argument that is a whole number >= 1."""
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def thread_count(text: str) -> int:
    """As `positive`, and no more than the system gives a process."""
    value = positive(text)
    if value > MOST_THREADS:
        raise ValueError(text)
    return value


thread_count.__name__ = f"whole number from 1 to {MOST_THREADS}"
positive.__name__ = "whole number >= 1"  # what argparse calls it in its complaint


def weight_dtype(options):
    """The torch dtype of --dtype."""
    import torch

    return torch.bfloat16 if options.dtype == "bf16" else torch.float32


@dataclasses.dataclass
class Served:
    """An engine and what is around it.

    name          what the target is called in answers
    tokenizer     encode(text) -> ids, decode(ids) -> text
    chat          messages -> prompt text; None for a target without a chat template
    stop_ids      tokens that end an answer
    facts         what is printed and stored with measurements
    """

    engine: DSparkEngine
    name: str
    tokenizer: object
    chat: object
    stop_ids: tuple[int, ...]
    facts: dict


def load_with_status(options, *, verify_all: bool = False) -> Served:
    """As `load`, telling on standard error what is going on."""
    from .screen import consoles

    _, log = consoles()
    if options.target == DEMO:
        _prepare_demo()  # which may fetch, and shows how far it is
    with log.status("Loading the models") as status:

        def progress(done: int, total: int, what: str) -> None:
            status.update(f"Timing what a step costs: {what} ({done} of {total})")

        served = load(options, verify_all=verify_all, progress=progress)
    if served.engine.config.lossy and served.engine.drafter is not None:
        log.print("[red]LOSSY: drafts are accepted at given rates; texts are not the target's.[/]")
    return served


def load(options, *, verify_all: bool = False, progress=None) -> Served:
    """Everything that the model arguments ask for.

    verify_all  of the settings only those about drafting hold, and every draft is verified
    progress    is told of measurements (`DSparkEngine`)
    """
    import torch

    from ..demo.loading import cpu_name, faster_thread_count
    from ..engine import DSparkEngine
    from .drafters import make_drafter, open_drafter

    settings = read_settings(options, verify_all)
    opened = open_drafter(_drafter_word(options, settings), options)
    name, model, tokenizer = _load_target_model(options)
    target = _make_target(options, model, opened)
    del model
    threads = options.threads
    if threads is None:
        on_cpu = options.device == "cpu"
        threads = faster_thread_count(target) if on_cpu else torch.get_num_threads()
    torch.set_num_threads(threads)
    drafter = make_drafter(opened, target, options, settings, tokenizer)
    with told_of("--speculative-config"):
        engine = DSparkEngine(target, drafter, settings, tokenizer=tokenizer, progress=progress)
    facts = {
        "target": name,
        "drafter": opened.name,
        "drafts": engine.num_drafts,
        "weights": options.dtype,
        "threads": threads,
        "processor": cpu_name(),
        "torch": torch.__version__,
        "settings": settings.schedule,
    }
    if engine.device.type == "cuda":
        facts["graphs"] = ", ".join(
            f"{owner} {'captured' if reason is None else f'not captured: {reason}'}"
            for owner, reason in engine.not_captured.items()
        )
    return Served(engine, name, tokenizer, tokenizer.chat, tokenizer.stop_ids, facts)


def read_settings(options, verify_all: bool = False):
    """`SpeculativeConfig` of --preset and --speculative-config, the latter first."""
    from ..engine import SpeculativeConfig

    values = {}
    if options.preset:
        values["preset"] = options.preset
    if options.speculative_config:
        values |= read_json("--speculative-config", options.speculative_config)
    with told_of("--speculative-config", ValueError, TypeError):
        settings = SpeculativeConfig.from_dict(values)
        if verify_all:
            settings = SpeculativeConfig(**{name: getattr(settings, name) for name in DRAFTING})
    return settings


def read_json(argument: str, text: str) -> dict:
    """An argument that is a JSON object, or names a file of one."""
    source = text
    if not text.lstrip().startswith("{"):
        with told_of(argument):
            source = Path(text).read_text(encoding="utf-8-sig")
    with told_of(argument, ValueError, RecursionError):
        values = json.loads(source)
    if not isinstance(values, dict):
        raise UserError(f"{argument}: expected a JSON object, got {type(values).__name__}")
    return values


def _drafter_word(options, settings) -> str:
    """What --drafter says, or else the settings' `model` and `method`, or else the default."""
    named = settings.model or ("ngram" if settings.method == "ngram" else None)
    if options.drafter and named and options.drafter != named:
        raise UserError(f"--drafter: {options.drafter} contradicts {named} of --speculative-config")
    if options.drafter or named:
        return options.drafter or named
    return DEMO if options.target == DEMO else "ngram"


def _load_target_model(options):
    """(name, transformers model, tokenizer)"""
    from .language_models import load_language_model
    from .tokenizer import Tokenizer

    if options.target == DEMO:
        _prepare_demo()
        from ..demo import smollm2

        with told_of("--target demo", OSError, RuntimeError):
            model, tokenizer = smollm2.load()
        return smollm2.NAME, model, Tokenizer(tokenizer, (smollm2.END_TOKEN,))
    path = Path(options.target)
    model, tokenizer = load_language_model("--target", path)
    ends = model.generation_config.eos_token_id if model.generation_config else None
    ends = ends if isinstance(ends, list) else [ends]
    return path.resolve().name, model, Tokenizer(tokenizer, (), ends)


def _prepare_demo() -> None:
    """Fetch and convert the demo's model, if that has not been done."""
    from .language_models import quieten

    quieten("--target")
    from ..demo import smollm2

    failures = (OSError, RuntimeError, ImportError, StopIteration)
    with told_of("--target demo", *failures):
        smollm2.prepare()


def _make_target(options, model, opened):
    from ..engine import target_for

    config = model.config.get_text_config(decoder=True)
    most = getattr(config, "max_position_embeddings", None) or MAX_LEN
    max_len = options.max_len or min(most, MAX_LEN)
    if max_len > most:
        raise UserError(f"--max-len: the target has {most} positions, got {max_len}")
    sizes = {
        "max_requests": options.max_requests,
        "max_len": max_len,
        "block_size": options.block_size,
        "num_blocks": options.num_blocks,
    }
    taps = opened.taps
    if options.device != "cpu":
        with told_of("--device", RuntimeError, AssertionError):
            model = model.to(options.device)
    with told_of(f"--target with drafter {opened.name}" if taps else "--target"):
        return target_for(model, taps, **sizes, weight_dtype=weight_dtype(options))
