"""The kernel behind token measures of prompts with more tokens than dimensions, run on the CPU: the
formulas in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.kernels import needs_emulator, use_kernels
from tests.metrics import reference
from torch import Tensor

from layerscope.metrics import Options
from layerscope.metrics.tokens import PreparedTokens, prepare_tokens
from layerscope_gpu import UnusableError, precision, token_measures
from layerscope_gpu.token_measures import Request, prepare_rows, token_entropy
from layerscope_gpu.tokens import rows as kernel
from layerscope_gpu.tokens.facts import TokenFacts

pytestmark = needs_emulator
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    use_kernels(monkeypatch, kernel)


def states(kind: str, tokens: int, width: int) -> Tensor:
    x = torch.randn(5, tokens, width, generator=torch.Generator().manual_seed(tokens + width))
    if kind == "anisotropic":
        x += 50 * torch.randn(width, generator=torch.Generator().manual_seed(1))
    if kind.startswith("sink"):
        x[:, {"sink first": 0, "sink inside": tokens // 2, "sink last": -1}[kind]] *= 1000
    if kind == "decaying":
        x *= torch.arange(1, width + 1) ** -1.0
    return x


def padded(tokens: int, side: str) -> Tensor | None:
    """Which tokens are real: of the five texts, one has them all, and others one, two, three or
    half of them."""
    if side == "none":
        return None
    mask = torch.arange(tokens) < torch.tensor([tokens, 1, 2, 3, tokens // 2 + 1]).clamp(
        max=tokens
    ).unsqueeze(-1)
    return mask if side == "right" else mask.flip(-1)


def prepared(
    given: Tensor, mask: Tensor | None, options: Options, **what: bool
) -> tuple[PreparedTokens, Tensor]:
    """What the kernel and the products make of states, and the sinks' positions; the mean is taken
    in float64."""
    real = torch.ones(given.shape[:2], dtype=torch.bool) if mask is None else mask
    x = torch.where(real.unsqueeze(-1), given.double(), 0.0)
    norms = torch.linalg.vector_norm(x, dim=-1)
    sink = norms.masked_fill(~real, -1.0).argmax(-1)
    mean = (x.sum(1) - x[torch.arange(len(x)), sink]) / (real.sum(-1, keepdim=True) - 1).clamp(
        min=1
    )
    centered = torch.where(real.unsqueeze(-1), x - mean.float().double().unsqueeze(1), 0.0).float()
    norms = torch.linalg.vector_norm(
        given.double(), dim=-1
    )  # those of padding too, whatever it holds
    facts = TokenFacts(norms, mask, sink, given.dtype)
    return prepare_rows(centered, facts, Request(options, **what)), sink


KINDS = ("plain", "anisotropic", "sink first", "sink inside", "sink last", "decaying")
CASES = [
    # the types differ in how rows are rounded, whatever their number: of the many, quickly, in one
    # type
    pytest.param(
        *size,
        kind,
        side,
        dtype,
        marks=[pytest.mark.slow] if size == (70, 13) and dtype != DTYPES[0] else [],
    )
    for size in ((37, 33), (70, 13))
    for kind in KINDS
    for side in ("none", "left", "right")
    for dtype in DTYPES
]


@pytest.mark.parametrize(("tokens", "width", "kind", "side", "dtype"), CASES)
def test_the_numbers_of_the_formulas(
    tokens: int, width: int, kind: str, side: str, dtype: torch.dtype
) -> None:
    given, mask = states(kind, tokens, width).to(dtype), padded(tokens, side)
    got, sink = prepared(given, mask, Options())
    assert [tuple(matrix.shape) for matrix in got.matrices.values()] == [(5, width, width)] * 2
    close = (
        2e-5 if dtype == torch.float32 else 1e-4
    )  # rows of the others are rounded to TF32's digits
    for i, row in enumerate(given):
        kept = np.arange(tokens) if mask is None else np.flatnonzero(mask[i])
        real, at = row.double().numpy()[kept], int(np.flatnonzero(kept == int(sink[i]))[0])
        for name, drop in (("keep", None), ("drop", at)):
            want = (
                reference.prompt_entropy(real, drop=drop)
                if len(real) > (name == "drop")
                else math.nan
            )
            found = float(token_entropy(got.matrices[name][i : i + 1].double(), Options()))
            assert found == pytest.approx(want, abs=close, nan_ok=True), (name, len(real))
            bend = reference.curvature(real, drop=drop)
            assert float(got.curvature[name][i]) == pytest.approx(bend, rel=1e-4, nan_ok=True), (
                name,
                len(real),
            )
        assert int(got.flat[i]) == reference.flat_terms(real) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [4, 50])
def test_the_matrices_of_the_step_by_step_way(tokens: int, dtype: torch.dtype) -> None:
    """Rows of all lengths, absolute angles, and masks with gaps."""
    given = states("sink inside", tokens, 3).to(dtype)
    close = 2e-6 if dtype == torch.float32 else 1e-3
    gaps = torch.rand(5, tokens, generator=torch.Generator().manual_seed(3)) < 0.6
    for mask in (None, gaps):
        for options in (
            Options(rows="centered"),
            Options(rows="centered-unit", curvature_absolute=True),
        ):
            got, sink = prepared(given, mask, options)
            want = prepare_tokens(given, mask, sink, options)
            for name in ("keep", "drop"):
                size = want.matrices[name].abs().max().clamp(min=1e-30)
                got_one, want_one = got.matrices[name] / size, (want.matrices[name] / size).float()
                torch.testing.assert_close(got_one, want_one, rtol=0, atol=close)
                torch.testing.assert_close(
                    got.curvature[name], want.curvature[name], rtol=1e-4, atol=1e-6, equal_nan=True
                )
            assert got.flat.tolist() == want.flat.tolist()


@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_tokens(dtype: torch.dtype) -> None:
    given = states("plain", 30, 12)
    given[0] = given[0, 0]  # nothing but one token
    given[1, 1:] = given[1, 0]
    given[1, 20] *= 1000  # nothing but one token, and a sink
    given[2, 10:15] = given[2, 10]  # a token five times
    given[3] = 0
    given[4, 15:] = -given[4, :15]
    given[4, 7], given[4, 22] = 0, 0  # tokens that are the mean of all
    given = given.to(dtype)
    got, sink = prepared(given, None, Options())
    want = prepare_tokens(given, None, sink, Options())
    entropy = {
        name: token_entropy(matrices.double(), Options()) for name, matrices in got.matrices.items()
    }
    assert entropy["keep"][[0, 3]].isnan().all()
    assert entropy["drop"][[0, 1, 3]].isnan().all()
    assert float(entropy["keep"][1]) == pytest.approx(0, abs=1e-5)
    np.testing.assert_allclose(
        entropy["keep"][[2, 4]], token_entropy(want.matrices["keep"][[2, 4]], Options()), atol=1e-4
    )
    assert got.matrices["keep"][4].trace() == pytest.approx(28, rel=1e-3)
    for name in ("keep", "drop"):
        assert got.curvature[name][[0, 3]].isnan().all()
        np.testing.assert_allclose(got.curvature[name], want.curvature[name], rtol=1e-4)
    assert math.isnan(got.curvature["drop"][1])
    assert got.flat.tolist() == want.flat.tolist() == [28, 27, 5, 28, 0]


@pytest.mark.parametrize("rubbish", [math.nan, math.inf, 1e4])
def test_padding_may_hold_anything(rubbish: float) -> None:
    given, mask = states("plain", 20, 8).to(torch.bfloat16), padded(20, "right")
    assert mask is not None
    clean, dirty = (
        prepared(given.masked_fill(~mask.unsqueeze(-1), value), mask, Options())[0]
        for value in (0.0, rubbish)
    )
    for name in ("keep", "drop"):
        assert torch.equal(clean.matrices[name], dirty.matrices[name])
        torch.testing.assert_close(
            clean.curvature[name], dirty.curvature[name], rtol=0, atol=0, equal_nan=True
        )
    assert torch.equal(clean.flat, dirty.flat)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rows_of_half_precision_have_the_digits_of_tf32(dtype: torch.dtype) -> None:
    """To the nearest, so that a product which cuts the others off changes nothing."""
    x = states("decaying", 20, 33)
    x = x - x[:, :-1].mean(1, keepdim=True)
    norms, sink = torch.linalg.vector_norm(x.double(), dim=-1), torch.full((5,), 19)
    made, narrow, plain = (
        kernel.measure_rows(x, TokenFacts(norms, None, sink, kind), True, False, made).rows
        for kind, made in (
            (dtype, torch.float32),
            (dtype, torch.float16),
            (torch.float32, torch.float32),
        )
    )
    for name, rows in made.items():
        assert (rows.view(torch.int32) & 0x1FFF == 0).all()
        error = ((rows - plain[name]).abs() / plain[name].abs().clamp(min=1e-30)).max()
        assert 2.0**-12 < float(error) <= 2.0**-11
        assert torch.equal(
            narrow[name], plain[name].half()
        )  # to the nearest too; the same but for the smallest numbers
        assert (narrow[name].float() - rows).abs().max() < 1e-7


@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_products_of_float16_rows(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of a GPU, where torch gives such products in float32."""
    given, mask = states("sink inside", 50, 12).to(torch.bfloat16), padded(50, side)
    plain, _ = prepared(given, mask, Options())
    monkeypatch.setattr(token_measures, "row_dtype", lambda *_: torch.float16)
    monkeypatch.setattr(
        precision,
        "wide_product",
        lambda rows, out: torch.bmm(rows.float().mT, rows.float(), out=out),
    )
    got, _ = prepared(given, mask, Options())
    for name in ("keep", "drop"):
        torch.testing.assert_close(got.matrices[name], plain.matrices[name], rtol=0, atol=1e-5)
        assert torch.equal(got.curvature[name].nan_to_num(-1), plain.curvature[name].nan_to_num(-1))


def test_what_rows_are_multiplied_in(monkeypatch: pytest.MonkeyPatch) -> None:
    x, unit = torch.zeros(1, 3, 2), Request(Options())
    row_dtype = token_measures.row_dtype
    assert row_dtype(x, torch.bfloat16, unit) == torch.float32  # not on a GPU
    monkeypatch.setattr(Tensor, "is_cuda", True)
    for works, dtype in ((False, torch.float32), (True, torch.float16)):
        monkeypatch.setattr(precision, "wide_products", lambda _, works=works: works)
        assert row_dtype(x, torch.bfloat16, unit) == dtype
    assert row_dtype(x, torch.float32, unit) == torch.float32
    of_any_length = Request(Options(rows="centered"))
    assert row_dtype(x, torch.float16, of_any_length) == torch.float32


def test_a_text_without_a_token() -> None:
    mask = torch.ones(5, 20, dtype=torch.bool)
    mask[2] = False
    got, _ = prepared(states("plain", 20, 8).to(torch.bfloat16), mask, Options())
    assert all(
        (got.matrices[name][2] == 0).all() and got.curvature[name][2].isnan()
        for name in ("keep", "drop")
    )


def test_only_what_is_asked_for_and_where() -> None:
    given = states("plain", 20, 8).to(torch.bfloat16)
    bends, _ = prepared(given, None, Options(), entropy=False)
    assert bends.matrices == {}
    assert set(bends.curvature) == {"keep", "drop"}
    matrices, sink = prepared(given, None, Options(), curvature=False)
    assert matrices.curvature == {}
    taken = []

    def space(like: Tensor) -> Tensor:
        taken.append(torch.empty(like.numel()).view_as(like))
        return taken[-1]

    norms = torch.linalg.vector_norm(given.double(), dim=-1)
    facts = TokenFacts(norms, None, sink, given.dtype)
    there = prepare_rows(given.float(), facts, Request(Options(), space=space))
    assert there.matrices["keep"] is taken[0]
    assert there.matrices["drop"] is taken[1]


def test_the_first_try(monkeypatch: pytest.MonkeyPatch) -> None:
    """The known answer is right, and a kernel that gives another one, or none, is not used."""
    device, own = torch.device, kernel.measure_rows
    monkeypatch.setattr(torch, "device", lambda *_: device("cpu"))
    tried = kernel.usable.__wrapped__
    assert tried(0)
    with monkeypatch.context() as patch:
        patch.setattr(kernel, "measure_rows", lambda rows, *others: own(1.5 * rows + 0.1, *others))
        assert not tried(0)

    def broken(*_: object) -> None:
        raise UnusableError("it does not compile")

    monkeypatch.setattr(kernel, "launch", broken)
    assert not tried(0)
    assert not precision.wide_products.__wrapped__(0)  # a CPU has no such product


def test_what_it_cannot_do_is_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # as it is, where it is installed
    monkeypatch.setattr(kernel, "usable", lambda _: True)
    there = torch.device("cuda", 0)
    usable = token_measures.can_prepare_rows
    assert usable(there, Request(Options()))
    assert usable(there, Request(Options(rows="centered")))
    for options in (Options(rows="unit"), Options(rows="raw"), Options(clamp_gram=True)):
        assert not usable(there, Request(options))
