"""The emitted law, exactly: rational enumeration of every draft path, tied to the op's own numbers.

1. In rational arithmetic the two rules emit the target's law, with equality.
2. The op's thresholds are those rationals to 1e-6, and its decisions switch exactly there.
3. The op's final token switches where the rational residual's cumulative sums are.
Together: what the op emits is the target law, up to the rounding of its inputs.
"""

from fractions import Fraction

import pytest
import torch
from kit import METHODS, log_rows, starts, verify
from lawkit import (
    Chain,
    block_thresholds,
    emitted_law,
    final_law,
    mean_accepted,
    thresholds_of,
    token_thresholds,
)

from dspark_ext import sampling

NEVER = 1.0  # a uniform that no threshold exceeds
MARGIN = 2e-6

CHAINS = {
    f"{draft},V={vocab},K={num_drafts}": Chain(
        vocab, num_drafts, draft, seed=7 * vocab + num_drafts
    )
    for draft in ("dense", "onehot")
    for vocab in (2, 3)
    for num_drafts in range(5)
}
WITH_DRAFTS = {key: chain for key, chain in CHAINS.items() if chain.num_drafts > 0}


def two_token_chain(num_drafts: int) -> Chain:
    """p = (1/3, 2/3), q = (2/3, 1/3) at every position."""
    chain = Chain(2, num_drafts)
    third = Fraction(1, 3)
    chain.target = dict.fromkeys(chain.target, [third, 2 * third])
    chain.proposal = dict.fromkeys(chain.proposal, [2 * third, third])
    return chain


def op_inputs(chain: Chain, paths, source: str = "logits"):
    """All paths as one batch: target rows, ids, draft arguments."""
    k = chain.num_drafts
    target = log_rows([chain.p(x[:i]) for x in paths for i in range(k + 1)])
    ids = torch.tensor(paths, dtype=torch.int64).reshape(len(paths), k)
    if chain.draft == "onehot":
        return target, ids, {}
    rows = [chain.q(x[:i]) for x in paths for i in range(k)]
    draft = log_rows(rows).reshape(len(paths), k, chain.vocab)
    return (
        target,
        ids,
        {"draft_logits": draft} if source == "logits" else {"draft_probs": draft.exp()},
    )


def op_accept_prob(target, ids, draft):
    return sampling.block_acceptance(
        target,
        ids,
        draft.get("draft_logits"),
        draft_probs=draft.get("draft_probs"),
        query_start_loc=starts([ids.shape[1]] * len(ids)),
        temperature=1.0,
    ).accept_prob


def num_accepted(target, ids, draft, uniforms, method):
    return verify(
        target,
        ids,
        draft.get("draft_logits"),
        draft_probs=draft.get("draft_probs"),
        method=method,
        uniforms=uniforms,
    ).num_accepted


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS.keys())
@pytest.mark.parametrize("method", METHODS)
def test_rational_rule_emits_target_law(method, chain):
    law = emitted_law(method, chain)
    for tokens, chance in chain.target_law(chain.num_drafts + 1).items():
        assert law[tokens] == chance


def test_enumeration_rejects_wrong_rules():
    """Negative control: the token rule's residual under block acceptance is not lossless."""
    chain = Chain(3, 2, seed=1)

    def block_with_token_residual(method, chain, x):
        return block_thresholds(chain, x)[0], token_thresholds(chain, x)[1]

    law = emitted_law("block", chain, block_with_token_residual)
    assert any(law[tokens] != chance for tokens, chance in chain.target_law(3).items())


@pytest.mark.parametrize(
    ("num_drafts", "method", "mean"),
    [
        (2, "block", Fraction(11, 9)),
        (2, "token", Fraction(10, 9)),
        (3, "block", Fraction(5, 3)),
        (3, "token", Fraction(38, 27)),
    ],
    ids=str,
)
def test_br012_mean_accepted(num_drafts, method, mean):
    chain = two_token_chain(num_drafts)
    assert mean_accepted(method, chain) == mean
    paths = list(chain.paths())
    rounds = 100_000
    target, ids, draft = op_inputs(chain, [x for x, _ in paths])
    chosen = torch.multinomial(
        torch.tensor([float(weight) for _, weight in paths]),
        rounds,
        replacement=True,
        generator=torch.Generator().manual_seed(num_drafts),
    )
    rows = target.reshape(len(paths), num_drafts + 1, 2)[chosen].reshape(-1, 2)
    out = verify(rows, ids[chosen], draft["draft_logits"][chosen], method=method)
    assert abs(out.num_accepted.double().mean() - float(mean)) <= 0.013


@pytest.mark.parametrize("chain", WITH_DRAFTS.values(), ids=WITH_DRAFTS.keys())
def test_block_accepts_more_than_token(chain):
    assert mean_accepted("block", chain) >= mean_accepted("token", chain)


@pytest.mark.parametrize("source", ["logits", "probs"])
@pytest.mark.parametrize("chain", WITH_DRAFTS.values(), ids=WITH_DRAFTS.keys())
def test_op_block_thresholds_are_the_rationals(chain, source):
    paths = [x for x, _ in chain.paths()]
    target, ids, draft = op_inputs(chain, paths, source)
    accept = op_accept_prob(target, ids, draft)
    exact = torch.tensor([[float(h) for h in block_thresholds(chain, x)[0]] for x in paths])
    torch.testing.assert_close(accept, exact.double(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("source", ["logits", "probs"])
@pytest.mark.parametrize("chain", WITH_DRAFTS.values(), ids=WITH_DRAFTS.keys())
def test_block_decisions_switch_at_the_op_thresholds(chain, source):
    """To the bit: u = accept_prob rejects, the next double below accepts."""
    paths = [x for x, _ in chain.paths()]
    target, ids, draft = op_inputs(chain, paths, source)
    accept = op_accept_prob(target, ids, draft)
    for i in range(chain.num_drafts):
        uniforms = torch.full((len(paths), chain.num_drafts + 1), NEVER, dtype=torch.float64)
        uniforms[:, i] = accept[:, i]
        assert (num_accepted(target, ids, draft, uniforms, "block") == 0).all()
        uniforms[:, i] = accept[:, i].nextafter(torch.zeros(1, dtype=torch.float64))
        expected = torch.where(accept[:, i] > 0, i + 1, 0)
        assert torch.equal(num_accepted(target, ids, draft, uniforms, "block").long(), expected)


@pytest.mark.parametrize("source", ["logits", "probs"])
@pytest.mark.parametrize("chain", WITH_DRAFTS.values(), ids=WITH_DRAFTS.keys())
def test_token_decisions_switch_at_p_over_q(chain, source):
    paths = [x for x, _ in chain.paths()]
    target, ids, draft = op_inputs(chain, paths, source)
    thresholds = torch.tensor(
        [[float(h) for h in token_thresholds(chain, x)[0]] for x in paths], dtype=torch.float64
    )
    possible = thresholds > 0  # the drafts before the slot under test must be acceptable
    for i in range(chain.num_drafts):
        uniforms = torch.zeros((len(paths), chain.num_drafts + 1), dtype=torch.float64)
        uniforms[:, i + 1 :] = NEVER
        first_dead = torch.where(possible.all(1), chain.num_drafts, possible.int().argmin(1))
        uniforms[:, i] = (thresholds[:, i] - MARGIN).clamp(min=0)
        above = num_accepted(target, ids, draft, uniforms, "token")
        uniforms[:, i] = (thresholds[:, i] + MARGIN).clamp(max=1)
        below = num_accepted(target, ids, draft, uniforms, "token")
        # A later draft with p > q is accepted even by a uniform of 1.
        reached = first_dead > i
        assert (above[reached] >= i + 1).all()
        rejectable = reached & (thresholds[:, i] < 1)
        assert (below[rejectable] == i).all()
        assert torch.equal(above[~reached].long(), first_dead[~reached])


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS.keys())
@pytest.mark.parametrize("method", METHODS)
def test_final_token_switches_at_the_rational_cdf(method, chain):
    """Reach every tau on every path; move the last uniform across each step of the exact CDF."""
    cases = [case for x, _ in chain.paths() for case in final_cases(method, chain, x)]
    paths = [x for x, _, _, _, _ in cases]
    target, ids, draft = op_inputs(chain, paths)
    uniforms = torch.tensor([[*u, final] for _, _, u, final, _ in cases], dtype=torch.float64)
    out = verify(target, ids, draft.get("draft_logits"), method=method, uniforms=uniforms)
    taus = torch.tensor([tau for _, tau, _, _, _ in cases])
    assert torch.equal(out.num_accepted.long(), taus)
    assert out.last_token.tolist() == [token for _, _, _, _, token in cases]


def final_cases(method, chain, x):
    """(path, tau, acceptance draws, final draw, expected token), two per step of the CDF."""
    thresholds, prefixes = thresholds_of(method, chain, x)
    for tau in range(chain.num_drafts + 1):
        draws = draws_that_stop_at(method, thresholds, tau)
        if draws is None:
            continue
        end = Fraction(0)
        for token, chance in enumerate(final_law(chain, x, tau, prefixes)):
            if chance > 0:
                yield x, tau, draws, float(end) + MARGIN, token
                end += chance
                yield x, tau, draws, float(end) - MARGIN, token


def draws_that_stop_at(method, thresholds, tau):
    """Acceptance uniforms that give exactly `tau`, or None if that cannot happen."""
    if any(h == 0 for h in (thresholds[:tau] if method == "token" else thresholds[tau - 1 : tau])):
        return None
    later = thresholds[tau : tau + 1] if method == "token" else []
    if any(h == 1 for h in later) or (method == "block" and 1 in thresholds[tau:]):
        return None
    return [0.0] * tau + [NEVER] * (len(thresholds) - tau)


def test_block_vectors():
    """p = (.2, .3, .5), q = (.5, .3, .2) at both positions, K = 2."""
    rows, ids = log_rows([(0.2, 0.3, 0.5)] * 9), torch.tensor([[2, 0], [0, 2], [0, 0]])
    draft = log_rows([(0.5, 0.3, 0.2)] * 6).reshape(3, 2, 3)
    out = sampling.block_acceptance(
        rows, ids, draft, query_start_loc=starts([2, 2, 2]), temperature=1.0
    )
    expected_prefix = torch.tensor([[1, 0.4], [0.4, 1], [0.4, 0.16]], dtype=torch.float64)
    expected_accept = torch.tensor([[1, 0.4], [0, 1], [0, 0.16]], dtype=torch.float64)
    torch.testing.assert_close(out.prefix_prob, expected_prefix, atol=1e-6, rtol=0)
    torch.testing.assert_close(out.accept_prob, expected_accept, atol=1e-6, rtol=0)
    mass = torch.tensor([0.3, 0, 0], dtype=torch.float64)
    torch.testing.assert_close(out.residual_mass[:, 0], mass, atol=1e-6, rtol=0)
    uniforms = torch.tensor([[0.99, 0.99, 0.5]] * 3, dtype=torch.float64)
    assert verify(rows, ids, draft, uniforms=uniforms).num_accepted.tolist() == [1, 2, 0]
    assert verify(rows, ids, draft, uniforms=uniforms, method="token").num_accepted[1] == 0
