"""The whole loop beside Hugging Face's assisted generation and vLLM: SmolLM2-135M-Instruct.

python bench/compare/whole_loop.py [--weights bf16] [--threads 1] [--markdown FILE] [--json FILE]

The same weights, the same prompts (held out of the drafter's training), one request at a time,
greedy and sampled at 0.8, prompt by prompt in turns; seconds are of the processor. Greedy text is
compared with plain transformers: in fp32 the engine's has to be the same. In bf16 they round
differently (transformers keeps all of it in bf16), so there, and for peers, the number of equal
texts is shown. Early exit drafts with the target's first layers; there is no smaller model of
this family to assist it. vLLM is asked in the environment that has it (README.md), and
once per process: hence one kind of weights in a run.
"""

import argparse
import json
import os
import pathlib
import sys
import time

import torch
from turns import ABSENT, harness

from dspark_ext import engine

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import generation_pairs  # noqa: E402

TEMPERATURES = (0.0, 0.8)
REFERENCE = "transformers"
MAX_LEN = 256
SET_THREADS = torch.set_num_threads  # vLLM puts another function in its place, and its own number
LOOKUP = 5  # drafts of prompt lookup
EXIT_LAYER = 10
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


class Models:
    """What contenders share."""

    def __init__(self, weights: str, quick: bool) -> None:
        self.weights, self.quick = weights, quick
        self.dtype = generation_pairs.DTYPES[weights]
        if quick:
            from dspark_ext.demo import tiny

            self.path = None
            self.model = tiny.load_target(
                generation_pairs.TINY / "tiny_target.safetensors", self.dtype
            )
            self.end = None
            self.pair = generation_pairs.tiny_pair(weights, 2, MAX_LEN)
        else:
            from dspark_ext.demo import smollm2

            self.path = str(smollm2.prepare())
            self.model, tokenizer = smollm2.load(self.dtype)
            self.end = tokenizer.convert_tokens_to_ids(smollm2.END_TOKEN)
            self.pair = generation_pairs.demo_pair(weights, 2, MAX_LEN)
        self.prompts = self.pair.prompts


# ---- contenders: call(prompt, temperature, seed, tokens) -> emitted tokens -----------------------


class Engine:
    """preset None = plain decoding."""

    def __init__(self, models: Models, drafter, preset: str | None) -> None:
        config = engine.SpeculativeConfig.from_dict({"preset": preset} if preset else {})
        self.speculative = preset is not None
        self.served = engine.DSparkEngine(models.pair.target, drafter, config)
        self.stop = () if models.end is None else (models.end,)

    def __call__(self, prompt, temperature, seed, tokens):
        params = engine.SamplingParams(
            temperature=temperature,
            seed=seed,
            max_new_tokens=tokens,
            stop_token_ids=self.stop,
        )
        done = self.served.generate([prompt], params, speculative=self.speculative)
        return done.outputs[0].token_ids


class Transformers:
    def __init__(self, models: Models, **options) -> None:
        self.model, self.end, self.options = models.model, models.end, options

    def __call__(self, prompt, temperature, seed, tokens):
        torch.manual_seed(seed)
        law = {"do_sample": False}
        if temperature:
            law = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        ids = torch.tensor([prompt])
        found = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=tokens,
            eos_token_id=self.end,
            pad_token_id=0 if self.end is None else self.end,
            **law,
            **self.options,
        )
        return found[0, len(prompt) :].tolist()


class Vllm:
    def __init__(self, models: Models, speculative: dict | None) -> None:
        import vllm

        if models.path is None:
            raise RuntimeError("not served the tiny pair")
        self.vllm, self.end = vllm, models.end
        self.served = vllm.LLM(
            models.path,
            skip_tokenizer_init=True,
            dtype="float32" if models.weights == "fp32" else "bfloat16",
            max_model_len=MAX_LEN,
            max_num_seqs=2,
            enforce_eager=True,
            enable_prefix_caching=False,
            seed=0,
            speculative_config=speculative,
        )

    def __call__(self, prompt, temperature, seed, tokens):
        params = self.vllm.SamplingParams(
            temperature=temperature,
            seed=seed,
            max_tokens=tokens,
            stop_token_ids=[self.end],
            detokenize=False,
        )
        done = self.served.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        return list(done[0].outputs[0].token_ids)


def contenders(models: Models) -> dict:
    """name -> what makes it."""
    pair = models.pair
    lookup = {"method": "ngram", "num_speculative_tokens": LOOKUP, "prompt_lookup_max": 3}

    def ngrams():
        return engine.NGramDrafter(max_requests=2, max_len=MAX_LEN, block_size=LOOKUP)

    return {
        REFERENCE: lambda: Transformers(models),
        "transformers, prompt lookup": lambda: Transformers(
            models, prompt_lookup_num_tokens=LOOKUP
        ),
        "transformers, early exit": lambda: Transformers(models, assistant_early_exit=EXIT_LAYER),
        "vllm": lambda: Vllm(models, None),
        "vllm, prompt lookup": lambda: Vllm(models, lookup),
        "dspark_ext, plain": lambda: Engine(models, pair.drafter, None),
        "dspark_ext, ngram": lambda: Engine(models, ngrams(), "quality"),
        "dspark_ext, DSpark": lambda: Engine(models, pair.drafter, "low_latency"),
    }


# ---- measuring ----------------------------------------------------------------------------------


def present(models: Models, threads: int, skipped: dict[str, str]) -> dict:
    found = {}
    for name, make in contenders(models).items():
        try:
            call = make()
            SET_THREADS(threads)
            call(models.prompts[0], 0.0, 0, 4)
        except ABSENT as error:
            if name.startswith("dspark_ext"):
                raise
            skipped[name] = (str(error).strip() or repr(error)).splitlines()[0]
            print(f"skipped: {name}: {skipped[name]}", flush=True)
            continue
        found[name] = call
    return found


def measure(models: Models, options, skipped: dict[str, str]) -> list[dict]:
    """A row per temperature and contender."""
    calls = present(models, options.threads, skipped)
    rows = []
    for temperature in TEMPERATURES:
        seconds = dict.fromkeys(calls, 0.0)
        texts = {name: [] for name in calls}
        for index, prompt in enumerate(models.prompts[: options.prompts]):
            for name, call in calls.items():
                start = time.process_time()
                texts[name].append(call(prompt, temperature, index, options.tokens))
                seconds[name] += time.process_time() - start
        for name in calls:
            emitted = sum(map(len, texts[name]))
            same = sum(a == b for a, b in zip(texts[name], texts[REFERENCE], strict=True))
            rows.append(
                {
                    "weights": models.weights,
                    "temperature": temperature,
                    "contender": name,
                    "tokens": emitted,
                    "processor_seconds": seconds[name],
                    "tokens_per_second": emitted / seconds[name],
                    "equal_texts": same if temperature == 0 else None,
                    "prompts": len(texts[name]),
                }
            )
            print(rows[-1], flush=True)
            exact = name.startswith("dspark_ext") and models.weights == "fp32" and not temperature
            if exact and same < len(texts[name]):
                raise AssertionError(f"{name}: {len(texts[name]) - same} greedy texts differ")
    return rows


def markdown(rows: list[dict]) -> str:
    lines = [
        "| weights | T | | tokens/s | times transformers | greedy texts equal to its |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        base = next(
            each["tokens_per_second"]
            for each in rows
            if each["contender"] == REFERENCE and each["temperature"] == row["temperature"]
        )
        equal = "-" if row["equal_texts"] is None else f"{row['equal_texts']} of {row['prompts']}"
        rate = row["tokens_per_second"]
        lines.append(
            f"| {row['weights']} | {row['temperature']:g} | {row['contender']} | {rate:.1f} "
            f"| {rate / base:.2f} | {equal} |"
        )
    return "\n".join(lines)


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="the tests' tiny pair, few tokens")
    parser.add_argument("--weights", choices=generation_pairs.DTYPES, default="fp32")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=48, help="per prompt, at most")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--markdown", type=pathlib.Path, help="write header and table")
    parser.add_argument("--json", type=pathlib.Path, help="write header and rows as JSON lines")
    options = parser.parse_args(argv)
    SET_THREADS(options.threads)
    if options.quick:
        options.prompts, options.tokens, options.weights = 2, 12, "fp32"
    facts = harness.header(harness.copy_bandwidth())
    facts |= {"prompts": options.prompts, "tokens": options.tokens}
    skipped: dict[str, str] = {}
    rows = measure(Models(options.weights, options.quick), options, skipped)
    line = ", ".join(f"{key}: {value}" for key, value in facts.items())
    left_out = "\n".join(f"- skipped: {name}: {reason}" for name, reason in skipped.items())
    print(markdown(rows))
    if options.markdown:
        parts = (__doc__.partition("\n")[0], line, markdown(rows), left_out)
        options.markdown.write_text("\n\n".join(part for part in parts if part) + "\n")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        entries = [{**facts, "skipped": skipped}, *rows]
        options.json.write_text("\n".join(json.dumps(entry) for entry in entries) + "\n")


if __name__ == "__main__":
    main()
