"""The kernel that does at once what measures.py does step by step, run on the CPU: the same
numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.kernels import needs_emulator, use_kernels

from layerscope.metrics import Options
from layerscope.metrics.tokens import find_sink
from layerscope_gpu.emulator import launch
from layerscope_gpu.token_measures import Request, prepare_tokens
from layerscope_gpu.tokens import gram as gram_kernel

pytestmark = needs_emulator


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Use the kernel; counts its launches."""
    launches: list[int] = []

    def counted(*arguments: Any) -> None:
        launches.append(1)
        launch(*arguments)

    use_kernels(monkeypatch)
    monkeypatch.setattr(gram_kernel, "launch", counted)
    monkeypatch.setattr("layerscope_gpu.token_measures.can_prepare_gram", lambda *_: True)
    return launches


def states(kind: str, texts: int, tokens: int, width: int) -> torch.Tensor:
    x = torch.randn(texts, tokens, width, generator=torch.Generator().manual_seed(tokens))
    if kind == "anisotropic":
        x += 50 * torch.randn(width, generator=torch.Generator().manual_seed(1))
    if kind == "sink":
        x[:, 0] *= 1000
    if kind == "repeated":
        x[:, 1::2] = x[:, :1]
        x[0] = x[0, 0]  # nothing but one token
    return x


DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CASES = [
    # of many tokens, quickly: every kind in one type and every type of one kind
    pytest.param(
        tokens,
        kind,
        dtype,
        marks=[pytest.mark.slow] if tokens > 3 and kind != "sink" and dtype != DTYPES[0] else [],
    )
    for tokens in (1, 2, 3, 33, 36, 70)
    for kind in ("plain", "anisotropic", "sink", "repeated")
    for dtype in DTYPES
]


@pytest.mark.parametrize(("tokens", "kind", "dtype"), CASES)
def test_the_same_as_step_by_step(
    tokens: int, kind: str, dtype: torch.dtype, kernel: list[int], monkeypatch: Any
) -> None:
    given = states(kind, 3, tokens, 96).to(dtype)
    right, left = (torch.ones(3, tokens, dtype=torch.bool) for _ in range(2))
    right[1, tokens // 2 + 1 :] = False
    left[2, : tokens // 3] = False
    for mask in (None, right, left):
        for options in (Options(), Options(rows="centered", curvature_absolute=True)):
            sink = find_sink(given, mask).position
            got = prepare_tokens(given, mask, sink, Request(options))
            with monkeypatch.context() as patch:
                patch.setattr("layerscope_gpu.token_measures.can_prepare_gram", lambda *_: False)
                want = prepare_tokens(given, mask, sink, Request(options))
            for name in ("keep", "drop"):
                size = want.matrices[name].abs().max().clamp(min=1e-30)
                torch.testing.assert_close(
                    got.matrices[name] / size, want.matrices[name] / size, rtol=0, atol=2e-5
                )
                torch.testing.assert_close(
                    got.curvature[name], want.curvature[name], rtol=1e-6, atol=1e-6, equal_nan=True
                )
            assert got.flat.tolist() == want.flat.tolist()
    assert len(kernel) == 6


def test_a_long_prompt(kernel: list[int], monkeypatch: Any) -> None:
    given = states("plain", 1, 200, 210)
    sink = find_sink(given).position
    got = prepare_tokens(given, None, sink, Request(Options()))
    monkeypatch.setattr("layerscope_gpu.token_measures.can_prepare_gram", lambda *_: False)
    want = prepare_tokens(given, None, sink, Request(Options()))
    for name in ("keep", "drop"):
        torch.testing.assert_close(got.matrices[name], want.matrices[name], rtol=0, atol=2e-5)
        torch.testing.assert_close(got.curvature[name], want.curvature[name], rtol=1e-6, atol=1e-6)


def test_only_what_is_asked_for(kernel: list[int]) -> None:
    given = states("plain", 2, 9, 16)
    sink = find_sink(given).position
    bends = prepare_tokens(given, None, sink, Request(Options(), entropy=False))
    assert bends.matrices == {}
    assert set(bends.curvature) == {"keep", "drop"}
    matrices = prepare_tokens(given, None, sink, Request(Options(), curvature=False))
    assert set(matrices.matrices) == {"keep", "drop"}
    assert matrices.curvature == {}
    assert len(kernel) == 2


@pytest.mark.parametrize("offset", [0, 1])
def test_rows_of_fours_wherever_they_begin(
    offset: int, kernel: list[int], monkeypatch: Any
) -> None:
    """More tokens than a warp takes at a time, four each; matrices that begin anywhere are written
    one by one."""
    given = states("sink", 2, 132, 140)
    sink = find_sink(given, None).position

    def space(like: torch.Tensor) -> torch.Tensor:
        return like.new_empty(like.numel() + offset)[offset:].view_as(like)

    got = prepare_tokens(given, None, sink, Request(Options(), space=space))
    assert len(kernel) == 1
    assert {matrix.data_ptr() % 16 for matrix in got.matrices.values()} == {4 * offset}
    monkeypatch.setattr("layerscope_gpu.token_measures.can_prepare_gram", lambda *_: False)
    want = prepare_tokens(given, None, sink, Request(Options()))
    for name in ("keep", "drop"):
        torch.testing.assert_close(got.matrices[name], want.matrices[name], rtol=0, atol=2e-5)
