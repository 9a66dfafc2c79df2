"""`rejection_sample` on the emulator with the statistics that the drafter measured."""

import emulated
import pytest
import torch
from drafted import drafted
from kit import same

from dspark_ext import sampling


@pytest.mark.parametrize("warp_size", emulated.WARP_SIZES)
@pytest.mark.parametrize("vocab", [1, 300, 5000], ids=lambda v: f"V={v}")
def test_they_change_no_bit(vocab, warp_size):
    for seed in range(3):
        block, given = drafted(torch.bfloat16, seed=seed, vocab=vocab)
        given["draft_temperature"] = given["temperature"].clone()
        given["draft_temperature"][0] = 0.9  # the rows of request 0 are measured
        for method in ("block", "token"):
            want = sampling.rejection_sample(**given, method=method)
            with emulated.operators(warp_size=warp_size, seed=seed, level=emulated.FULL):
                got = sampling.rejection_sample(
                    **given, method=method, draft_statistics=block.statistics
                )
            assert same(want, got)


def test_draft_rows_are_not_read_for_them():
    block, given = drafted(temperature=torch.ones(5))

    def counted(statistics):
        return emulated.counters(
            lambda: sampling.rejection_sample(**given, draft_statistics=statistics)
        )["kernels"]

    measured, taken = counted(None), counted(block.statistics)
    assert measured.keys() == taken.keys()
    used = given["query_start_loc"].diff().sub(1).sum().item()
    saved = used * given["draft_logits"][0, 0].nbytes
    spent = [of["row_statistics"]["bytes_loaded"] for of in (measured, taken)]
    assert spent[0] - spent[1] == pytest.approx(saved, rel=0.01)
