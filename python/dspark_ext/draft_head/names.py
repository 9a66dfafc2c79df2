"""Names of the tensors of released draft heads: whose they are, and what they are part of."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .checkpoint_files import Findings
from .config import DEEPSEEK_FLAVOURS, DENSE_FLAVOURS

# Tensors of a whole DeepSeek target that a draft head borrows.
TARGET_NAMES = ("embed.weight", "head.weight")
# Written for other readers of the same file; the offsets `d2t` say all that is needed.
IGNORED = ("t2d",)

# One tensor that a head of the flavour has, whatever its sizes.
FIRST_NAMES = {
    **dict.fromkeys(DEEPSEEK_FLAVOURS, ("mtp.0.main_norm.weight",)),
    **dict.fromkeys(DENSE_FLAVOURS, ("hidden_norm.weight",)),
}

# Both spellings of the Markov factors; `embed` and `head` are V4.1's.
MARKOV_SPELLINGS = {"embed": "markov_w1", "head": "markov_w2"}

# Kind of part -> pattern of the whole name, first match counts. Anchored on both sides, so that a
# short name never matches the end of a longer one ("w1" in "markov_w1").
_PARTS = [
    (part, re.compile(pattern))
    for part, pattern in [
        ("experts", r"mtp\.\d+\.ffn\.experts\.\d+\.w[123]\.(weight|scale)"),
        ("shared experts", r"mtp\.\d+\.ffn\.shared_experts\.w[123]\.(weight|scale)"),
        ("routers", r"mtp\.\d+\.ffn\.gate\.(weight|bias|bias_vl)"),
        (
            "attention",
            r"mtp\.\d+\.attn\.(wq_a|wq_b|wkv|wo_a|wo_b)\.(weight|scale)"
            r"|mtp\.\d+\.attn\.attn_sink"
            r"|layers\.\d+\.self_attn\.[qkvo]_proj\.weight",
        ),
        ("main_proj", r"mtp\.\d+\.main_proj\.(weight|scale)|fc\.weight"),
        ("hyper-connections", r"mtp\.\d+\.hc_(attn|ffn|head)_(fn|base|scale)"),
        (
            "Markov",
            r"(mtp\.\d+\.)?markov_head\.(embed|head|markov_w1|markov_w2)\.weight"
            r"|markov_head\.(gate_proj|joint_proj)\.(weight|bias)",
        ),
        ("confidence", r"(mtp\.\d+\.)?confidence_head\.proj\.(weight|bias)"),
        ("MLPs", r"layers\.\d+\.mlp\.(gate|up|down)_proj\.weight"),
        (
            "norms",
            r"mtp\.\d+\.(attn\.)?\w*norm\.weight"
            r"|layers\.\d+\.(self_attn\.)?\w*layernorm\.weight"
            r"|layers\.\d+\.self_attn\.[qk]_norm\.weight"
            r"|layers\.\d+\.layer_scalar"
            r"|(hidden_)?norm\.weight",
        ),
        ("vocabulary", r"embed_tokens\.weight|lm_head\.weight|d2t"),
    ]
]
PARTS = tuple(part for part, _ in _PARTS)


_FLOAT32 = re.compile(
    r"mtp\.\d+\.(hc_\w+|attn\.attn_sink|ffn\.gate\.bias(_vl)?)|(.*\.)?confidence_head\..*"
    r"|(.*\.)?\w*norm\.weight"
)


def stays_float32(name: str) -> bool:
    """Whether a tensor of a head is float32 whatever the head's dtype is."""
    return _FLOAT32.fullmatch(name) is not None


def part_of(name: str) -> str:
    """The part of a draft head that a tensor belongs to, one of `PARTS`.

    Raises ValueError for a name that no released head has."""
    for part, pattern in _PARTS:
        if pattern.fullmatch(name):
            return part
    raise ValueError(f"{name} is no tensor of a draft head")


def own_name(flavour: str):
    """Whether a name is within the head's own: `mtp.*` of a DeepSeek checkpoint; all of a
    DeepSpec checkpoint, which holds nothing else."""
    if flavour in DEEPSEEK_FLAVOURS:
        return lambda name: name.startswith("mtp.")
    return lambda name: name not in IGNORED


def recognise_flavour(names: Iterable[str]) -> str | None:
    """The flavour that tensor names alone tell, or None. Qwen3 and Gemma4 drafts differ in
    `layer_scalar`."""
    names = set(names)
    stages = [name for name in names if re.match(r"mtp\.\d+\.", name)]
    if any(name.endswith(".markov_head.embed.weight") for name in stages):
        return "deepseek_v41"
    if any(name.endswith(".markov_head.markov_w1.weight") for name in stages):
        return "deepseek_v4"
    if not stages and "fc.weight" in names and "layers.0.input_layernorm.weight" in names:
        return "gemma4" if "layers.0.layer_scalar" in names else "qwen3"
    return None


def find_ambiguous(names: Iterable[str], findings: Findings) -> None:
    """Both spellings of a Markov factor in one head: there is no telling which one counts."""
    names = set(names)
    for new, old in MARKOV_SPELLINGS.items():
        for name in sorted(names):
            match = re.fullmatch(rf"(mtp\.\d+\.markov_head\.){new}\.weight", name)
            other = match and f"{match[1]}{old}.weight"
            if match and other in names:
                findings.add("ambiguous", f"{name} (V4.1) and {other} (V4) are the same factor")


def find_prefix(expected: Iterable[str], names: Iterable[str], findings: Findings) -> None:
    """What stands before all names of a head that was saved inside another module."""
    names, expected = set(names), list(expected)
    first = next((name for name in expected if name not in names), None)
    inside = [name for name in names if first and name.endswith(f".{first}")]
    prefix = inside[0].removesuffix(first) if len(inside) == 1 else None
    if prefix and all(name in names or prefix + name in names for name in expected):
        findings.add("contradictions", f"names of the head begin with {prefix!r}; take it off")
