"""The residual identity holds in every family, and a mislabeled site does not pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from layerscope.capture import Anatomy, Tap, check_residual
from layerscope.errors import ModelError
from layerscope.models import LoadedModel
from tests.capture.support import hooks_on
from tests.tiny import GENERIC_FAMILIES, TINY_FAMILIES, tiny_model


def check(model: LoadedModel, anatomy: Anatomy | None = None) -> float | None:
    ids = torch.arange(20, 29).unsqueeze(0)
    return check_residual(
        anatomy or model.anatomy, lambda: model.forward(ids, torch.ones_like(ids))
    )


def relabeled(anatomy: Anatomy, **names: str) -> Anatomy:
    return replace(
        anatomy,
        taps=[{**taps, **{new: taps[old] for new, old in names.items()}} for taps in anatomy.taps],
    )


@pytest.mark.parametrize("family", [*TINY_FAMILIES, *GENERIC_FAMILIES])
def test_holds_in_every_family(family: str) -> None:
    model = tiny_model(family)
    error = check(model)
    if model.anatomy.residual in ("sequential", "parallel", "single"):
        assert error is not None
        assert error < 1e-5
    else:
        assert error is None
    assert hooks_on(model.module) == 0


@pytest.mark.parametrize("family", ["llama", "gpt_neox_sequential", "gpt2", "gemma3", "modernbert"])
def test_swapped_branches_are_caught(family: str) -> None:
    model = tiny_model(family)
    with pytest.raises(
        ModelError, match=r"does not hold at block\.0\.mid \(relative error .*\): the .* family's"
    ):
        check(model, relabeled(model.anatomy, attn="mlp", mlp="attn"))
    assert hooks_on(model.module) == 0


def test_branches_before_their_post_norm_are_caught() -> None:
    model = tiny_model("gemma3")
    taps = [
        {**t, "mlp": Tap(b.mlp)}
        for t, b in zip(model.anatomy.taps, model.anatomy.blocks, strict=True)
    ]
    with pytest.raises(ModelError, match=r"does not hold at block\.0 "):
        check(model, replace(model.anatomy, taps=taps))
