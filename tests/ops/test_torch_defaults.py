"""Functions on the host do not follow torch's default device and dtype."""

import pytest
import torch
from kit import default_dtype

from dspark_ext import calibration, formats, verify

GENERATOR = torch.Generator().manual_seed(3)
LOGITS = torch.randn(60, 3, generator=GENERATOR)
ACCEPTED = torch.randint(0, 4, (60,), generator=GENERATOR)
WEIGHT = torch.randn(40, 64, generator=GENERATOR)
LEFT = torch.tensor([5, 6])


def results():
    yield calibration.fit_sts(LOGITS, ACCEPTED)
    yield calibration.fit_sts(LOGITS, ACCEPTED, objective="log_loss", verify_lens=ACCEPTED)
    for columns, accepted in ((3, ACCEPTED), (0, ACCEPTED * 0)):
        report = calibration.calibration_report(LOGITS[:, :columns].sigmoid(), accepted)
        yield from (report.ece, report.auc, report.num_samples, report.bin_observed)
    for format in ("fp8_e4m3", "mxfp4"):
        yield from (part.view(torch.uint8) for part in formats.quantize(WEIGHT, format))
    yield from formats.quantize(WEIGHT, "fp8_e4m3", scale_dtype=torch.float32)
    yield verify.draft_capacity(LEFT, [None, 3], 4)


@pytest.mark.filterwarnings("ignore:.*position")
@pytest.mark.parametrize("other", ["device", "dtype"])
def test_results_do_not_depend_on_them(other):
    want = list(results())
    with torch.device("meta") if other == "device" else default_dtype(torch.bfloat16):
        got = list(results())
    assert len(got) == len(want) == 17
    for mine, theirs in zip(got, want, strict=True):
        assert mine.device == theirs.device and mine.dtype == theirs.dtype
        assert repr(mine.tolist()) == repr(theirs.tolist())
