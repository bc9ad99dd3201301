"""Kernels that a model needs are compiled while it is being loaded: which, and when."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

import layerscope
from layerscope.models import LoadedModel, kernels
from layerscope.spectra.cuda import UnusableError
from tests.tiny import tiny_model

OF_PASSES = ("\nrotate(", "\nlayer_norm(", "look_up(", "normed_sums(", "centered_states(")


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return tiny_model("llama")


def in_half_precision(model: LoadedModel) -> LoadedModel:
    return replace(model, module=copy.deepcopy(model.module).to(torch.bfloat16))


def test_passes_in_half_precision_have_kernels_of_their_own(model: LoadedModel) -> None:
    single, half = kernels.reading_kernels(model), kernels.reading_kernels(in_half_precision(model))
    assert all("__global__" in source for source in (*single, *half))
    for sources in (single, half):
        assert any("token_gram" in source for source in sources)
    for name in OF_PASSES:
        assert any(name in source for source in half), name
        assert not any(name in source for source in single), name


def test_a_model_on_a_gpu_has_its_kernels_compiled_when_it_is_loaded(model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, str]] = []
    monkeypatch.setattr(kernels, "architecture_of", lambda index: f"sm_{index}")
    monkeypatch.setattr(kernels, "compile_ahead", lambda sources, architecture: asked.append((len(sources), architecture)))
    layerscope.wrap(model.module, model.tokenizer)
    assert not asked  # on a CPU there is nothing to compile
    monkeypatch.setattr(LoadedModel, "device", torch.device("cuda", 1))
    layerscope.wrap(model.module, model.tokenizer)
    assert asked == [(1, "sm_1")]


@pytest.mark.parametrize("problem", [UnusableError("no NVRTC"), OSError("no driver"), RuntimeError("no GPU")])
def test_a_gpu_without_a_compiler_is_no_reason_to_fail(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    def refuse(index: int) -> str:
        raise problem

    monkeypatch.setattr(kernels, "architecture_of", refuse)
    monkeypatch.setattr(LoadedModel, "device", torch.device("cuda", 0))
    kernels.compile_for_reading(model)
