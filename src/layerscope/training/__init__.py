"""Layers watched while a model trains: `LayerWatch` for any loop, `LayerscopeCallback` for the Hugging Face Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layerscope.training.plot import plot
from layerscope.training.watch import LayerWatch

if TYPE_CHECKING:
    from layerscope.training.callback import LayerscopeCallback

__all__ = ["LayerWatch", "LayerscopeCallback", "plot"]


def __getattr__(name: str) -> Any:
    if name == "LayerscopeCallback":  # brings transformers' Trainer in, which plain loops have no use for
        from layerscope.training.callback import LayerscopeCallback

        return LayerscopeCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
