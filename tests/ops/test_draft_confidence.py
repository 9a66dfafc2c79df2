"""dspark_ext.draft.confidence and calibrate."""

import numpy as np
import pytest
import torch

from dspark_ext import draft, verify
from dspark_ext.reference import draft as reference
from dspark_ext.reference import numerics

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
LOG2_E = np.float32(1.4426950408889634)


def features(batch, steps, width, rank, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(batch, steps, width, generator=generator).to(dtype)
    embed = torch.randn(batch, steps, rank, generator=generator).to(dtype)
    weight = torch.randn(width + rank, generator=generator) / (width + rank) ** 0.5 * 3
    return hidden, embed, weight.to(dtype)


def exact_sigmoid(logits, temperatures=None):
    """docs/numerics.md section 10, one operation at a time."""
    z = logits.numpy()
    if temperatures is not None:
        z = z / temperatures.numpy()
    s = numerics.exp2_nonpositive(-np.abs(z) * LOG2_E).astype(np.float32)
    one = np.float32(1)
    return torch.from_numpy(np.where(z >= 0, one / (one + s), s / (one + s)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("width", "rank"), [(1, 1), (40, 8), (255, 1), (256, 0), (200, 57), (576, 64)], ids=str
)
def test_equals_the_definition_to_the_bit(width, rank, dtype):
    hidden, embed, weight = features(4, 5, width, rank, dtype, seed=width)
    temperatures = torch.tensor([0.5, 1.0, 1.7, 3.0, 10.0])
    for bias, heat in [(None, None), (0.37, None), (-2.5, temperatures)]:
        logits = reference.confidence_logits(hidden, embed, weight, bias)
        result = draft.confidence(hidden, embed, weight, bias, heat)
        assert result.dtype == torch.float32 and result.shape == (4, 5)
        assert torch.equal(result, exact_sigmoid(logits, heat))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_is_close_to_float64(dtype):
    hidden, embed, weight = features(16, 7, 300, 40, dtype)
    temperatures = torch.linspace(0.5, 2.0, 7)
    exact = torch.cat([hidden, embed], -1).double() @ weight.double() + 0.25
    exact = torch.sigmoid(exact / temperatures.double())
    result = draft.confidence(hidden, embed, weight, 0.25, temperatures)
    assert float((result.double() - exact).abs().max()) < 2e-6
    spec = reference.confidence(hidden, embed, weight, 0.25, temperatures)
    assert float((result.double() - spec).abs().max()) < 2e-7


def logits_only(*values):
    """Confidences of the given logits, through the head."""
    hidden = torch.tensor(values).reshape(1, -1, 1)
    return draft.confidence(hidden, torch.zeros(1, len(values), 0), torch.ones(1))[0]


def test_saturates_without_overflow():
    result = logits_only(0.0, 17.0, 88.0, 1e30, torch.inf, -17.0, -87.0, -1e30, -torch.inf)
    assert result[0] == 0.5
    assert result[1:5].tolist() == [1.0] * 4
    assert float(result[5]) == pytest.approx(4.14e-8, rel=1e-3)
    assert 0 <= float(result[6]) < 1e-37 and result[7:].tolist() == [0.0, 0.0]
    assert bool(((result >= 0) & (result <= 1)).all())


def test_nan_gives_nan_which_a_schedule_counts_as_zero():
    result = logits_only(3.0, float("nan"), 3.0)
    assert bool(result[1].isnan()) and not bool(result[[0, 2]].isnan().any())
    plan = verify.schedule(result[None], mode="threshold", threshold=0.1)
    assert plan.verify_lens.tolist() == [1]


def test_rises_with_the_logit():
    values = torch.linspace(-100, 30, 4001)
    result = logits_only(*values.tolist())
    assert bool((result.diff() >= 0).all())


def test_weight_may_be_a_row():
    hidden, embed, weight = features(2, 3, 10, 4)
    one = draft.confidence(hidden, embed, weight, 0.5)
    assert torch.equal(one, draft.confidence(hidden, embed, weight[None], torch.tensor([0.5])))
    assert torch.equal(one, draft.confidence(hidden, embed, weight, torch.tensor(0.5)))


def test_a_position_depends_on_its_own_row_only():
    """c_k never sees x_k or any other position: prev_embed_k is the token before it."""
    hidden, embed, weight = features(3, 5, 20, 6)
    whole = draft.confidence(hidden, embed, weight)
    embed2, hidden2 = embed.clone(), hidden.clone()
    embed2[:, 3:], hidden2[:, 3:] = 7.0, float("nan")
    assert torch.equal(draft.confidence(hidden2, embed2, weight)[:, :3], whole[:, :3])
    for b in range(3):
        for k in range(5):
            alone = draft.confidence(
                hidden[b : b + 1, k : k + 1], embed[b : b + 1, k : k + 1], weight
            )
            assert float(alone) == float(whole[b, k])


def test_batch_order_and_split_change_nothing():
    hidden, embed, weight = features(64, 4, 90, 10, torch.bfloat16)
    whole = draft.confidence(hidden, embed, weight)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(draft.confidence(hidden[order], embed[order], weight), whole[order])
    parts = [draft.confidence(h, e, weight) for h, e in zip(hidden.split(9), embed.split(9))]
    assert torch.equal(torch.cat(parts), whole)


def test_strided_hidden():
    hidden, embed, weight = features(3, 4, 20, 6)
    wide = torch.zeros(3, 8, 40)
    wide[:, ::2, :20] = hidden
    view = wide[:, ::2, :20]
    assert torch.equal(
        draft.confidence(view, embed, weight), draft.confidence(hidden, embed, weight)
    )


@pytest.mark.parametrize(("batch", "steps"), [(0, 5), (3, 0)])
def test_nothing_to_judge(batch, steps):
    hidden, embed, weight = features(batch, steps, 8, 2)
    assert draft.confidence(hidden, embed, weight).shape == (batch, steps)


def test_br031_calibration_may_change_in_place():
    hidden, embed, weight = features(2, 3, 8, 2)
    temperatures = torch.ones(3)
    before = draft.confidence(hidden, embed, weight, None, temperatures)
    temperatures.copy_(torch.tensor([2.0, 1.0, 0.5]))
    after = draft.confidence(hidden, embed, weight, None, temperatures)
    assert torch.equal(before[:, 1], after[:, 1]) and not torch.equal(before[:, 0], after[:, 0])


def test_br031_sigmoid_is_one_from_logit_17_up():
    assert logits_only(17.0, 20.0).tolist() == [1.0, 1.0]


def test_br032_temperatures_per_position():
    logits = torch.ones(1, 3)
    result = draft.calibrate(logits, torch.tensor([2.0, 1.0, 0.5]))
    assert result[0].tolist() == pytest.approx([0.6225, 0.7311, 0.8808], abs=5e-5)
    survival = result.cumprod(1)[0].tolist()
    assert survival == pytest.approx([0.6225, 0.4551, 0.4008], abs=5e-5)


def test_br032_ones_are_the_identity_and_order_stays():
    hidden, embed, weight = features(20, 3, 8, 2)
    plain = draft.confidence(hidden, embed, weight)
    assert torch.equal(plain, draft.confidence(hidden, embed, weight, None, torch.ones(3)))
    for heat in (0.3, 4.0):
        hot = draft.confidence(hidden, embed, weight, None, torch.full((3,), heat))
        for k in range(3):
            order = plain[:, k].argsort()  # equal ones may arise by saturation, never a swap
            assert bool((hot[order, k].diff() >= 0).all())


def test_calibrate_is_what_confidence_does():
    hidden, embed, weight = features(6, 4, 30, 5)
    logits = reference.confidence_logits(hidden, embed, weight, 0.1)
    heat = torch.tensor([0.5, 1.0, 2.0, 3.0])
    expected = draft.confidence(hidden, embed, weight, 0.1, heat)
    assert torch.equal(draft.calibrate(logits, heat), expected)
    assert torch.equal(draft.calibrate(logits[0], heat), expected[0])
    stacked = draft.calibrate(logits.reshape(2, 3, 4), heat)
    assert torch.equal(stacked, expected.reshape(2, 3, 4))
    assert draft.calibrate(torch.zeros(0, 4), heat).shape == (0, 4)


HIDDEN, EMBED, WEIGHT = features(2, 3, 8, 2)


@pytest.mark.parametrize(
    "temperatures",
    [
        torch.tensor([1.0, 0.0, 1.0]),
        torch.tensor([1.0, -0.0, 1.0]),
        torch.tensor([1.0, -2.0, 1.0]),
        torch.tensor([1.0, float("nan"), 1.0]),
        torch.tensor([1.0, torch.inf, 1.0]),
        torch.ones(2),
        torch.ones(1, 3),
    ],
    ids=lambda t: str(t.tolist()),
)
def test_br032_bad_temperatures_are_errors(temperatures):
    for function, arguments in [
        (draft.confidence, (HIDDEN, EMBED, WEIGHT, None, temperatures)),
        (draft.calibrate, (torch.zeros(2, 3), temperatures)),
    ]:
        with pytest.raises(RuntimeError) as error:
            function(*arguments)
        assert f"dspark_ext.{function.__name__}: temperatures" in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((HIDDEN[0], EMBED, WEIGHT), "hidden"),
        ((HIDDEN.double(), EMBED, WEIGHT), "hidden"),
        ((HIDDEN, EMBED[:, :2], WEIGHT), "prev_embed"),
        ((HIDDEN, EMBED[:1], WEIGHT), "prev_embed"),
        ((HIDDEN, EMBED.long(), WEIGHT), "prev_embed"),
        ((HIDDEN, EMBED, WEIGHT[:9]), "weight"),
        ((HIDDEN, EMBED, WEIGHT.reshape(2, -1)), "weight"),
        ((HIDDEN, EMBED, WEIGHT.double()), "weight"),
        ((HIDDEN, EMBED, WEIGHT, torch.zeros(2)), "bias"),
    ],
)
def test_errors_name_operator_and_argument(arguments, word):
    with pytest.raises(RuntimeError) as error:
        draft.confidence(*arguments)
    assert f"dspark_ext.confidence: {word}" in str(error.value)


def test_calibrate_wants_a_position_dimension():
    with pytest.raises(RuntimeError, match=r"dspark_ext\.calibrate: conf_logits: .*, got \[\]"):
        draft.calibrate(torch.tensor(1.0), torch.ones(1))


def test_inputs_stay_as_they_are():
    inputs = (*features(2, 3, 8, 2), torch.tensor([0.5]), torch.tensor([1.0, 2.0, 3.0]))
    before = [t.clone() for t in inputs]
    draft.confidence(*inputs)
    assert all(torch.equal(a, b) for a, b in zip(before, inputs))


def test_opcheck():
    heat = torch.tensor([0.5, 1.0, 2.0])
    for bias, temperatures in [(None, None), (torch.tensor([0.5]), heat)]:
        torch.library.opcheck(
            torch.ops.dspark_ext.confidence.default, (HIDDEN, EMBED, WEIGHT, bias, temperatures)
        )
    torch.library.opcheck(torch.ops.dspark_ext.calibrate.default, (torch.zeros(2, 3), heat))


def test_compiles_in_one_graph():
    def judged(hidden, embed, weight, heat):
        return draft.confidence(hidden, embed, weight, 0.5, heat), draft.calibrate(embed, heat[:2])

    compiled = torch.compile(judged, fullgraph=True, backend="aot_eager")
    arguments = (HIDDEN, EMBED, WEIGHT, torch.tensor([0.5, 1.0, 2.0]))
    for eager, graph in zip(judged(*arguments), compiled(*arguments)):
        assert torch.equal(eager, graph)
