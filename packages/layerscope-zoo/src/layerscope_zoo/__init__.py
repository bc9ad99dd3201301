"""Small trained models for controlled comparisons, and MobileSAM, as entries of layerscope's
catalogue of models."""

from __future__ import annotations

from pathlib import Path

from layerscope.models.catalogue import ModelEntry, installed_model
from layerscope_zoo.mobile_sam import MOBILE_SAM

_HERE = Path(__file__).parent


def _entry(
    name: str, folder: str, title: str, parameters: int, width: int, summary: str
) -> ModelEntry:
    return ModelEntry(
        name=name,
        title=title,
        summary=f"{summary}, float16",
        license="Apache-2.0",
        origin=installed_model(_HERE / folder, "layerscope-zoo"),
        parameters=parameters,
        blocks=12,
        width=width,
    )


def _controlled(kind: str, title: str, parameters: int, summary: str) -> ModelEntry:
    told = f"{summary}; trained by examples/train_controlled_set.py on film reviews"
    return _entry(
        f"controlled-{kind}",
        f"controlled/{kind}",
        f"controlled set, {title}",
        parameters,
        128,
        told,
    )


def _vision(kind: str, title: str, parameters: int, summary: str) -> ModelEntry:
    told = f"image model{summary}; trained by examples/train_vision_set.py on Fashion-MNIST"
    return _entry(
        f"vision-{kind}", f"vision_set/{kind}", f"vision set, {title}", parameters, 48, told
    )


ENTRIES = (
    _controlled("ar", "autoregressive", 2_903_808, "decoder (GPT-NeoX)"),
    _controlled("mlm", "masked-language", 2_903_808, "the same blocks, seeing both sides"),
    _controlled("mamba", "Mamba", 2_622_592, "state-space model"),
    _vision("supervised", "supervised ViT", 342_624, ", classifies"),
    _vision("mae", "masked autoencoder", 342_624, ", fills in hidden patches"),
    _vision("ar", "autoregressive", 336_672, " (AIM), predicts the next patch"),
    MOBILE_SAM,
)
