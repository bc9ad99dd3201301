"""Measure layers during training: `LayerWatch` in any loop, `LayerscopeCallback` in the Hugging
Face Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layerscope.training.watch import LayerWatch

if TYPE_CHECKING:
    from layerscope.training.callback import LayerscopeCallback

__all__ = ["LayerWatch", "LayerscopeCallback"]


def __getattr__(name: str) -> Any:
    if (
        name == "LayerscopeCallback"
    ):  # it brings in transformers' Trainer, which plain loops do not need
        from layerscope.training.callback import LayerscopeCallback

        return LayerscopeCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
