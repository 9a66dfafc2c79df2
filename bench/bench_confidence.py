"""confidence and calibrate against eager torch, CPU or GPU.

python bench/bench_confidence.py [--only B=64] [--json bench/results/confidence.json]
python bench/bench_confidence.py --grow B,K

Sizes of DeepSeek-V4's drafters: rows of width 2048 and Markov embeddings of rank 256, bfloat16.
"""

import harness
import torch
from growth import Growth

from dspark_ext import draft

RANK, HIDDEN = 256, 2048


def confidence_case(batch: int, drafts: int = 5, width: int = HIDDEN) -> harness.Case:
    def make_inputs():
        return (
            torch.randn(batch, drafts, width).bfloat16(),
            torch.randn(batch, drafts, RANK).bfloat16(),
            torch.randn(width + RANK) / 50,
            torch.rand(drafts) + 0.5,
        )

    def eager(hidden, embed, weight, temperatures):
        return torch.sigmoid(torch.cat([hidden, embed], -1).float() @ weight / temperatures)

    def run(hidden, embed, weight, temperatures):
        return draft.confidence(hidden, embed, weight, None, temperatures)

    size = batch * drafts * (width + RANK) * 2 + 4 * (width + RANK) + 4 * batch * drafts
    return harness.Case(
        name=f"confidence bfloat16 B={batch} K={drafts} d={width} r={RANK}",
        make_inputs=make_inputs,
        run=run,
        baseline=eager,
        baseline_name="eager torch",
        check=lambda inputs: torch.testing.assert_close(
            run(*inputs), eager(*inputs), atol=1e-5, rtol=0
        ),
        floor_bytes=size,
        moved_bytes=size,
        devices=harness.ANYWHERE,
    )


def calibrate_case(batch: int, drafts: int = 5) -> harness.Case:
    def eager(logits, temperatures):
        return torch.sigmoid(logits / temperatures)

    size = 8 * batch * drafts
    return harness.Case(
        name=f"calibrate B={batch} K={drafts}",
        make_inputs=lambda: (3 * torch.randn(batch, drafts), torch.rand(drafts) + 0.5),
        run=draft.calibrate,
        baseline=eager,
        baseline_name="eager torch",
        check=lambda inputs: torch.testing.assert_close(
            draft.calibrate(*inputs), eager(*inputs), atol=1e-6, rtol=0
        ),
        floor_bytes=size,
        moved_bytes=size,
        devices=harness.ANYWHERE,
    )


def make_cases(quick: bool = False) -> list[harness.Case]:
    batches = (2,) if quick else (1, 64, 256)
    return [make(batch) for make in (confidence_case, calibrate_case) for batch in batches]


GROWTHS = {
    "B": [Growth("confidence bfloat16 K=5 d=2048", (8, 16, 32, 64, 128, 256), confidence_case)],
    "K": [
        Growth(
            "confidence bfloat16 B=64 d=2048",
            (1, 2, 4, 8, 16),
            lambda value: confidence_case(64, value),
        )
    ],
}


if __name__ == "__main__":
    torch.manual_seed(0)
    harness.main(__doc__.partition("\n")[0], make_cases, GROWTHS)
