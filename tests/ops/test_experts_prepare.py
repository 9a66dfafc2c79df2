"""`moe.prepare_weights` and its inverse: where every byte goes, what comes back, what is
refused."""

import math
import pathlib

import expert_sweep as sweep
import pytest
import torch
from kit import bits_equal
from torch._subclasses.fake_tensor import FakeTensorMode

from dspark_ext import formats, moe
from dspark_ext.moe import huge_pages

DEVICES = ("cpu", "cuda")
# d, N (w13 has 2N rows): nothing is a multiple of a tile; mxfp4 needs even columns of both
SIZES = ((64, 32), (130, 66), (34, 2), (2, 34), (258, 18), (96, 130))


def make_weights(kind: str, size: int, inner: int, experts: int = 3) -> moe.ExpertWeights:
    w13 = sweep.make_weights(kind, (experts, 2 * inner, size), 1)
    w2 = sweep.make_weights(kind, (experts, size, inner), 2)
    return moe.ExpertWeights(w13.weight, w2.weight, w13.scales, w2.scales, w13.format, w13.block)


def tensors(weights: moe.ExpertWeights) -> dict[str, torch.Tensor]:
    return {name: x for name, x in weights._asdict().items() if torch.is_tensor(x)}


def differences(a: moe.ExpertWeights, b: moe.ExpertWeights) -> list[str]:
    """Names of fields that differ in kind, dtype or bits."""

    def differ(x, y) -> bool:
        if torch.is_tensor(x) and torch.is_tensor(y):
            return x.dtype != y.dtype or not bits_equal(x, y)
        return torch.is_tensor(x) or torch.is_tensor(y) or x != y

    return [name for name in a._fields if differ(getattr(a, name), getattr(b, name))]


def bytes_of(tensor: torch.Tensor) -> list:
    """Nested lists of one expert's bytes, the last dimension being bytes."""
    return tensor.contiguous().view(torch.uint8).tolist()


def stored_row(row: int, rows: int, takes_turns: bool) -> int:
    if not takes_turns:
        return row
    return 2 * row if row < rows // 2 else 2 * (row - rows // 2) + 1


# ---- where every byte goes ----------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("kind", ["bf16", "fp8-32", "mxfp4"])
def test_panels(kind, interleaved):
    """[expert, panel of 64 rows, 128 bytes, octet of rows, 16 bytes, row of the octet, byte]."""
    for size, inner in SIZES:
        weights = make_weights(kind, size, inner, 2)._replace(interleaved=interleaved)
        prepared = moe.prepare_weights(weights, "cuda")
        assert prepared.layout == "panels" and prepared.interleaved == interleaved
        assert prepared.sizes == ((2 * inner, size), (size, inner))
        for name in ("w13", "w2"):
            rows, packed = getattr(weights, name), getattr(prepared, name)
            assert packed.dtype == rows.dtype and packed.is_contiguous()
            count, row_bytes = rows.shape[1], rows.shape[2] * rows.element_size()
            panels, steps = math.ceil(count / 64), math.ceil(row_bytes / 128)
            assert packed.view(torch.uint8).shape == (2, panels, steps, 8, 8, 8, 16)
            want = torch.zeros(panels * steps * 64 * 128, dtype=torch.uint8)
            for row, values in enumerate(bytes_of(rows[1])):
                at = stored_row(row, count, name == "w13" and not interleaved)
                panel, octet, in_octet = at // 64, at % 64 // 8, at % 8
                for byte, value in enumerate(values):
                    step, chunk, in_chunk = byte // 128, byte % 128 // 16, byte % 16
                    block = (panel * steps + step) * 8192
                    want[block + octet * 1024 + chunk * 128 + in_octet * 16 + in_chunk] = value
            assert torch.equal(packed[1].view(torch.uint8).flatten(), want), (name, size, inner)


@pytest.mark.parametrize("interleaved", [False, True])
def test_scales_in_panels(interleaved):
    """Those of mxfp4 are [expert, panel of 64 rows, 256 columns, row, 32 columns each]; others stay
    the tensors they were."""
    for size, inner in SIZES:
        weights = make_weights("mxfp4", size, inner, 2)._replace(interleaved=interleaved)
        prepared = moe.prepare_weights(weights, "cuda")
        for name in ("w13", "w2"):
            rows = formats.as_bytes(getattr(weights, name + "_scales"))
            packed = formats.as_bytes(getattr(prepared, name + "_scales"))
            count, width = rows.shape[1:]
            panels, steps = math.ceil(count / 64), math.ceil(width / 8)
            want = torch.full((panels, steps, 64, 8), 127, dtype=torch.uint8)  # 127: 1
            for row in range(count):
                at = stored_row(row, count, name == "w13" and not interleaved)
                for i in range(width):
                    want[at // 64, i // 8, at % 64, i % 8] = rows[1, row, i]
            assert torch.equal(packed[1], want), (name, size, inner)
    for kind in ("fp8-32", "fnuz-128"):
        weights = make_weights(kind, 130, 66)
        prepared = moe.prepare_weights(weights, "cuda")
        assert prepared.w13_scales is weights.w13_scales
        assert prepared.w2_scales is weights.w2_scales


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("kind", ["bf16", "fp8-32", "mxfp4"])
def test_pairs(kind, interleaved):
    """[expert, 16 rows, word of 4 bytes, row, byte], columns up to a multiple of 32."""
    column_bytes = {"bf16": 2, "fp8-32": 1, "mxfp4": 0.5}[kind]
    for size, inner in SIZES:
        weights = make_weights(kind, size, inner, 2)._replace(interleaved=interleaved)
        prepared = moe.prepare_weights(weights, "cpu")
        assert prepared.layout == "pairs" and prepared.interleaved == interleaved
        assert prepared.sizes == ((2 * inner, size), (size, inner))
        assert prepared.w13_scales is weights.w13_scales
        assert prepared.w2_scales is weights.w2_scales
        for name, columns in (("w13", size), ("w2", inner)):
            rows, packed = getattr(weights, name), getattr(prepared, name)
            assert packed.dtype == rows.dtype and packed.is_contiguous()
            count, panels = rows.shape[1], math.ceil(rows.shape[1] / 16)
            words = int(math.ceil(columns / 32) * 32 * column_bytes) // 4
            assert packed.view(torch.uint8).shape == (2, panels, words, 16, 4)
            want = torch.zeros(panels * words * 64, dtype=torch.uint8)
            for row, values in enumerate(bytes_of(rows[1])):
                at = stored_row(row, count, name == "w13" and not interleaved)
                for byte, value in enumerate(values):
                    word = at // 16 * words + byte // 4
                    want[word * 64 + at % 16 * 4 + byte % 4] = value
            assert torch.equal(packed[1].view(torch.uint8).flatten(), want), (name, size, inner)


# ---- there and back -----------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", sweep.KINDS)
def test_restored_bit_by_bit(kind, device):
    for size, inner in SIZES:
        for interleaved in (False, True):
            weights = make_weights(kind, size, inner)._replace(interleaved=interleaved)
            for x in tensors(weights).values():  # every pattern of bits, NaN among them
                bits = x.view(torch.uint8)
                bits.copy_(torch.randint(0, 256, bits.shape, dtype=torch.uint8))
            prepared = moe.prepare_weights(weights, device)
            assert not differences(moe.restore_weights(prepared), weights)
            assert moe.prepare_weights(prepared, device) is prepared
            for other in DEVICES:  # from any layout to any other
                want = moe.prepare_weights(weights, other)
                assert not differences(moe.prepare_weights(prepared, other), want)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", sweep.KINDS)
def test_the_bytes_are_told_beforehand(kind, device):
    for size, inner in SIZES:
        weights = make_weights(kind, size, inner)
        prepared = moe.prepare_weights(weights, device)
        want = sum(x.nbytes for x in tensors(prepared).values())
        meta = weights._replace(**{name: x.to("meta") for name, x in tensors(weights).items()})
        for given in (weights, prepared, meta):
            assert moe.prepared_bytes(given, device) == want
        shapes = moe.prepare_weights(meta, device)
        assert [x.shape for x in tensors(shapes).values()] == [
            x.shape for x in tensors(prepared).values()
        ]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", ["bf16", "fp8-128", "mxfp4"])
def test_a_shared_expert_has_no_dimension_of_experts(kind, device):
    weights = make_weights(kind, 66, 34)
    prepared = moe.prepare_weights(weights, device)
    one = weights._replace(**{name: x[1] for name, x in tensors(weights).items()})
    alone = moe.prepare_weights(one, device)
    for name, x in tensors(alone).items():
        assert bits_equal(x, getattr(prepared, name)[1])
    assert not differences(moe.restore_weights(alone), one)
    assert moe.prepared_bytes(one, device) * 3 == moe.prepared_bytes(weights, device)


@pytest.mark.parametrize("device", DEVICES)
def test_empty_sizes(device):
    for experts, inner, size in ((0, 4, 8), (2, 0, 8), (2, 4, 0)):
        weights = moe.ExpertWeights(
            torch.ones(experts, 2 * inner, size, dtype=torch.bfloat16),
            torch.ones(experts, size, inner, dtype=torch.bfloat16),
        )
        prepared = moe.prepare_weights(weights, device)
        assert prepared.layout != "rows" and moe.prepared_bytes(weights, device) == 0 or experts
        assert not differences(moe.restore_weights(prepared), weights)


def test_what_no_layout_can_hold_stays_in_rows():
    for kind, devices in (("fp32", DEVICES), ("fp8-odd", DEVICES)):
        for device in devices:
            weights = make_weights(kind, 66, 34)
            assert moe.prepare_weights(weights, device) is weights
    mxfp4 = make_weights("mxfp4", 64, 64)
    coarse = mxfp4._replace(
        block=(1, 64), w13_scales=mxfp4.w13_scales[..., :1], w2_scales=mxfp4.w2_scales[..., :1]
    )
    for device in DEVICES:
        assert moe.prepare_weights(coarse, device) is coarse


@pytest.mark.parametrize("kind", ["fp8-128", "fnuz-128", "mxfp4"])
def test_the_format_may_be_left_to_the_dtype(kind):
    weights = make_weights(kind, 66, 34)
    named = weights
    if kind == "mxfp4":
        codes = torch.float4_e2m1fn_x2
        named = weights._replace(w13=weights.w13.view(codes), w2=weights.w2.view(codes))
    prepared = moe.prepare_weights(named._replace(format=None, block=None), "cuda")
    assert prepared.format is None and prepared.w13.dtype == named.w13.dtype
    for name, x in tensors(moe.prepare_weights(weights, "cuda")).items():
        assert bits_equal(x, getattr(prepared, name))


# ---- refusals -----------------------------------------------------------------------------------

WEIGHTS = moe.ExpertWeights(torch.zeros(2, 8, 6).bfloat16(), torch.zeros(2, 6, 4).bfloat16())
CODES = make_weights("fp8-32", 64, 32)
PANELS = moe.prepare_weights(WEIGHTS, "cuda")


@pytest.mark.parametrize(
    ("weights", "device", "message"),
    [
        (WEIGHTS, "xpu", "device: expected one of cpu, cuda, got 'xpu'"),
        (WEIGHTS._replace(w13=WEIGHTS.w13.to("meta")), None, "device: expected a device"),
        (WEIGHTS._replace(layout="tiles"), "cpu", "layout: expected one of rows, pairs, panels"),
        (WEIGHTS._replace(w13=torch.zeros(2, 7, 6)), "cpu", "w13: expected an even number"),
        (WEIGHTS._replace(w13=torch.zeros(8, 6)), "cpu", "w13: expected w13"),
        (WEIGHTS._replace(w2=torch.zeros(2, 6, 5)), "cpu", "w2: expected w13 of 2N x d"),
        (WEIGHTS._replace(w2=torch.zeros(3, 6, 4)), "cpu", r"w2: expected shape \[2, 6, 4\]"),
        (WEIGHTS._replace(w2_scales=torch.ones(2, 1, 1)), "cpu", "w2_scales: expected none"),
        (CODES._replace(w13_scales=None), "cuda", r"w13_scales: expected shape \[3, 2, 2\], got N"),
        (CODES._replace(block=(32, 64)), "cuda", r"w13_scales: expected shape \[3, 2, 1\]"),
        (CODES._replace(format="fp8_e5m2"), "cuda", "format: expected one of fp8_e4m3"),
        (PANELS._replace(sizes=None), "cuda", "sizes: expected"),
        (PANELS._replace(sizes=((8, 600), (600, 4))), "cuda", r"w13: expected shape \[2, 1, 10"),
        (PANELS._replace(layout="pairs"), "cuda", "w13: expected 5 dimensions"),
    ],
)  # fmt: skip
def test_refusals_name_the_argument(weights, device, message):
    for function in (moe.prepare_weights, moe.prepared_bytes):
        with pytest.raises(ValueError, match=message):
            function(weights, device)


# ---- where they lie -----------------------------------------------------------------------------


def flags_of_memory(address: int) -> list[str]:
    """What Linux says of the mapping that holds an address."""
    inside = False
    for line in pathlib.Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0]:
            begin, end = (int(bound, 16) for bound in words[0].split("-"))
            inside = begin <= address < end
        elif inside and words[0] == "VmFlags:":
            return words[1:]
    raise AssertionError(f"no mapping holds {address:x}")


@pytest.mark.parametrize("experts", [(2,), ()])
def test_asks_for_huge_pages(experts):
    pages = pathlib.Path("/sys/kernel/mm/transparent_hugepage")
    if not pages.exists() or not pathlib.Path("/proc/self/smaps").exists():
        pytest.skip("the system has no huge pages to ask for")
    w13 = torch.zeros((*experts, 4096, 1024), dtype=torch.bfloat16)
    w2 = torch.zeros((*experts, 1024, 2048), dtype=torch.bfloat16)
    prepared = moe.prepare_weights(moe.ExpertWeights(w13, w2))
    for part in (prepared.w13, prepared.w2):
        assert "hg" in flags_of_memory(part.data_ptr() + part.nbytes // 2)


def test_huge_pages_are_asked_for_whole_pages_of_the_cpu_only():
    assert not huge_pages.ask_for_huge_pages(torch.empty(8))
    assert not huge_pages.ask_for_huge_pages(torch.empty(1 << 20, device="meta"))
    with FakeTensorMode():
        assert not huge_pages.ask_for_huge_pages(torch.empty(1 << 20))


def test_without_huge_pages_weights_are_the_same(monkeypatch):
    weights = make_weights("bf16", 96, 130)
    want = moe.prepare_weights(weights)
    monkeypatch.setattr(huge_pages, "_madvise", lambda: None)
    assert differences(moe.prepare_weights(weights), want) == []
