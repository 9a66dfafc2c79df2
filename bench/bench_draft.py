"""markov_sample against eager torch, CPU or GPU.

python bench/bench_draft.py [--only B=64] [--threads 1] [--json bench/results/draft.json]
python bench/bench_draft.py --grow B,V

The baseline drafts one position as eager torch does it: look up the embeddings, a matrix product in
the dtype of w2, an addition, a float32 softmax over [B, V], torch.multinomial. Sizes are those of
DeepSeek-V4's drafters. A row of the table is one draft of every request, K = 1. The floor: w2 and
the base logits in, the logits kept out.
"""

import harness
import torch
from growth import Growth

from dspark_ext import draft
from dspark_ext.reference import draft as reference

VOCAB, RANK, HIDDEN = 129280, 256, 2048


def eager_inputs(head, e, hidden, weight, bias):
    """u of one step; the state of an rnn head is zero before the first draft."""
    if head == "vanilla":
        return e
    if head == "gated":
        return torch.sigmoid(torch.cat([hidden, e], -1) @ weight.T + bias) * e
    z = torch.cat([torch.zeros_like(e), e, hidden], -1) @ weight.T + bias
    return torch.tanh(z.chunk(3, -1)[2])


def eager_sample(head, base, anchor, w1, w2, hidden, weight, bias, temperature, seeds):
    u = eager_inputs(head, w1[anchor], hidden, weight, bias)
    logits = base[:, 0] + u @ w2.T
    probs = (logits.float() / temperature[:, None]).softmax(-1)
    return torch.multinomial(probs, 1), logits


def sample_case(
    head: str, batch: int, dtype: torch.dtype, vocab: int = VOCAB, rank: int = RANK
) -> harness.Case:
    def make_inputs():
        shape = (rank, HIDDEN + rank) if head == "gated" else (3 * rank, 2 * rank + HIDDEN)
        weight = torch.randn(shape) / shape[1] ** 0.5
        vanilla = head == "vanilla"
        return (
            torch.randn(batch, 1, vocab).to(dtype),
            torch.randint(0, vocab, (batch,)),
            torch.randn(vocab, rank).to(dtype),
            (torch.randn(vocab, rank) / rank**0.5).to(dtype),
            None if vanilla else torch.randn(batch, HIDDEN).to(dtype),
            None if vanilla else weight.to(dtype),
            None if vanilla else torch.randn(shape[0]).to(dtype),
            torch.rand(batch) + 0.5,
            torch.arange(batch),
        )

    def run(base, anchor, w1, w2, hidden, weight, bias, temperature, seeds):
        return draft.markov_sample(
            base,
            anchor,
            w1,
            w2,
            head=head,
            hidden=None if hidden is None else hidden[:, None],
            head_weight=weight,
            head_bias=bias,
            temperature=temperature,
            seeds=seeds,
            positions=7,
        )

    def check(inputs):
        """A few rows of logits in float64; matrix units round u of a gated or rnn head."""
        logits = run(*inputs).logits.cpu()
        base, anchor, w1, w2, hidden, weight, bias, *_ = (
            x if x is None else x.cpu() for x in inputs
        )
        model = reference.Head(head, weight, bias)
        step = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}[dtype]
        for b in range(0, batch, max(1, batch // 3)):
            u, _ = reference.head_step64(
                model, w1[anchor[b]], None if hidden is None else hidden[b], torch.zeros(rank)
            )
            exact = reference.step_logits64(base[b, 0], u, w2)
            bound = step * exact.abs() + 1e-4
            if head != "vanilla":
                bound += 2.0**-8 * (w2.double().abs() @ u.double().abs())
            error = (logits[b, 0].double() - exact).abs()
            assert bool((error <= bound).all()), f"markov_sample {head}: off by {error.max():.1e}"

    rows = batch * vocab * dtype.itemsize
    floor = vocab * rank * dtype.itemsize + 2 * rows
    return harness.Case(
        name=f"markov_sample {head} {str(dtype)[6:]} B={batch} V={vocab} r={rank}",
        make_inputs=make_inputs,
        run=run,
        baseline=lambda *inputs: eager_sample(head, *inputs),
        baseline_name="eager torch",
        check=check,
        floor_bytes=floor,
        moved_bytes=floor + rows,  # the statistics read the rows once more, from the cache
        devices=harness.ANYWHERE,
    )


def make_cases(quick: bool = False) -> list[harness.Case]:
    torch.manual_seed(0)
    size = {"vocab": 300, "rank": 16} if quick else {}
    cases = [
        sample_case("vanilla", batch, dtype, **size)
        for dtype in (torch.bfloat16, torch.float32)
        for batch in ((2,) if quick else (1, 8, 64))
    ]
    batch = 2 if quick else 8
    return cases + [sample_case(head, batch, torch.bfloat16, **size) for head in ("gated", "rnn")]


GROWTHS = {
    "B": [
        Growth(
            "markov_sample vanilla bfloat16 V=129280 r=256",
            (1, 2, 4, 8, 16, 32, 64),
            lambda value: sample_case("vanilla", value, torch.bfloat16),
        )
    ],
    "V": [
        Growth(
            f"markov_sample vanilla bfloat16 B={batch} r=256",
            (16160, 32320, 64640, 129280, 258560),
            lambda value, b=batch: sample_case("vanilla", b, torch.bfloat16, value),
            quick_values=(300, 600),
        )
        for batch in (1, 32)
    ],
}


if __name__ == "__main__":
    harness.main(__doc__.partition("\n")[0], make_cases, GROWTHS)
