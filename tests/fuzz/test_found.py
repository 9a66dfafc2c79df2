"""What the fuzzing found, each kind as a test of its own."""

import json
import math

import pytest
import run
import torch
from draft_calls import group_of_one

from dspark_ext import decoder, draft, formats, moe, sampling, verify
from dspark_ext.calibration import Calibration, calibration_report, fit_sts


def refused(kind, word, function, *arguments, **named):
    with pytest.raises(kind, match=word):
        function(*arguments, **named)


@pytest.mark.parametrize(
    "call",
    [
        lambda: formats.decode(torch.zeros(4, dtype=torch.uint8), "fp8_e4m3"),
        lambda: sampling.sample(torch.zeros(2, 4), seeds=1, positions=1),
        lambda: verify.schedule(torch.ones(1, 2), mode="fixed"),
        lambda: moe.route(torch.zeros(1, 8), 2),
        lambda: draft.markov_sample(
            torch.zeros(1, 1, 4), torch.zeros(1, dtype=torch.int64), torch.zeros(4, 2),
            torch.zeros(4, 2), temperature=1.0, seeds=1, positions=0,
        ),
    ],
    ids=["decode", "sample", "schedule", "route", "markov_sample"],
)  # fmt: skip
def test_calls_with_words_leave_nothing_behind(call):
    """torch's conversion of a string argument leaves 48 bytes at every call."""
    for _ in range(300):
        call()
    before = run.memory()["allocated"]
    for _ in range(2000):
        call()
    assert run.memory()["allocated"] - before < 24_000


def test_tiles_that_leave_a_row_out_are_refused():
    plan = moe.plan(torch.tensor([[0], [1]]), 2, tile_rows=4)
    plan = plan._replace(tile_size=plan.tile_size.clone().zero_())
    refused(RuntimeError, "grouped_gemm: plan: expected a tile over every row", moe.grouped_gemm,
            torch.ones(2, 3), torch.ones(2, 4, 3), plan)  # fmt: skip


def test_fractions_are_not_cut():
    one = torch.ones(1, dtype=torch.int32)
    ids, lengths = torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    plan = verify.schedule(torch.ones(1, 1), mode="fixed")
    for name in ("anchor", "draft_token_ids", "seq_lens"):
        given = {"anchor": lengths, "draft_token_ids": ids, "seq_lens": lengths}
        given[name] = given[name] + 0.5
        refused(RuntimeError, f"pack: {name}: expected integers", verify.pack, **given,
                schedule=plan, max_rows=4)  # fmt: skip
    batch = verify.pack(lengths, ids, lengths, plan, max_rows=4)
    out = sampling.RejectionOutput(ids, one, one, lengths, one, None)
    refused(RuntimeError, "commit: seq_lens: expected integers", verify.commit, out, batch,
            lengths.float())  # fmt: skip
    for last in (2**63 - 1, 2**63 - 2):
        refused(RuntimeError, "seq_lens", verify.commit, out, batch, lengths + last)
        refused(RuntimeError, "seq_lens", verify.pack, lengths, ids, lengths + last, plan,
                max_rows=4)  # fmt: skip
    refused(RuntimeError, "schedule: capacity: expected integers", verify.schedule,
            torch.ones(1, 1), mode="fixed", capacity=torch.tensor([0.5]))  # fmt: skip
    far = verify.schedule(torch.ones(1, 1), mode="fixed", capacity=torch.tensor([-(2**31) - 1]))
    assert far.verify_lens.tolist() == [0]


def test_logits_without_rows():
    refused(RuntimeError, "sample: logits: expected shape", sampling.sample, torch.tensor(1.0),
            seeds=1, positions=0)  # fmt: skip
    refused(RuntimeError, "target_probs: logits", sampling.target_probs, torch.tensor(1.0))


def test_statistics_of_no_requests_are_statistics():
    logits = torch.zeros(0, 3, 9)
    statistics = draft.RowStatistics(
        torch.zeros(0, 3), torch.zeros(0, 3, 1), torch.zeros(0, 3, 1),
        torch.zeros(0, 3, 1, dtype=torch.uint8),
    )  # fmt: skip
    out = sampling.rejection_sample(
        torch.zeros(1, 9), torch.zeros(0, 3, dtype=torch.int64), logits,
        query_start_loc=torch.zeros(1, dtype=torch.int32), temperature=1.0, seeds=1, positions=0,
        draft_statistics=statistics,
    )  # fmt: skip
    assert out.token_ids.shape == (0, 4)


@pytest.mark.parametrize("size", [2**62, 2**61 + 1, 3])
def test_an_expert_size_whose_product_overflows(size):
    refused(
        RuntimeError, "routed_silu_mul: gate_up", decoder.routed_silu_mul, torch.zeros(1, 16),
        torch.zeros(1, 4), torch.zeros(4), expert_size=size, top_k=1, scaling=1.0, limit=1.0,
    )  # fmt: skip


def test_a_plan_that_contradicts_itself_gives_no_unwritten_rows():
    plan = moe.plan(torch.tensor([[0], [1]]), 2)
    plan = plan._replace(inverse=torch.tensor([[0], [0]]))
    refused(RuntimeError, "permute: sorted: expected what inverse says", moe.permute,
            torch.ones(2, 4), plan)  # fmt: skip


@pytest.mark.parametrize("last", [2**31, 2**62, 1e15])
def test_a_cost_table_as_long_as_its_file_says(last, tmp_path):
    """Its dense form would take all memory."""
    refused(ValueError, "CostTable: rows: expected at most", verify.CostTable, [1, last], [1, 2])
    form = {"sample_batch_tokens": [1, 2], "sample_steps_per_sec": [1, 2], "max_batch_tokens": last}
    refused(ValueError, "CostTable: max_batch_tokens", verify.CostTable.from_dict, form)
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"rows": [1, last], "seconds": [1, 2]}))
    refused(ValueError, f"{path}: rows", verify.CostTable.load, path)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"rows": [1' + "0" * 400 + '], "seconds": [1]}',
                                  "1" * 5000, "\udcff"])  # fmt: skip
def test_json_that_python_stumbles_over(text, tmp_path):
    path = tmp_path / "file.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    refused(ValueError, f"dspark_ext.CostTable: {path}: ", verify.CostTable.load, path)
    refused(ValueError, f"dspark_ext.Calibration: {path}: ", Calibration.load, path)


def test_a_form_names_its_own_key():
    form = {"num_tokens": [1, 2], "verify_ms": [1, 2], "max_capture_size": -1}
    refused(ValueError, "max_capture_size: expected", verify.CostTable.from_dict, form)
    form = {"sample_batch_tokens": [1], "sample_steps_per_sec": [5e-324]}
    refused(ValueError, "sample_steps_per_sec: expected", verify.CostTable.from_dict, form)


def test_numbers_that_float32_or_int32_cannot_hold():
    refused(ValueError, r"Calibration: temperatures\[1\]", Calibration, (1.0, 1e300))
    refused(ValueError, r"Calibration: temperatures\[0\]", Calibration, (1e-300,))
    blocks = torch.zeros(3, 1), torch.ones(3, dtype=torch.int64)
    refused(ValueError, "fit_sts: grid", fit_sts, *blocks, grid=[1.0, 1e300])
    refused(ValueError, "num_drafts", verify.draft_capacity, None, torch.tensor([5]), 2**31)
    stats = verify.AcceptanceStats(2, 1)
    one = torch.ones(1, dtype=torch.int32)
    for wrapped in (2**32, 2**40 + 1):
        refused(RuntimeError, "request_ids", stats.update, one, one, torch.tensor([wrapped]))
    stats.update(one, one, torch.tensor([-(2**32)]))  # negative: not counted
    refused(RuntimeError, "request_ids: expected integers", stats.update, one, one, one.float())
    assert stats.read().steps == 0


def test_counts_without_a_limit():
    blocks = torch.zeros(3, 1), torch.ones(3, dtype=torch.int64)
    refused(ValueError, "num_bins", fit_sts, *blocks, num_bins=2**62)
    refused(ValueError, "num_bins", calibration_report, *blocks, num_bins=2**62)
    refused(ValueError, "num_drafts", sampling.synthetic_acceptance_rates, 1.5, 2**62)
    refused(RuntimeError, "max_rows", verify.schedule, torch.ones(1, 1), mode="fixed", max_rows=-1)


def test_ones_and_zeros_of_dtypes_that_do_not_add_up():
    for dtype in (torch.complex64, torch.float8_e4m3fn):
        accepted = torch.ones(3, 1).to(dtype)
        refused(ValueError, "fit_sts: accepted", fit_sts, torch.zeros(3, 1), accepted)


def test_weights_so_large_that_counts_vanish():
    stats = verify.AcceptanceStats(1, 1)
    for name in ("prior_weight", "pool_weight"):
        refused(ValueError, name, verify.AcceptanceEstimator, stats, **{name: math.inf})


def test_a_gate_with_fewer_than_no_rows():
    table = verify.CostTable([1, 2], [1, 2], request_rows=[1], request_seconds=[0.1])
    gate = verify.DraftGate(table)
    refused(ValueError, "num_other_rows", gate.should_draft, 1, -9)
    refused(ValueError, "num_other_rows", gate.update, 1, True, 0, 0, -9)


def test_weights_of_foreign_dtypes_devices_and_sizes():
    weights = moe.ExpertWeights(torch.zeros(1, 4, 6), torch.zeros(1, 6, 2))
    foreign = weights._replace(w13=weights.w13.to(torch.complex64))
    refused(ValueError, "prepare_weights: w13: expected float32", moe.prepare_weights, foreign)
    refused(ValueError, "device: expected one of", moe.prepare_weights, weights, "nowhere")
    half = moe.prepare_weights(
        moe.ExpertWeights(weights.w13.half(), weights.w2.half()), "cpu"
    )._replace(sizes=((4, 6), (6, 2), (1, 1)))
    refused(ValueError, "restore_weights: sizes", moe.restore_weights, half)
    ids = torch.zeros(1, 1, dtype=torch.int64)
    refused(
        RuntimeError, "fused_moe: sizes", moe.fused_moe, torch.zeros(1, 6).half(), half.w13,
        half.w2, ids, torch.ones(1, 1), layout="pairs", sizes=half.sizes,
    )  # fmt: skip


@pytest.mark.parametrize("capacity", [None, 4])
def test_rows_of_one_column_and_of_none_travel(capacity):
    parallel = moe.ExpertParallel(group_of_one(), 2, max_tokens=capacity)
    ids, weights = torch.tensor([[0], [1], [-1]]), torch.ones(3, 1)
    one = torch.full((3, 1), 7.0).as_strided((3, 1), (1, 0))
    out = parallel(one, ids, weights, moe.permute)
    assert out.tolist() == [[7.0], [7.0], [0.0]]
    single = torch.tensor([[3.0]]).as_strided((1, 1), (1, 0))
    assert parallel(single, ids[:1], weights[:1], moe.permute).tolist() == [[3.0]]
    assert parallel(torch.zeros(3, 0), ids, weights, moe.permute).shape == (3, 0)
    refused(ValueError, "ids: expected device", parallel.dispatch, one, ids.to("meta"))
