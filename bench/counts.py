"""What every operator has to do, by the sizes of a case: arithmetic, and launches on a GPU.

Bytes are declared by the cases themselves, which know their inputs. Flops are counted here, once,
for the benchmarks (percent of peak) and for the model of other machines (machines.py). A
multiply-add is two flops; so is any other vector instruction, because it takes the same slot.

`flops(op, sizes)` -> (flops, "fp32" or "bf16"): which unit does them. Sizes are the letters of the
documentation: B requests, K drafts, V vocabulary, N rows, r rank, d width, T tokens, E experts,
k slots, M rows of a matrix product.
"""

# docs/numerics.md, section 2: subtraction, product, rounding, seven steps of the polynomial and its
# scaling, two comparisons, the addition to a lane
WEIGHT_FLOPS = 2 * 13
# section 7: two products, a difference, a comparison, an addition, over the weights of two rows
RESIDUAL_FLOPS = 2 * 5

# How often a draft stands in the inputs of bench_sampling.py: 2.2 of 5 are accepted.
ACCEPTANCE = 0.74
# Rows of logits that the block rule reads per request beyond its 2K + 1, as counted by
# tests/simt/sampling_traffic.py with three in four drafts standing at K = 5
EXTRA_ROWS = 3.2
# Launches of one call on a GPU (tests/simt/test_launches.py counts them).
LAUNCHES = {
    "rejection_sample": 4,
    "rejection_sample filtered": 5,
    "sample": 3,
    "target_probs": 3,
    "markov_sample": 1,  # a draft of every request; plus one before the first
    "confidence": 1,
    "schedule": 1,  # of up to 4096 drafts; else 5
    "pack": 1,
    "unpack": 1,
    "commit": 1,
    "route": 1,
    "plan": 1,  # of few slots; else 2 (`plan_launches`)
    "permute": 1,
    "combine": 1,
    "fused_moe": 3,  # two products and the sum; and the plan
}


# csrc/ops/moe/workspace.h
EXPERT_RANGE, BLOCK_SLOTS = 512, 8192


def schedule_launches(batch: int, drafts: int) -> int:
    """Of one call with an order to find: csrc/ops/verify/launch.cu."""
    return LAUNCHES["schedule"] if batch * drafts <= 4096 else 5


def plan_launches(slots: int, experts: int) -> int:
    """Of one call: csrc/ops/moe/launch.cu."""
    return LAUNCHES["plan"] if slots * -(-experts // EXPERT_RANGE) <= BLOCK_SLOTS else 2


def judged_rows(method: str, drafts: int) -> float:
    """Rows of logits per request whose statistics the rule needs: the block rule all of them, the
    token rule those up to the first draft that is rejected, or all and the last one."""
    if method == "block":
        return 2 * drafts + 1
    looked_at = sum(ACCEPTANCE**i for i in range(drafts))
    return 2 * looked_at + ACCEPTANCE**drafts


def rejection_rows(method: str, drafts: int) -> float:
    """The same, with the rows that are read again for residuals."""
    if method == "block":
        again = EXTRA_ROWS * min(1.0, drafts / 5)
    else:
        again = 2 * (1 - ACCEPTANCE**drafts)
    return judged_rows(method, drafts) + again


def _sampling(method: str):
    def count(s: dict) -> tuple:
        judged, rows = judged_rows(method, s["K"]), rejection_rows(method, s["K"])
        work = rows * WEIGHT_FLOPS + (rows - judged) / 2 * RESIDUAL_FLOPS
        return s["B"] * s["V"] * work, "fp32"

    return count


def _rows(s: dict) -> tuple:
    return s["N"] * s["V"] * WEIGHT_FLOPS, "fp32"


def _markov(s: dict) -> tuple:
    product = 2 * s["V"] * s["r"]
    return s["B"] * s.get("K", 1) * (product + s["V"] * WEIGHT_FLOPS), "fp32"


def _experts(s: dict) -> tuple:
    return 6 * s["T"] * s["k"] * s["d"] * s["N"], "bf16"


def _linear(unit: str):
    return lambda s: (2 * s["M"] * s["in"] * s["out"], unit)


FLOPS = {
    "rejection_sample token": _sampling("token"),
    "rejection_sample block": _sampling("block"),
    "sample": _rows,
    "target_probs": _rows,
    "markov_sample": _markov,
    "confidence": lambda s: (2 * s["B"] * s["K"] * (s["d"] + s["r"]), "fp32"),
    # a score of sqrt(softplus): two exponentials' worth; then k rounds of comparisons
    "route": lambda s: (s["T"] * s["E"] * (2 * WEIGHT_FLOPS + 2 * s["k"]), "fp32"),
    "combine": lambda s: (2 * s["T"] * s["k"] * s["d"], "fp32"),
    "fused_moe": _experts,
    # an exponential's worth, a division, a product
    "silu_mul": lambda s: (s["N"] * s["d"] * (WEIGHT_FLOPS + 4), "fp32"),
    "linear bf16": _linear("bf16"),
    "linear fp32": _linear("fp32"),
    "attention": lambda s: (4 * s["B"] * s["R"] * s["L"] * s["h"] * s["D"], "fp32"),
}


def flops(op: str, sizes: dict) -> tuple[float, str]:
    """(flops, unit) of a case; 0 for operators that only move data."""
    count = FLOPS.get(op)
    return count(sizes) if count else (0.0, "fp32")
