"""dspark_ext.moe.route: bits of the definition, laws against float64, invariance, errors."""

import pytest
import router_sweep as sweep
import torch
from kit import bits_equal

from dspark_ext import moe
from dspark_ext.reference import router as reference

operator = torch.ops.dspark_ext.route


def assert_same(mine, theirs, context=None):
    for a, b in zip(mine, theirs, strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape and bits_equal(a, b), (context, a, b)


# ---- the definition -----------------------------------------------------------------------------


@pytest.mark.parametrize("experts", sweep.EXPERTS)
def test_bits_are_those_of_the_definition(experts):
    for seed in range(24 if experts < 1000 else 6):
        arguments = sweep.case(seed, experts, 13)
        assert_same(operator(*arguments), reference.route_bits(*arguments), arguments[1:8])


@pytest.mark.parametrize("k", [*range(1, 17), 32])
def test_every_number_of_slots(k):
    for seed, experts in enumerate((k, 2 * k, 160, 256)):
        arguments = sweep.case(seed, experts, 9, k)
        assert_same(operator(*arguments), reference.route_bits(*arguments), arguments[1:8])


def test_the_sweep_has_every_kind_of_row():
    """Guards the tests above."""
    statuses, kinds = set(), set()
    for seed in range(60):
        arguments = sweep.case(seed, 64, 13)
        statuses.update(operator(*arguments)[2].tolist())
        kinds.add((arguments[3] is not None, arguments[4] > 1, arguments[8] is not None))
    assert {0, moe.NAN_ROW, moe.EMPTY_ROW, moe.INVALID_ID} <= statuses
    assert {(True, True, False), (False, True, False), (False, False, True)} <= kinds


# ---- what it means ------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", sweep.DTYPES, ids=str)
@pytest.mark.parametrize("scoring", sweep.SCORINGS)
@pytest.mark.parametrize("experts", sweep.EXPERTS)
def test_agrees_with_float64(experts, scoring, dtype):
    """Ids but for ties of scores within rounding; weights to float32."""
    generator = torch.Generator().manual_seed(experts)
    logits = (torch.randn(33, experts, generator=generator) * 4).to(dtype)
    bias = torch.randn(experts, generator=generator) * 0.1
    k = min(experts, 6)
    for options in ({}, {"bias": bias}, {"bias": bias, "renormalize": False, "scale": 2.5}):
        ids, weights = moe.route(logits, k, scoring=scoring, **options)
        _, _, biased = reference.route(logits, k, scoring=scoring, **options)
        best = biased.topk(k).values
        chosen = biased.gather(1, ids.long())
        assert torch.allclose(chosen, best, rtol=1e-6, atol=1e-6)
        share = reference.scores(logits, scoring).gather(1, ids.long())
        if options.get("renormalize", True):
            share = share / (share.sum(1, keepdim=True) + 1e-20)
        expected = share * options.get("scale", 1.0)
        assert torch.allclose(weights.double(), expected, rtol=2e-6, atol=1e-25)
        assert all(len(set(row)) == k for row in ids.tolist())


@pytest.mark.parametrize("num_groups", [1, 2, 4, 8, 16, 64])
def test_groups_agree_with_float64(num_groups):
    """Multiples of 1/8 as biased scores, exact in float32: no tie is by rounding, many are real."""
    generator = torch.Generator().manual_seed(num_groups)
    logits = torch.full((200, 64), -torch.inf)  # sigmoid: 0
    for topk_groups in {1, (num_groups + 1) // 2, num_groups}:
        k = min(4, topk_groups * 64 // num_groups)
        bias = torch.randint(-20, 20, (64,), generator=generator) / 8
        options = {"scoring": "sigmoid", "num_groups": num_groups, "topk_groups": topk_groups}
        ids, _ = moe.route(logits, k, bias=bias, **options)
        expected, _, _ = reference.route(logits, k, bias=bias, **options)
        assert torch.equal(ids.long(), expected)


@pytest.mark.parametrize("scoring", ["sigmoid", "sqrtsoftplus"])
def test_scores_are_accurate_throughout(scoring):
    x = torch.linspace(-69, 100, 200_001).reshape(-1, 1)
    _, weights = moe.route(x, 1, scoring=scoring, renormalize=False)
    exact = reference.scores(x, scoring)
    assert ((weights.double() - exact) / exact).abs().max() < 3 * 2.0**-24


@pytest.mark.parametrize("experts", sweep.EXPERTS)
def test_every_expert_wins(experts):
    """One-hot rows: BR-047 for every expert; the others tie and follow in order."""
    k = min(experts, 2)
    for scoring in sweep.SCORINGS:
        ids, _ = moe.route(torch.eye(experts) * 3, k, scoring=scoring)
        assert torch.equal(ids[:, 0], torch.arange(experts, dtype=torch.int32))
        if k == 2:
            assert ids[0, 1] == 1 and not ids[1:, 1].any()


def test_ties_go_to_the_lowest_id():
    logits = torch.tensor([[1.0, 2, 2, 1, 2, -0.0, 0.0, 2]])
    for scoring in sweep.SCORINGS:
        ids, weights = moe.route(logits, 8, scoring=scoring)
        assert ids.tolist() == [[1, 2, 4, 7, 0, 3, 5, 6]]
        assert weights[0, :4].unique().numel() == 1 and weights[0, 6] == weights[0, 7]


def test_an_expert_with_bias_minus_infinity_is_the_last_resort():
    bias = torch.tensor([0.0, -torch.inf, 1.0, -torch.inf])
    ids, weights = moe.route(torch.tensor([[0.0, 5, 1, 6]]), 3, scoring="sigmoid", bias=bias)
    assert ids.tolist() == [[2, 0, 1]]
    assert weights[0, 2] == 0 and weights[0, :2].sum().item() == pytest.approx(1, abs=1e-6)


def test_infinite_logits_share_the_softmax():
    logits = torch.tensor([[1.0, torch.inf, 2.0, torch.inf], [-torch.inf, 0, -torch.inf, 0]])
    ids, weights = moe.route(logits, 4, renormalize=False)
    assert ids.tolist() == [[1, 3, 0, 2], [1, 3, 0, 2]]
    assert weights.tolist() == [[0.5, 0.5, 0, 0]] * 2


def test_an_empty_row_follows_the_bias():
    logits = torch.full((1, 4), -torch.inf)
    bias = torch.tensor([0.0, 1.0, 3.0, 2.0])
    for scoring in sweep.SCORINGS:
        out = moe.route(logits, 2, scoring=scoring, bias=bias, return_status=True)
        assert out.ids.tolist() == [[2, 3]] and out.weights.tolist() == [[0.0, 0.0]]
        assert out.status.tolist() == [moe.EMPTY_ROW]


def test_a_nan_in_the_bias_makes_every_row_dead():
    bias = torch.tensor([0.0, torch.nan, 1.0])
    out = moe.route(torch.randn(2, 3), 2, bias=bias, shared_expert_weight=1.0, return_status=True)
    assert out.status.tolist() == [moe.NAN_ROW] * 2
    assert out.ids.tolist() == [[0, 1, 3]] * 2 and not out.weights.any()


def test_the_table_chooses_the_experts_of_a_token():
    """Hash layers: ids as they stand in the table, weights from the scores of these experts."""
    logits = torch.tensor([[0.0, 1, 2, 3]] * 5)
    table = torch.tensor([[3, 0], [1, 1], [2, 4]], dtype=torch.int32)
    ids = torch.tensor([0, 1, 2, 3, -1])
    out = moe.route(
        logits,
        2,
        scoring="sigmoid",
        hash_ids=ids,
        hash_table=table,
        shared_expert_weight=0.25,
        return_status=True,
    )
    assert out.status.tolist() == [0, 0, *[moe.INVALID_ID] * 3]
    assert out.ids.tolist() == [[3, 0, 4], [1, 1, 4], *[[0, 1, 4]] * 3]
    score = torch.sigmoid(torch.tensor([3.0, 0.0]))
    assert torch.allclose(out.weights[0, :2], score / score.sum(), atol=1e-6)
    assert out.weights[1].tolist() == [0.5, 0.5, 0.25]
    assert not out.weights[2:].any()


def test_a_shared_expert_takes_the_last_slot():
    logits = torch.randn(9, 16, generator=torch.Generator().manual_seed(5))
    ids, weights = moe.route(logits, 3, scale=2.5)
    more_ids, more_weights = moe.route(logits, 3, scale=2.5, shared_expert_weight=0.3)
    assert torch.equal(more_ids[:, :3], ids) and torch.equal(more_weights[:, :3], weights)
    assert (more_ids[:, 3] == 16).all() and (more_weights[:, 3] == torch.tensor(0.3)).all()


# ---- invariance ---------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 17, 31, 32, 33, 255, 256, 257, 1023, 1025, 4097])
def test_a_row_does_not_depend_on_its_batch(tokens):
    arguments = sweep.case(7, 129, 97, 6, torch.bfloat16)
    assert arguments[3] is not None
    base = operator(*arguments)
    rows = torch.randperm(tokens, generator=torch.Generator().manual_seed(tokens)) % 97
    for threads in (1, 2, 5):
        saved = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            out = operator(arguments[0][rows], *arguments[1:])
        finally:
            torch.set_num_threads(saved)
        assert_same(out, [x[rows] for x in base])


def test_many_tokens():
    arguments = sweep.case(7, 33, 97, 6, torch.float32)
    rows = torch.arange(65544) % 97
    base = operator(*arguments)
    assert_same(operator(arguments[0][rows], *arguments[1:]), [x[rows] for x in base])


def test_inputs_stay_as_they_are():
    arguments = sweep.case(3, 64, 33, 6)
    before = [x.clone() if torch.is_tensor(x) else x for x in arguments]
    operator(*arguments)
    for a, b in zip(arguments, before):
        assert not torch.is_tensor(a) or bits_equal(a, b)


# ---- torch --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_opcheck(seed):
    torch.library.opcheck(torch.ops.dspark_ext.route.default, sweep.case(seed, 32, 5, 4))


def test_compiles_in_one_graph():
    def layer(logits, bias):
        return moe.route(logits, 4, scoring="sqrtsoftplus", bias=bias, shared_expert_weight=1.0)

    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for tokens in (2, 5, 9, 0):
        logits, bias = torch.randn(tokens, 32), torch.randn(32)
        assert_same(compiled(logits, bias), layer(logits, bias))


def test_runs_on_meta_tensors():
    ids, weights = moe.route(torch.empty(7, 32, device="meta"), 4, shared_expert_weight=1.0)
    assert ids.shape == weights.shape == (7, 5)
    assert ids.dtype == torch.int32 and weights.dtype == torch.float32


# ---- errors -------------------------------------------------------------------------------------

ERRORS = [
    ({"logits": torch.zeros(4)}, r"logits: expected shape \[T, E\], got \[4\]"),
    ({"logits": torch.zeros(2, 8).double()}, r"logits: expected dtype float32 .*got float64"),
    ({"logits": torch.zeros(2, 0)}, "logits: expected E from 1 to 4096, got 0"),
    ({"logits": torch.zeros(1, 4097)}, "logits: expected E from 1 to 4096, got 4097"),
    ({"k": 0}, "k: expected 1 to E=8, got 0"),
    ({"k": 9}, "k: expected 1 to E=8, got 9"),
    ({"logits": torch.zeros(1, 64), "k": 33}, "k: expected 1 to most=32, got 33"),
    ({"scoring": "softplus"}, "scoring: expected softmax, sigmoid or sqrtsoftplus, got softplus"),
    ({"scale": float("nan")}, "scale: expected a finite float32 number, got nan"),
    ({"scale": 1e300}, "scale: expected a finite float32 number"),
    ({"bias": torch.zeros(7)}, r"bias: expected shape \[E=8\], got \[7\]"),
    ({"bias": torch.zeros(8).half()}, "bias: expected dtype float32, got float16"),
    ({"num_groups": 3, "topk_groups": 1}, "num_groups: expected a divisor of E=8, got 3"),
    ({"num_groups": -1}, "num_groups: expected 0 to most=64, got -1"),
    (
        {"logits": torch.zeros(1, 130), "num_groups": 65, "topk_groups": 9},
        "num_groups: expected 0 to most=64, got 65",
    ),
    ({"num_groups": 4}, "topk_groups: expected 1 to num_groups=4, got 0"),
    ({"num_groups": 4, "topk_groups": 5}, "topk_groups: expected 1 to num_groups=4, got 5"),
    (
        {"k": 3, "num_groups": 4, "topk_groups": 1},
        "topk_groups: expected groups with at least k=3 experts, got 1 with 2",
    ),
    ({"hash_ids": torch.zeros(2).long()}, "hash_table: hash_ids and hash_table belong together"),
    ({"hash_table": torch.zeros(5, 2).int()}, "hash_ids: hash_ids and hash_table belong together"),
    (
        {"hash_ids": torch.zeros(3).long(), "hash_table": torch.zeros(5, 2).int()},
        r"hash_ids: expected shape \[T=2\], got \[3\]",
    ),
    (
        {"hash_ids": torch.zeros(2).long(), "hash_table": torch.zeros(5, 3).int()},
        r"hash_table: expected shape \[V, k=2\], got \[5, 3\]",
    ),
    (
        {"hash_ids": torch.zeros(2).long(), "hash_table": torch.zeros(5, 2).long()},
        "hash_table: expected dtype int32, got int64",
    ),
    (
        {
            "hash_ids": torch.zeros(2).long(),
            "hash_table": torch.zeros(5, 2).int(),
            "bias": torch.zeros(8),
        },
        "bias: hash_table chooses the experts, expected None",
    ),
    ({"shared_expert_weight": float("inf")}, "shared_expert_weight: expected a finite float32"),
]


@pytest.mark.parametrize(("changes", "message"), ERRORS, ids=[message for _, message in ERRORS])
def test_errors_name_the_argument(changes, message):
    options = {"logits": torch.zeros(2, 8), "k": 2, **changes}
    with pytest.raises(RuntimeError, match=r"dspark_ext\.route: " + message):
        moe.route(options.pop("logits"), options.pop("k"), **options)
