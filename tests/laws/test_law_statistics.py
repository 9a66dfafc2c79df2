"""Chi-square of what the op emits with its own random numbers; lawkit states the false alarms."""

import pytest
import torch
from kit import FLOATS, METHODS, log_rows, name, verify
from lawkit import FALSE_ALARM, Chain, assert_law, chi_square_p

from dspark_ext import sampling
from dspark_ext.reference import sampling as reference

VOCAB, WIDTH, ROUNDS = 11, 2, 8_000
FILTERS = {
    "none": {},
    "top_k": {"top_k": 4},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.15},
    "all": {"top_k": 7, "top_p": 0.9, "min_p": 0.05},
}


def draft_tokens(draft_rows: torch.Tensor, rounds: int, temperature=1.0) -> torch.Tensor:
    """[rounds, n] ids drawn by the op from rows [n, V], draft stream, position = slot."""
    n, vocab = draft_rows.shape
    seeds = torch.arange(rounds).repeat_interleave(n)
    ids, _ = sampling.sample(
        draft_rows.repeat(rounds, 1), temperature=temperature, seeds=seeds,
        positions=torch.arange(n).repeat(rounds), stream="draft",
    )  # fmt: skip
    return ids.reshape(rounds, n)


@pytest.mark.parametrize("dtype", FLOATS, ids=name)
@pytest.mark.parametrize("filters", FILTERS.values(), ids=FILTERS.keys())
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("draft", ["logits", "probs", "onehot"])
def test_first_token_law(draft, method, filters, dtype):
    generator = torch.Generator().manual_seed(11)
    target = (torch.randn(WIDTH + 1, VOCAB, generator=generator) * 1.5).to(dtype)
    rows = (torch.randn(WIDTH, VOCAB, generator=generator) * 1.5).to(dtype)
    options = {}
    if draft == "onehot":
        ids = rows.float().argmax(1).repeat(ROUNDS, 1)
    else:
        ids = draft_tokens(rows, ROUNDS, 0.9)
        if draft == "logits":
            options["draft_logits"] = rows.expand(ROUNDS, WIDTH, VOCAB)
        else:
            probs = sampling.target_probs(rows, temperature=0.9)
            options["draft_probs"] = probs.expand(ROUNDS, WIDTH, VOCAB).contiguous()
    out = verify(
        target.repeat(ROUNDS, 1), ids, method=method, temperature=0.9, **filters, **options
    )
    law = reference.target_probs(target[:1], temperature=0.9, **filters)[0]
    assert_law(out.token_ids[:, 0], law)
    longer = out.num_accepted == WIDTH  # the bonus token is independent of the draws that led to it
    law = reference.target_probs(target[WIDTH:], temperature=0.9, **filters)[0]
    assert_law(out.token_ids[longer, WIDTH], law, "bonus")


def chain_batch(chain: Chain, rounds: int):
    """Drafts drawn along the chain, and the rows along each path."""
    k, vocab = chain.num_drafts, chain.vocab
    seeds = torch.arange(rounds)
    ids = torch.zeros(rounds, k, dtype=torch.int64)
    code = torch.zeros(rounds, dtype=torch.int64)  # the prefix in base V
    target, draft = [], []
    for i in range(k + 1):
        prefixes = sorted(prefix for prefix in chain.target if len(prefix) == i)
        target.append(log_rows([chain.p(prefix) for prefix in prefixes])[code])
        if i == k:
            break
        draft.append(log_rows([chain.q(prefix) for prefix in prefixes])[code])
        ids[:, i], _ = sampling.sample(
            draft[-1],
            temperature=1.0,
            seeds=seeds,
            positions=torch.full_like(seeds, i),
            stream="draft",
        )
        code = code * vocab + ids[:, i]
    return torch.stack(target, 1).flatten(0, 1), ids, torch.stack(draft, 1)


@pytest.mark.parametrize("method", METHODS)
def test_joint_law_of_a_prefix_dependent_block(method):
    """After the emitted tokens the test continues from the target, so K + 1 tokens have its law."""
    chain, rounds = Chain(3, 3, seed=5), 50_000
    target, ids, draft = chain_batch(chain, rounds)
    out = verify(target, ids, draft, method=method)
    tokens, emitted = out.token_ids.clone(), out.num_emitted.clone()
    for position in range(1, 4):
        missing = emitted <= position
        prefix = tokens[missing, :position]
        code = (prefix * 3 ** torch.arange(position - 1, -1, -1)).sum(1)
        table = log_rows(
            [chain.p(p) for p in sorted(k for k in chain.target if len(k) == position)]
        )
        tokens[missing, position], _ = sampling.sample(
            table[code], temperature=1.0, seeds=torch.arange(rounds)[missing] + 10**9,
            positions=torch.full((len(code),), position),
        )  # fmt: skip
    cells = (tokens * 3 ** torch.arange(3, -1, -1)).sum(1)
    law = [float(chance) for _, chance in sorted(chain.target_law(4).items())]
    assert_law(cells, law)


def test_block_is_longer_than_token_on_average():
    chain, rounds = Chain(3, 3, seed=5), 50_000
    target, ids, draft = chain_batch(chain, rounds)
    block, token = (
        verify(target, ids, draft, method=m).num_accepted.double().mean() for m in METHODS
    )
    assert block > token


# --- the tests can fail ---------------------------------------------------------------------------


def test_a_wrong_residual_is_seen():
    """Judged with q but told a one-hot: only the drafted id is removed from the residual."""
    p, q = [0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]
    target, draft = log_rows([p] * 2), log_rows([q])
    ids = draft_tokens(draft, ROUNDS)
    accepted = verify(
        target.repeat(ROUNDS, 1), ids, draft.expand(ROUNDS, 1, 4), method="token"
    ).num_accepted
    uniforms = torch.rand(
        ROUNDS, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    uniforms[:, 0] = 1
    onehot = verify(target.repeat(ROUNDS, 1), ids, method="token", uniforms=uniforms)
    mixed = torch.where(accepted == 1, ids[:, 0], onehot.token_ids[:, 0])
    counts = torch.bincount(mixed, minlength=4)
    assert chi_square_p(counts, p) < 1e-30


def test_a_wrong_q_is_seen():
    """Drafts from q, judged as if they came from a slightly warmer q."""
    generator = torch.Generator().manual_seed(1)
    target = torch.randn(2, VOCAB, generator=generator)
    draft = torch.randn(1, VOCAB, generator=generator) * 2
    ids = draft_tokens(draft, ROUNDS)
    out = verify(
        target.repeat(ROUNDS, 1), ids, draft.expand(ROUNDS, 1, VOCAB), draft_temperature=1.3
    )
    law = target[0].double().softmax(-1)
    assert chi_square_p(torch.bincount(out.token_ids[:, 0], minlength=VOCAB), law) < FALSE_ALARM


def test_shared_noise_is_seen():
    """Acceptance fed with the uniform that drew the draft."""
    p, q = [0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]
    u = torch.rand(ROUNDS, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    draft = log_rows([q])
    ids, _ = sampling.sample(
        draft.expand(ROUNDS, 4), temperature=1.0, seeds=torch.arange(ROUNDS),
        positions=torch.arange(ROUNDS), uniforms=u[:, 0].contiguous(),
    )  # fmt: skip
    out = verify(
        log_rows([p] * 2).repeat(ROUNDS, 1), ids[:, None], draft.expand(ROUNDS, 1, 4), uniforms=u
    )
    assert chi_square_p(torch.bincount(out.token_ids[:, 0], minlength=4), p) < 1e-30


def test_chi_square_is_calibrated():
    """Its own p-values are uniform: 400 samples of the right law."""
    generator = torch.Generator().manual_seed(3)
    law = torch.tensor([0.5, 0.3, 0.15, 0.05])
    p = torch.tensor(
        [
            chi_square_p(
                torch.bincount(
                    torch.multinomial(law, 2000, True, generator=generator), minlength=4
                ),
                law,
            )
            for _ in range(400)
        ]
    )
    assert 0.4 < p.mean() < 0.6 and p.min() > FALSE_ALARM and (p < 0.1).float().mean() < 0.2
    assert chi_square_p(torch.tensor([0.0, 10.0]), [1.0, 0.0]) == 0.0
