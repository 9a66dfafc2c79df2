"""The training loss: values and gradients against float64 autograd, weights, chunks."""

import math

import pytest
import torch
import torch.nn.functional as F

NUM_DRAFTS, WIDTH, RANK, VOCAB, DRAFTED = 3, 7, 4, 19, 11
MIXTURES = [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.1, 0.0, 0.9), (0.0, 0.4, 0.6)]


@pytest.fixture
def rows(generator):
    """A random problem of 12 rows in float64: the arguments of the loss, and p over all tokens."""
    count = 4 * NUM_DRAFTS

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    full_weight = random(VOCAB, WIDTH)
    drafted = torch.randperm(VOCAB, generator=generator)[:DRAFTED].sort().values
    hidden = random(count, WIDTH)
    logits = hidden @ full_weight.T
    labels = torch.randint(-1, DRAFTED, (count,), generator=generator)
    labels[:2] = torch.tensor([-1, 4])  # one that cannot be drafted, one that can
    return (
        {
            "state": random(count, WIDTH + RANK).requires_grad_(),
            "w2": random(DRAFTED, RANK).requires_grad_(),
            "vocab_weight": full_weight[drafted],
            "target_hidden": hidden,
            "target_logsumexp": logits.logsumexp(-1),
            "labels": labels,
            "weight": torch.rand(count, generator=generator, dtype=torch.float64),
        },
        logits.softmax(-1),
        drafted,
    )


def by_definition(arguments, p, drafted, shares):
    """The same loss over the whole vocabulary, from the definitions."""
    a = arguments
    logits = a["state"][:, :WIDTH] @ a["vocab_weight"].T + a["state"][:, WIDTH:] @ a["w2"].T
    q = torch.zeros_like(p).index_add(1, drafted, logits.softmax(-1))
    log_q = logits.log_softmax(-1)
    known = a["labels"] >= 0
    token = torch.zeros(len(p), dtype=p.dtype)
    token[known] = F.cross_entropy(logits[known], a["labels"][known], reduction="none")
    law = -(p[:, drafted] * log_q).sum(-1)
    variation = 0.5 * (p - q).abs().sum(-1)
    values = shares[0] * token + shares[1] * law + shares[2] * variation
    return (a["weight"] * values).sum(), token, law, variation


@pytest.mark.parametrize("shares", MIXTURES, ids=str)
@pytest.mark.parametrize("at_once", [1, 5, 128])
def test_values_and_gradients_are_those_of_autograd(rows, shares, at_once, monkeypatch):
    from drafter_training.loss import DraftLoss

    arguments, p, drafted = rows
    monkeypatch.setattr(DraftLoss, "rows_per_chunk", at_once)
    loss, token_ce, law_ce, acceptance, best = DraftLoss.apply(*arguments.values(), shares)
    grads = torch.autograd.grad(3.0 * loss, [arguments["state"], arguments["w2"]])
    expected, token, law, variation = by_definition(arguments, p, drafted, shares)
    wanted = torch.autograd.grad(3.0 * expected, [arguments["state"], arguments["w2"]])
    close = {"rtol": 1e-11, "atol": 1e-12}
    torch.testing.assert_close(loss, expected, **close)
    torch.testing.assert_close(token_ce, token, **close)
    torch.testing.assert_close(law_ce, law, **close)
    torch.testing.assert_close(acceptance, 1 - variation, **close)
    for found, want in zip(grads, wanted):
        torch.testing.assert_close(found, want, **close)
        assert found.abs().max() > 1e-3


def test_gradients_are_those_of_differences(rows):
    from drafter_training.loss import DraftLoss

    arguments, _, _ = rows
    rest = list(arguments.values())[2:]
    assert torch.autograd.gradcheck(
        lambda state, w2: DraftLoss.apply(state, w2, *rest, (0.1, 0.2, 0.7))[0],
        (arguments["state"], arguments["w2"]),
        eps=1e-7, atol=1e-5,
    )  # fmt: skip


def test_position_weights():
    from drafter_training.loss import position_weights

    valid = torch.tensor([[True, True, True], [True, True, False]])
    weights = position_weights(valid, gamma=4.0).view(2, 3)
    shape = torch.tensor([[math.exp(-(k - 1) / 4.0) for k in (1, 2, 3)]] * 2) * valid
    torch.testing.assert_close(weights, shape / shape.sum())
    assert not position_weights(torch.zeros(2, 3, dtype=torch.bool), 4.0).any()


@pytest.mark.parametrize("loss", ["paper", "kl-tv"])
@pytest.mark.parametrize("flavour", ["compact", "qwen3"])
def test_a_step_has_the_gradients_of_the_whole_loss(begin, flavour, loss):
    """Backbone, heads and confidence together, against autograd through full logits."""
    from drafter_training.loss import backward, position_weights
    from drafter_training.settings import Settings

    settings = Settings(
        steps=100, loss=loss, gamma=2.0, confidence_share=0.7, precision="fp32", rows_per_step=2,
        anchors_per_row=6, seed=5,
    )  # fmt: skip
    trainee, samples, _ = begin(flavour)
    for name in ("markov_w2", "markov_head.markov_w2.weight"):  # starts at 0
        if name in trainee.parameters():
            torch.nn.init.normal_(trainee.parameters()[name], std=0.1)
    batch = samples.batch(30, settings, trainee.num_drafts)
    parts = backward(trainee, batch, trainee.vocab_weight.detach(), settings, 30)
    found = {name: value.grad.clone() for name, value in trainee.parameters().items()}
    for value in trainee.parameters().values():
        value.grad = None

    states = trainee.states(batch)
    logits = states.hidden @ trainee.vocab_weight.T + states.bias_input @ trainee.w2.T
    log_q = logits.log_softmax(-1)
    target_hidden = batch.target_hidden.flatten(0, 2).float()
    log_p = target_hidden @ trainee.vocab_weight.T - batch.target_logsumexp.flatten()[:, None]
    p = log_p.exp()
    acceptance = torch.minimum(p, log_q.exp()).sum(-1)
    labels = trainee.draft_ids(batch.token_ids[:, :, 1:].flatten())
    token = -log_q.gather(1, labels.clamp(min=0)[:, None])[:, 0] * (labels >= 0)
    shares = settings.shares_at(30)
    values = shares[0] * token - shares[1] * (p * log_q).sum(-1) + shares[2] * (1 - acceptance)
    aim = acceptance.detach().clamp(0, 1)
    certain = F.binary_cross_entropy_with_logits(states.confidence, aim, reduction="none")
    weight = position_weights(batch.valid, 2.0)
    whole = (weight * (values + 0.7 * certain)).sum()
    whole.backward()
    assert parts["loss"][0] == pytest.approx(whole.item(), rel=1e-5)
    assert parts["confidence"][0] == pytest.approx((weight * certain).sum().item(), rel=1e-5)
    assert parts["tv"][0] == pytest.approx(1 - (weight * aim).sum().item(), rel=1e-5)
    for name, value in trainee.parameters().items():
        scale = value.grad.abs().max().item()
        assert scale > 0, name
        torch.testing.assert_close(
            found[name], value.grad, rtol=1e-3, atol=2e-5 * scale, msg=lambda m, n=name: f"{n}: {m}"
        )
