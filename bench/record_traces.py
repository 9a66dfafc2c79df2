"""Records what bench_schedule.py replays: confidences of the demo's drafter at every position of
texts of its target, and how many of the drafts the target accepts there.

python bench/record_traces.py [--output bench/data/traces.npz]

The texts are sampled from the target alone: answers to the demo's held-out prompts, each at
temperature 0 and 0.8. Then a block is drafted behind *every* token of a text, not only behind those
where one schedule happened to stop, so that a simulation may walk through with any lengths.

Drafts and text are coupled as the token rule couples them. That rule draws x from q, keeps it with
probability min(1, p(x) / q(x)) and otherwise emits a draw of max(p - q, 0); so, given that y was
emitted, x = y with probability min(1, q(y) / p(y)), and otherwise x is a draw of max(q - p, 0).
Drafts behind a rejected one are drawn from q, along the drafted path. Hence, for any lossless
schedule, emitting the recorded text block by block has the law of serving it.

The target runs as the demo serves it, with bf16 weights; the drafter's matrices are float32 here.
"""

import argparse
import datetime
import json
import pathlib

import numpy as np
import torch

from dspark_ext.demo import prompts, smollm2
from dspark_ext.demo.loading import DRAFTER, Tokenizer
from dspark_ext.draft import confidence
from dspark_ext.draft_head.compact import CompactDraftHead
from dspark_ext.engine import DSparkEngine, HuggingFaceTarget, SamplingParams, TargetBatch

TEMPERATURES = (0.0, 0.8)
DATA = pathlib.Path(__file__).with_name("data")


def texts(target, tokenizer, questions: list[str], max_new_tokens: int) -> list[dict]:
    """An answer to every question at every temperature; `prompt` is where it begins."""
    encoded = [tokenizer.encode(smollm2.chat_prompt(question)) for question in questions]
    asked = [(ids, temperature) for ids in encoded for temperature in TEMPERATURES]
    params = [
        SamplingParams(
            temperature=temperature,
            seed=index,
            max_new_tokens=max_new_tokens,
            stop_token_ids=tokenizer.stop_ids,
        )
        for index, (_, temperature) in enumerate(asked)
    ]
    run = DSparkEngine(target).generate([ids for ids, _ in asked], params, speculative=False)
    return [
        {
            "question": index // len(TEMPERATURES),
            "prompt": len(ids),
            "token_ids": ids + output.token_ids,
            "temperature": temperature,
        }
        for index, ((ids, temperature), output) in enumerate(zip(asked, run.outputs, strict=True))
    ]


def attend_to(context_kv, positions: torch.Tensor, window: int):
    """`attend` of a block behind each of `positions`: the window before it and the block itself."""
    length = len(context_kv[0][0])
    distance = positions[:, None] - torch.arange(length)
    hidden = (distance <= 0) | (distance > window)

    def attend(stage: int, q, k, v):
        context_k, context_v = context_kv[stage]
        group = q.shape[2] // k.shape[2]
        context_k, k, context_v, v = (
            x.repeat_interleave(group, -2) for x in (context_k, k, context_v, v)
        )
        before = torch.einsum("akhd,thd->ahkt", q, context_k)
        before = before.masked_fill(hidden[:, None, None], -torch.inf)
        own = torch.einsum("akhd,ajhd->ahkj", q, k)
        weights = torch.softmax(torch.cat([before, own], -1) * q.shape[-1] ** -0.5, -1)
        mixed = torch.einsum("ahkt,thd->akhd", weights[..., :length], context_v)
        return mixed + torch.einsum("ahkj,ajhd->akhd", weights[..., length:], v)

    return attend


@torch.inference_mode()
def record(target, head: CompactDraftHead, text: dict, generator) -> tuple:
    """Confidence logits [A, K] and accepted counts [A] behind every response token that K more
    tokens follow."""
    size = head.config.dspark_block_size
    ids = torch.tensor(text["token_ids"])
    index = torch.arange(len(ids))
    output = target.forward(TargetBatch(ids, index, torch.zeros_like(index), index))
    anchors = torch.arange(text["prompt"], len(ids) - size)
    if len(anchors) < 1:
        return torch.empty(0, size), torch.empty(0, dtype=torch.int64)
    context_kv = head.context_kv(head.combine(output.features), index)
    attend = attend_to(context_kv, anchors, head.config.sliding_window)
    hidden = head.backbone(ids[anchors], anchors, attend)
    base = head.base_logits(hidden)
    w1, drafted_ids = head.markov_w1_full(), head.draft_token_ids
    previous, alive = ids[anchors], torch.ones(len(anchors), dtype=torch.bool)
    embeds, accepted = [], torch.zeros(len(anchors), dtype=torch.int64)
    for k in range(size):
        embeds.append(w1[previous])
        logits = base[:, k] + embeds[-1] @ head.markov_w2.T
        emitted = ids[anchors + k + 1]
        full = torch.full((len(anchors), target.vocab_size), -torch.inf)
        full[:, drafted_ids] = logits
        previous, alive = _draw(
            output.logits[anchors + k], full, emitted, alive, text["temperature"], generator
        )
        accepted += alive
    found = confidence(
        hidden, torch.stack(embeds, 1), head.confidence_weight, head.confidence_bias.reshape(1)
    )
    return torch.logit(found.double()), accepted


def _draw(target_logits, draft_logits, emitted, alive, temperature: float, generator):
    """The draft given what was emitted, and whether everything up to it is accepted."""
    if temperature == 0:
        drafts = draft_logits.argmax(-1)
        return drafts, alive & (drafts == emitted)
    p, q = (torch.softmax(x / temperature, -1) for x in (target_logits, draft_logits))
    ratio = (q.gather(1, emitted[:, None]) / p.gather(1, emitted[:, None]))[:, 0]
    kept = alive & (torch.rand(len(ratio), generator=generator) < ratio)
    left = torch.where(alive[:, None], (q - p).clamp(min=0), q)
    left = torch.where(left.sum(1, keepdim=True) > 0, left, q)  # p = q: nothing is rejected
    drafts = torch.multinomial(left, 1, generator=generator)[:, 0]
    return torch.where(kept, emitted, drafts), kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=pathlib.Path, default=DATA / "traces.npz")
    parser.add_argument("--max-new-tokens", type=int, default=192)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model, tokenizer = smollm2.load()
    head = CompactDraftHead.load(DRAFTER)
    questions = [*prompts.DEMO.values(), *(question for _, question in prompts.HELD_OUT)]
    target = HuggingFaceTarget(
        model,
        head.config.dspark_target_layer_ids,
        max_requests=2 * len(questions),
        max_len=options.max_new_tokens + 64,
        weight_dtype=torch.bfloat16,
    )
    head.bind_target(model.model.embed_tokens.weight, model.lm_head.weight)
    del model
    generator = torch.Generator().manual_seed(0)
    logits, accepted, starts, asked = [], [], [0], []
    for text in texts(target, Tokenizer(tokenizer), questions, options.max_new_tokens):
        rows, counts = record(target, head, text, generator)
        if len(rows):
            logits.append(rows)
            accepted.append(counts)
            starts.append(starts[-1] + len(rows))
            asked.append((text["question"], text["temperature"]))
    facts = {
        "date": datetime.date.today().isoformat(),
        "target": "SmolLM2-135M-Instruct, bf16 weights",
        "drafter": DRAFTER.name,
        "prompts": len(questions),
        "rule": "token",
        "max_new_tokens": options.max_new_tokens,
    }
    options.output.parent.mkdir(exist_ok=True)
    np.savez_compressed(
        options.output,
        conf_logits=torch.cat(logits).numpy().astype(np.float16),
        accepted=torch.cat(accepted).numpy().astype(np.uint8),
        starts=np.array(starts, np.int32),
        questions=np.array([question for question, _ in asked], np.uint8),
        temperatures=np.array([temperature for _, temperature in asked], np.float32),
        facts=np.array(json.dumps(facts)),
    )
    counts = torch.cat(accepted).double()
    print(f"{starts[-1]} blocks of {len(asked)} requests, {1 + counts.mean():.3f} tokens each")


if __name__ == "__main__":
    main()
