"""Draws the pictures of docs/concepts.md from the numbers that the page computes.

python docs/pictures/draw.py [FOLDER]
"""

import doctest
import pathlib
import re
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import torch

HERE = pathlib.Path(__file__).parent
BLUE, ORANGE, GREEN, GREY, INK = "#4477aa", "#dd8844", "#5a9e6f", "#d8d8d8", "#333333"
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dspark_ext",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": "#999999",
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def numbers() -> dict:
    """What the examples of the page have computed at its end."""
    page = (HERE.parent / "concepts.md").read_text()
    names: dict = {"print": lambda *_: None}
    for block in re.findall(r"^```pycon\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        for example in doctest.DocTestParser().get_examples(block):
            exec(compile(example.source, "concepts.md", "exec"), names)
    return names


def draw_rows(given: dict):
    """The rows of the pass as a strip: who owns them, what they read, what became of them."""
    batch, after, words = given["batch"], given["after"], given["words"]
    count = len(batch.input_ids)
    figure, axes = plt.subplots(figsize=(8.4, 2.9))
    for row in range(count):
        request = int(batch.request_ids[row])
        colour = GREY if request < 0 else (BLUE, ORANGE)[request]
        axes.add_patch(plt.Rectangle((row, 0), 0.92, 1, facecolor=colour, alpha=0.35))
        middle = row + 0.46
        axes.text(middle, 1.12, f"row {row}", ha="center", fontsize=9)
        if request < 0:
            axes.text(middle, 0.5, "padding", ha="center", va="center", fontsize=9)
            continue
        place = row - int(batch.query_start_loc[request])
        kept = bool(after.row_kept[row])
        axes.text(middle, 0.64, words[batch.input_ids[row]], ha="center", va="center", fontsize=13)
        role = "anchor" if place == 0 else f"draft {place}"
        axes.text(middle, 0.24, role, ha="center", va="center", fontsize=9)
        last = row + 1 == int(batch.query_start_loc[request + 1])
        judges = "gives the\nbonus" if last else f"judges\ndraft {place + 1}"
        axes.text(middle, -0.3, judges, ha="center", va="center", fontsize=8)
        fate = ("kept", GREEN) if kept else ("dropped", "#bb4444")
        axes.text(middle, -0.72, fate[0], ha="center", va="center", fontsize=9, color=fate[1])
    for request, colour in enumerate((BLUE, ORANGE)):
        first, end = batch.query_start_loc[request : request + 2].tolist()
        axes.plot([first, end - 0.08], [1.42, 1.42], color=colour, linewidth=2)
        axes.text((first + end) / 2, 1.5, f"request {request}", ha="center", color=colour)
    axes.set(xlim=(-0.1, count), ylim=(-0.85, 1.75))
    axes.axis("off")
    return figure


def draw_bounds(given: dict):
    """Bounds and draws of request 0, one pair per length."""
    bounds = given["judged"].accept_prob[0].tolist()
    draws = [given["uniform"](27, 7 + i, "accept", i) for i in range(3)]
    figure, axes = plt.subplots(figsize=(6.2, 3.0))
    axes.bar(range(3), bounds, width=0.5, color=BLUE, alpha=0.4, label="accept_prob: the bound")
    for place, (bound, draw) in enumerate(zip(bounds, draws, strict=True)):
        below = draw < bound
        axes.plot(place, draw, "o", color=GREEN if below else "#bb4444", markersize=8)
        verdict = "below" if below else "not below"
        axes.text(place, draw + 0.05, f"u = {draw:.2f}, {verdict}", ha="center", fontsize=9)
        axes.text(place - 0.29, bound, f"{bound:.2f}", ha="right", va="center", fontsize=9)
    drafted = [given["words"][i] for i in given["block"].token_ids[0]]
    names = [f"length {i + 1}\n{' '.join(drafted[: i + 1])}" for i in range(3)]
    axes.set_xticks(range(3), names)
    axes.set(xlim=(-0.6, 2.6), ylim=(0, 1.1), ylabel="probability")
    axes.set_title(
        "request 0 keeps the greatest length whose draw lies below its bound", fontsize=10
    )
    return figure


def draw_residual(given: dict):
    """p, q and their difference at the row of the refused draft."""
    p, q = given["p"][2].tolist(), given["q"][0, 2].tolist()
    figure, axes = plt.subplots(figsize=(6.2, 2.8))
    for word in range(4):
        rest = float(given["residual"][word])
        axes.bar(word - 0.18, min(p[word], q[word]), width=0.34, color=BLUE, alpha=0.4)
        axes.bar(word - 0.18, rest, bottom=p[word] - rest, width=0.34, color=GREEN, alpha=0.8)
        axes.bar(word + 0.18, q[word], width=0.34, color=ORANGE, alpha=0.45)
        axes.text(word - 0.18, p[word] + 0.015, f"p {p[word]:.2f}", ha="center", fontsize=9)
        axes.text(word + 0.18, q[word] + 0.015, f"q {q[word]:.2f}", ha="center", fontsize=9)
        if rest > 0.005:
            text = f"residual {rest:.2f}: a refusal becomes this word"
            axes.annotate(
                text, (word - 0.01, p[word] - rest / 2), (word + 0.75, p[word] - rest / 2),
                va="center", fontsize=9, color=GREEN, arrowprops={"arrowstyle": "-"},
            )  # fmt: skip
    axes.set_xticks(range(4), given["words"])
    axes.set(ylim=(0, 0.7), ylabel="probability after the")
    return figure


def main() -> None:
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    given = numbers()
    torch.set_printoptions(profile="default")
    with plt.rc_context(STYLE):
        for name, draw in (
            ("rows", draw_rows),
            ("bounds", draw_bounds),
            ("residual", draw_residual),
        ):
            figure = draw(given)
            figure.savefig(
                folder / f"{name}.svg",
                bbox_inches="tight",
                metadata={"Date": None},
                facecolor="white",
            )
            plt.close(figure)


if __name__ == "__main__":
    main()
