"""Calls of dspark_ext.sampling."""

from __future__ import annotations

import torch
from calls import FLOATS, INTEGERS, Call, Source, builds, has_nan, require, require_shape

from dspark_ext import draft, sampling

METHODS = ("block", "token", "standard", "greedy", "synthetic")


def law_options(source: Source, rows: int, vocab: int) -> dict:
    def vector(values):
        return source.maybe(lambda: source.per_item(values), 0.5)

    temperature = source.uniform(rows) * 2
    temperature[source.uniform(rows) < 0.3] = 0.0
    return {
        "temperature": source.per_item(temperature),
        "top_k": vector(source.integers(0, vocab + 1, rows, dtype=source.pick(INTEGERS))),
        "top_p": vector(source.uniform(rows)),
        "min_p": vector(source.uniform(rows) * 0.5),
    }


def batch_arguments(source: Source) -> dict:
    batch, width = source.size(0, 4), source.size(0, 4)
    vocab = source.pick((1, 2, 5, 17, 33))
    if source.chance(0.02):
        vocab = source.pick((4096, 4097, 8200))
    counts = [source.size(0, width) + 1 if source.chance(0.9) else 0 for _ in range(batch)]
    rows = sum(counts) + source.size(0, 2)
    arguments = {
        "target_logits": source.logits(rows, vocab, dtype=source.pick(FLOATS)),
        "draft_token_ids": source.integers(
            -1, vocab - 1, batch, width, dtype=source.pick(INTEGERS)
        ),
        "draft_logits": None,
        "draft_probs": None,
        "query_start_loc": source.starts(counts),
        **law_options(source, batch, vocab),
        "draft_temperature": source.maybe(
            lambda: source.per_item(source.uniform(batch) + 0.1), 0.3
        ),
    }
    kind = source.pick(("logits", "probs", "none"))
    drafted = source.size(1, vocab)
    if kind == "logits":
        dtype = source.pick(FLOATS)
        arguments["draft_logits"] = source.logits(batch, width, drafted, dtype=dtype)
    elif kind == "probs":
        arguments["draft_probs"] = source.logits(batch, width, drafted).softmax(-1)
    return arguments


@builds("rejection_sample", 3)
def rejection_sample(source: Source) -> Call:
    arguments = batch_arguments(source)
    batch, width = arguments["draft_token_ids"].shape
    method = source.pick(METHODS)
    statistics = None
    if arguments["draft_logits"] is not None and source.chance(0.2):
        heat = source.uniform(batch * width)
        rows = draft.row_statistics(arguments["draft_logits"].flatten(0, 1), heat)
        statistics = draft.RowStatistics(*(t.unflatten(0, (batch, width)) for t in rows))
    arguments |= {
        "method": method,
        "seeds": source.per_item(source.integers(-(2**63), 2**63 - 1, batch)),
        "positions": source.per_item(source.integers(0, 2**40, batch)),
        "synthetic_acceptance_rates": source.uniform(width) if method == "synthetic" else None,
        "uniforms": source.maybe(
            lambda: source.uniform(batch, width + 1, dtype=torch.float64), 0.3
        ),
        "draft_statistics": statistics,
        "return_logprobs": source.chance(0.5),
    }
    return Call("rejection_sample", sampling.rejection_sample, arguments, check_rejection)


def check_rejection(arguments, out, tame) -> None:
    logits, ids = arguments["target_logits"], arguments["draft_token_ids"]
    (batch, width), vocab = ids.shape, logits.shape[1]
    if tame is None:  # shapes alone
        tame = False
    for name, shape, dtype in (
        ("token_ids", (batch, width + 1), torch.int64),
        ("num_accepted", (batch,), torch.int32),
        ("num_emitted", (batch,), torch.int32),
        ("last_token", (batch,), torch.int64),
        ("status", (batch,), torch.int32),
    ):
        require_shape(getattr(out, name), shape, dtype, name)
    if out.token_ids.is_meta:
        return
    starts = arguments["query_start_loc"].tolist()
    nan_row = torch.isnan(logits).any(1).tolist()
    tokens, drafts = out.token_ids.tolist(), ids.tolist()
    for b, (accepted, emitted, last, status) in enumerate(
        zip(*(t.tolist() for t in (out.num_accepted, out.num_emitted, out.last_token, out.status)))
    ):
        rows = starts[b + 1] - starts[b]
        require(0 <= accepted <= max(rows - 1, 0), "num_accepted", accepted, "of rows", rows)
        require(emitted == (accepted + 1 if rows else 0), "num_emitted", emitted)
        require(0 <= status < 32, "status", status)
        require(tokens[b][:accepted] == drafts[b][:accepted], "accepted ids are not the drafts")
        require(all(0 <= t < vocab for t in tokens[b][:emitted]), "ids", tokens[b])
        require(all(t == -1 for t in tokens[b][emitted:]), "ids past the end", tokens[b])
        require(last == (tokens[b][emitted - 1] if emitted else -1), "last_token", last)
        used = nan_row[starts[b] : starts[b] + emitted]
        if arguments["method"] != "synthetic":
            require(not any(used) or status & 1, "a NaN row without its flag", used, status)
        require(any(nan_row[starts[b] : starts[b + 1]]) or not status & 1, "flag without NaN")
        if out.logprobs is not None:
            values = out.logprobs[b].tolist()
            require(all(v <= 1e-5 for v in values[:emitted]), "log-probabilities", values)
            require(all(v == 0 for v in values[emitted:]), "log-probabilities past the end", values)


@builds("rejection_sample.out")
def rejection_sample_out(source: Source) -> Call:
    call = rejection_sample(source)
    arguments = call.arguments | {"return_logprobs": True}
    out = sampling.rejection_sample(**arguments)
    out = sampling.RejectionOutput(*(torch.full_like(t, 77) for t in out))
    if source.chance(0.3):
        out, arguments["return_logprobs"] = out._replace(logprobs=None), False
    return call._replace(arguments=arguments | {"out": out}, writes=("out",))


@builds("target_probs")
def target_probs(source: Source) -> Call:
    rows, vocab = source.size(0, 4), source.pick((1, 2, 5, 17, 33, 130))
    logits = source.logits(rows, vocab, dtype=source.pick(FLOATS))
    arguments = {"logits": logits, **law_options(source, rows, vocab), "out": None}
    writes = ()
    if source.chance(0.3):
        arguments["out"], writes = torch.full((rows, vocab), 77.0), ("out",)
    return Call(
        "target_probs", sampling.target_probs, arguments, check_probs, writes, words=("probs",)
    )


def check_probs(arguments, probs, tame) -> None:
    logits = arguments["logits"]
    require_shape(probs, logits.shape, torch.float32, "probs")
    if probs.is_meta:
        return
    require(not has_nan(probs), "NaN")
    require(bool(((probs >= 0) & (probs <= 1)).all()), "no probabilities")
    total = probs.double().sum(1)
    is_empty = ~(logits > -torch.inf).any(1)
    wanted = torch.where(is_empty, 0.0, 1.0).double()
    require(torch.allclose(total, wanted, atol=1e-4), "row sums", total.tolist())


@builds("sample", 2)
def sample(source: Source) -> Call:
    rows, vocab = source.size(0, 4), source.pick((1, 2, 5, 17, 33, 130))
    arguments = {
        "logits": source.logits(rows, vocab, dtype=source.pick(FLOATS)),
        **law_options(source, rows, vocab),
        "seeds": source.per_item(source.integers(-(2**63), 2**63 - 1, rows)),
        "positions": source.per_item(source.integers(0, 2**40, rows)),
        "stream": source.pick(("resample", "draft")),
        "slots": None,
        "uniforms": source.maybe(lambda: source.uniform(rows, dtype=torch.float64), 0.3),
        "out": None,
    }
    if arguments["stream"] == "draft" and source.chance(0.5):
        arguments["slots"] = source.per_item(source.integers(0, 7, rows))
    writes = ()
    if source.chance(0.3):
        arguments["out"] = sampling.SampleOutput(
            torch.full((rows,), 77), torch.full((rows,), torch.nan)
        )
        writes = ("out",)
    return Call(
        "sample", sampling.sample, arguments, check_sample, writes, words=("ids", "logprobs")
    )


def check_sample(arguments, out, tame) -> None:
    logits = arguments["logits"]
    rows, vocab = logits.shape
    require_shape(out.ids, (rows,), torch.int64, "ids")
    require_shape(out.logprobs, (rows,), torch.float32, "logprobs")
    if out.ids.is_meta:
        return
    require(bool(((out.ids >= 0) & (out.ids < vocab)).all()), "ids", out.ids.tolist())
    require(bool((out.logprobs <= 1e-5).all()), "logprobs", out.logprobs.tolist())
    is_empty = ~(logits > -torch.inf).any(1)
    require(torch.equal(out.logprobs == -torch.inf, is_empty), "-inf", out.logprobs.tolist())


@builds("block_acceptance")
def block_acceptance(source: Source) -> Call:
    arguments = batch_arguments(source)
    return Call("block_acceptance", sampling.block_acceptance, arguments, check_acceptance)


def check_acceptance(arguments, out, tame) -> None:
    for name, values in out._asdict().items():
        require_shape(values, arguments["draft_token_ids"].shape, torch.float64, name)
        if not values.is_meta:
            require(bool(((values >= 0) & (values <= 1 + 1e-5)).all()), name, values.tolist())


@builds("synthetic_acceptance_rates")
def synthetic_acceptance_rates(source: Source) -> Call:
    num_drafts = source.size(0, 8)
    arguments = {
        "length": 1.0 + float(source.rng.random()) * num_drafts,
        "num_drafts": num_drafts,
        "device": None,
    }
    return Call(
        "synthetic_acceptance_rates", sampling.synthetic_acceptance_rates, arguments, check_rates,
        at_most=("num_drafts",), fixed=("device",),
    )  # fmt: skip


def check_rates(arguments, rates, tame) -> None:
    require_shape(rates, (arguments["num_drafts"],), torch.float32, "rates")
    require(abs(float(rates.sum()) + 1 - arguments["length"]) < 1e-4, "sum", rates.tolist())
