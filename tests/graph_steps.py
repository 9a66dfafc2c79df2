"""Inputs of fixed capacity, as a captured graph has them: requests and rows that are not in use."""

import torch
from kit import random_batch, starts

B, K, V = 8, 5, 4200
N = B * (K + 1) + 3


def step_inputs(seed: int, counts: list[int], filters: bool) -> dict:
    """On the CPU. Requests past `counts` are not in use, rows past theirs are padding."""
    generator = torch.Generator().manual_seed(seed)
    live = len(counts)
    used, ids, draft = random_batch(generator, counts, V, K)
    target = torch.full((N, V), float("nan"))
    target[: len(used)] = used
    bounds = torch.full((B + 1,), int(starts(counts)[-1]), dtype=torch.int32)
    bounds[: live + 1] = starts(counts)
    padded_ids = torch.full((B, K), 2**40)
    padded_ids[:live] = ids
    padded_draft = torch.full((B, K, V), float("nan"))
    padded_draft[:live] = draft
    near = starts(counts).tolist()
    for b, n in enumerate(counts):
        padded_draft[b, :n] = target[near[b] : near[b] + n] + 0.2 * padded_draft[b, :n]
        padded_ids[b, :n] = padded_draft[b, :n].argmax(1)
    inputs = {
        "target_logits": target,
        "draft_token_ids": padded_ids,
        "draft_logits": padded_draft,
        "query_start_loc": bounds,
        "temperature": torch.rand(B, generator=generator) * (torch.arange(B) % 3 > 0),
        "seeds": torch.randint(-(2**62), 2**62, (B,), generator=generator),
        "positions": torch.randint(0, 2**40, (B,), generator=generator),
    }
    if filters:
        inputs["top_k"] = torch.randint(0, 60, (B,), generator=generator, dtype=torch.int32)
        inputs["top_p"] = torch.rand(B, generator=generator) * 0.5 + 0.5
    return inputs


def live_part(inputs: dict, live: int) -> dict:
    sizes = {"target_logits": N, "query_start_loc": live + 1}
    return {key: value[: sizes.get(key, live)] for key, value in inputs.items()}


STEPS = [[K] * B, [0] * B, [5, 0, 3], [1], [], [2, 4, 5, 0, 0, 1, 5, 3], [0, 5], [K] * 7]
