"""Serves requests with vLLM; run by its interpreter, one process per engine.

Reads a job, {"model", "speculative", "batches": [[{"prompt", "params"}]]}, from the file named by
its first argument; writes {"batches": [[{"tokens", "logprobs"}]], "metrics", "rule"} to the second.
"""

import json
import os
import sys

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from vllm import LLM, SamplingParams


def serve(job: dict) -> dict:
    llm = LLM(
        job["model"],
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=job.get("max_num_seqs", 64),
        enable_prefix_caching=False,
        disable_log_stats=False,
        seed=0,
        speculative_config=job["speculative"],
    )
    batches = []
    for batch in job["batches"]:
        outputs = llm.generate(
            [{"prompt_token_ids": request["prompt"]} for request in batch],
            [SamplingParams(detokenize=False, **request["params"]) for request in batch],
            use_tqdm=False,
        )
        batches.append([describe(output.outputs[0]) for output in outputs])
    metrics = {
        metric.name: getattr(metric, "value", None)
        for metric in llm.get_metrics()
        if "spec_decode" in metric.name
    }
    sampler = getattr(
        llm.llm_engine.model_executor.driver_worker.worker.model_runner, "rejection_sampler", None
    )
    return {
        "batches": batches,
        "metrics": metrics,
        "rule": getattr(sampler, "dspark_rule", None),
    }


def describe(completion) -> dict:
    tokens = list(completion.token_ids)
    logprobs = None
    if completion.logprobs is not None:
        logprobs = [step[token].logprob for token, step in zip(tokens, completion.logprobs)]
    return {"tokens": tokens, "logprobs": logprobs}


def main() -> None:
    with open(sys.argv[1]) as file:
        job = json.load(file)
    results = serve(job)
    with open(sys.argv[2], "w") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main()
