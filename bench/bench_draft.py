"""markov_sample and confidence against eager torch.

python bench/bench_draft.py [--only B=64] [--threads 1] [--markdown bench/results/draft_cpu.md]

The baseline drafts one position as eager torch does it: look up the embeddings, a matrix product in
the dtype of w2, an addition, a float32 softmax over [B, V], torch.multinomial. Sizes are those of
DeepSeek-V4's drafters. A row of the table is one draft of every request, K = 1. The floor: w2 and
the base logits in, the logits kept out.
"""

import harness
import torch

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


def sample_case(head: str, batch: int, dtype: torch.dtype) -> harness.Case:
    def make_inputs():
        shape = (RANK, HIDDEN + RANK) if head == "gated" else (3 * RANK, 2 * RANK + HIDDEN)
        weight = torch.randn(shape) / shape[1] ** 0.5
        vanilla = head == "vanilla"
        return (
            torch.randn(batch, 1, VOCAB).to(dtype),
            torch.randint(0, VOCAB, (batch,)),
            torch.randn(VOCAB, RANK).to(dtype),
            (torch.randn(VOCAB, RANK) / RANK**0.5).to(dtype),
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
        """A few rows of logits in float64."""
        base, anchor, w1, w2, hidden, weight, bias, *_ = inputs
        output = run(*inputs)
        model = reference.Head(head, weight, bias)
        for b in range(0, batch, max(1, batch // 3)):
            u, _ = reference.head_step64(
                model, w1[anchor[b]], None if hidden is None else hidden[b], torch.zeros(RANK)
            )
            exact = reference.step_logits64(base[b, 0], u, w2)
            step = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}[dtype]
            error = (output.logits[b, 0].double() - exact).abs()
            assert bool((error <= step * exact.abs() + 1e-4).all())

    rows = batch * VOCAB * dtype.itemsize
    floor = VOCAB * RANK * dtype.itemsize + 2 * rows
    return harness.Case(
        name=f"markov_sample {head} B={batch} {str(dtype)[6:]}",
        make_inputs=make_inputs,
        run=run,
        baseline=lambda *inputs: eager_sample(head, *inputs),
        baseline_name="eager torch",
        check=check,
        floor_bytes=floor,
        moved_bytes=floor + rows,  # the statistics read the rows once more, from the cache
    )


def confidence_case(batch: int, drafts: int) -> harness.Case:
    def make_inputs():
        return (
            torch.randn(batch, drafts, HIDDEN).bfloat16(),
            torch.randn(batch, drafts, RANK).bfloat16(),
            torch.randn(HIDDEN + RANK) / 50,
            torch.rand(drafts) + 0.5,
        )

    def eager(hidden, embed, weight, temperatures):
        return torch.sigmoid(torch.cat([hidden, embed], -1).float() @ weight / temperatures)

    def run(hidden, embed, weight, temperatures):
        return draft.confidence(hidden, embed, weight, None, temperatures)

    size = batch * drafts * (HIDDEN + RANK) * 2
    return harness.Case(
        name=f"confidence B={batch} K={drafts} bfloat16",
        make_inputs=make_inputs,
        run=run,
        baseline=eager,
        baseline_name="eager torch",
        check=lambda inputs: torch.testing.assert_close(
            run(*inputs), eager(*inputs), atol=1e-5, rtol=0
        ),
        floor_bytes=size,
        moved_bytes=size,
    )


def make_cases() -> list[harness.Case]:
    torch.manual_seed(0)
    cases = [
        sample_case("vanilla", batch, dtype)
        for dtype in (torch.bfloat16, torch.float32)
        for batch in (1, 8, 64)
    ]
    cases += [sample_case(head, 8, torch.bfloat16) for head in ("gated", "rnn")]
    return cases + [confidence_case(64, 5)]


if __name__ == "__main__":
    harness.main(__doc__.partition("\n")[0], make_cases)
