"""The targets that drafters are trained for here: SmolLM2, and the tiny byte model of the tests."""

from __future__ import annotations

import random
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import prompts
import torch
from target_samples import Request

from dspark_ext.draft_head import ConfigError, DenseDraftConfig
from dspark_ext.draft_head.compact import CompactDraftHeadConfig

TINY = Path(__file__).parents[1] / "tests/fixtures/tiny_target.safetensors"
TEMPERATURES = [0.0, 0.5, 0.7, 1.0]
TEMPERATURE_WEIGHTS = [0.25, 0.10, 0.25, 0.40]
SELF_ASKED_SHARE = 0.25
LEFT_OUT = {"test", "tests", "idlelib", "site-packages", "lib2to3", "turtledemo", "ensurepip"}


@dataclass
class Shape:
    """What may be chosen of a draft head; None: as the target suggests."""

    layers: int | None = None
    block_size: int | None = None
    draft_vocabulary: int | None = None
    markov_rank: int | None = None
    markov_head: str | None = None
    intermediate_size: int | None = None


@dataclass
class Target:
    """A target, what to ask it, and the sizes that suit it.

    taps           decoder layers whose outputs are the features
    mask_token_id  of the dense flavour, a token that does not occur
    heads          (query heads, key/value heads, size) of a drafter
    suggested      flavour -> its `Shape`
    prefix         tokens every row begins with; answer_prefix follows a question it asked itself
    """

    model: torch.nn.Module
    taps: list[int]
    mask_token_id: int
    heads: tuple[int, int, int]
    suggested: dict[str, Shape]
    end_id: int | None = None
    prefix: list[int] = field(default_factory=list)
    answer_prefix: list[int] = field(default_factory=list)

    def requests(self, held_out: bool, seed: int) -> Iterator[Request]:
        raise TypeError("one of the classes below")

    def check_prompts(self, texts) -> None:
        """Raises if the drafter has been trained on what it will be judged by."""

    def group(self, row: dict) -> str:
        """What a held-out row is counted under, beside all of them."""
        return "all"

    def head_config(self, flavour: str, shape: Shape) -> CompactDraftHeadConfig | DenseDraftConfig:
        """Of a head for this target. Raises ConfigError."""
        if flavour not in self.suggested:
            raise ConfigError(f"flavour: expected {' or '.join(self.suggested)}, got {flavour!r}")
        chosen = {
            name: getattr(shape, name) if getattr(shape, name) is not None else value
            for name, value in vars(self.suggested[flavour]).items()
        }
        for name, value in chosen.items():
            if name != "markov_head" and value < 1:
                raise ConfigError(f"{name}: expected at least 1, got {value}")
        config, (heads, groups, head_dim) = self.model.config, self.heads
        if chosen["draft_vocabulary"] > config.vocab_size:
            raise ConfigError(
                f"draft_vocabulary: expected at most {config.vocab_size}, got "
                f"{chosen['draft_vocabulary']}"
            )
        shared = {
            "hidden_size": config.hidden_size,
            "vocab_size": config.vocab_size,
            "draft_vocab_size": chosen["draft_vocabulary"],
            "num_attention_heads": heads,
            "num_key_value_heads": groups,
            "head_dim": head_dim,
            "rope_theta": config.rope_parameters["rope_theta"],
            "rms_norm_eps": config.rms_norm_eps,
        }
        if flavour == "compact":
            if chosen["markov_head"] != "vanilla":
                raise ConfigError(
                    f"markov_head: a compact head has a vanilla one, got {chosen['markov_head']!r}"
                )
            return CompactDraftHeadConfig(
                **shared,
                moe_intermediate_size=chosen["intermediate_size"],
                shared_intermediate_size=chosen["intermediate_size"],
                dspark_target_layer_ids=self.taps,
                num_nextn_predict_layers=chosen["layers"],
                dspark_block_size=chosen["block_size"],
                dspark_markov_rank=chosen["markov_rank"],
                **self.experts,
            )
        return DenseDraftConfig(
            flavour="qwen3",
            **shared,
            intermediate_size=chosen["intermediate_size"],
            num_hidden_layers=chosen["layers"],
            target_layer_ids=tuple(self.taps),
            mask_token_id=self.mask_token_id,
            block_size=chosen["block_size"],
            markov_rank=chosen["markov_rank"],
            markov_head_type=chosen["markov_head"],
            num_target_layers=config.num_hidden_layers,
        )


class SmolLM2(Target):
    """Asked what the templates of `prompts` say, and what it asks itself."""

    experts = {"dspark_n_routed_experts": 8, "dspark_num_experts_per_tok": 2}

    def __init__(self) -> None:
        from dspark_ext.demo import smollm2

        model, self.tokenizer = smollm2.load()
        before, after = smollm2.chat_prompt("\0").split("\0")
        self.suffix = self._encode(after)
        super().__init__(
            model,
            taps=[9, 19, 29],
            mask_token_id=self.tokenizer.convert_tokens_to_ids("<file_sep>"),
            heads=(9, 9, 64),
            suggested={
                "compact": Shape(2, 5, 8192, 64, "vanilla", 96),
                "qwen3": Shape(2, 5, 8192, 64, "vanilla", 1536),
            },
            end_id=self.tokenizer.eos_token_id,
            prefix=self._encode(before),
            answer_prefix=self.suffix[1:],
        )

    def requests(self, held_out: bool, seed: int) -> Iterator[Request]:
        if not held_out:
            yield from self._training_requests(seed)
            return
        # Every held-out prompt greedily once and at temperature 1 twice; then there are no more.
        for temperature in (0.0, 1.0, 1.0):
            for prompt in prompts.held_out_prompts():
                yield Request(self._encode(prompt) + self.suffix, temperature, text=prompt)

    def check_prompts(self, texts) -> None:
        prompts.assert_held_out(texts)

    def group(self, row: dict) -> str:
        kinds = {
            prompt: "other kinds" if kind.startswith("*") else "trained kinds"
            for kind, prompt in prompts.HELD_OUT
        }
        kinds |= {prompt: f"demo {name}" for name, prompt in prompts.DEMO.items()}
        return kinds[row["prompt"]]

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def _training_requests(self, seed: int) -> Iterator[Request]:
        generator = random.Random(seed)
        greedy_seen: set[str] = set()
        for prompt in prompts.training_prompts(seed):
            temperature = generator.choices(TEMPERATURES, TEMPERATURE_WEIGHTS)[0]
            if temperature and generator.random() < SELF_ASKED_SHARE:
                yield Request([], temperature, self_asked=True)
                continue
            if not temperature:
                if prompt in greedy_seen:
                    temperature = 1.0  # a greedy row would be a copy
                greedy_seen.add(prompt)
            yield Request(self._encode(prompt) + self.suffix, temperature, text=prompt)


class TinyTarget(Target):
    """Given beginnings of lines of the standard library; a tenth of it is held out."""

    experts = {"dspark_n_routed_experts": 4, "dspark_num_experts_per_tok": 2}

    def __init__(self, path: Path = TINY, data: bytes | None = None) -> None:
        from dspark_ext.demo import tiny

        self.data = data
        super().__init__(
            tiny.load_target(path),
            taps=[1, 2, 3],
            mask_token_id=255,
            heads=(4, 2, 32),
            suggested={
                "compact": Shape(2, 5, 96, 32, "vanilla", 32),
                "qwen3": Shape(2, 5, 96, 32, "vanilla", 256),
            },
        )

    def requests(self, held_out: bool, seed: int) -> Iterator[Request]:
        data = self.data or corpus(0)
        split = len(data) * 9 // 10
        data = data[split:] if held_out else data[:split]
        generator = random.Random(seed)
        while True:
            start = generator.randrange(len(data) - 64)
            length = generator.randrange(8, 48)
            temperature = generator.choice([0.0, 0.7, 1.0, 1.0])
            yield Request(list(data[start : start + length]), temperature)


def corpus(seed: int) -> bytes:
    """The standard library's source files, in random order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [
        path
        for path in sorted(root.rglob("*.py"))
        if not LEFT_OUT & set(path.relative_to(root).parts)
    ]
    random.Random(seed).shuffle(files)
    return b"\n".join(path.read_bytes() for path in files)


TARGETS = {"smollm2": SmolLM2, "tiny": TinyTarget}
