"""Kernels that a model needs are compiled while it is being loaded: which, and what happens where
they cannot be."""

from __future__ import annotations

import pytest
import torch

from layerscope_gpu import UnusableError, ahead

OF_PASSES = ("\nrotate(", "\nlayer_norm(", "look_up(", "normed_sums(", "centered_states(")


def test_passes_in_half_precision_have_kernels_of_their_own() -> None:
    single, half = (ahead.reading_kernels(64, dtype) for dtype in (torch.float32, torch.bfloat16))
    assert all("__global__" in source for source in (*single, *half))
    for sources in (single, half):
        assert any("token_gram" in source for source in sources)
    for name in OF_PASSES:
        assert any(name in source for source in half), name
        assert not any(name in source for source in single), name


def test_those_that_there_are_are_compiled_for_the_gpu_that_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[list[str], str]] = []
    monkeypatch.setattr(ahead, "architecture_of", lambda index: f"sm_{index}")
    monkeypatch.setattr(
        ahead,
        "compile_ahead",
        lambda sources, architecture: asked.append((list(sources), architecture)),
    )
    ahead.compile_kernels(["a", None, "b"], torch.device("cuda", 1))
    assert asked == [(["a", "b"], "sm_1")]


@pytest.mark.parametrize(
    "problem", [UnusableError("no NVRTC"), OSError("no driver"), RuntimeError("no GPU")]
)
def test_a_gpu_without_a_compiler_is_no_reason_to_fail(
    monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    tried: list[int] = []

    def refuse(index: int) -> str:
        tried.append(index)
        raise problem

    monkeypatch.setattr(ahead, "architecture_of", refuse)
    ahead.compile_kernels(["a"], torch.device("cuda", 0))
    assert tried == [0]
