"""Training: layers measured while a model trains (`watch`); students of a teacher (`distill`)."""

from __future__ import annotations

from typing import Any

from layerscope.training.watch import LayerWatch

__all__ = ["LayerWatch", "LayerscopeCallback"]


def __getattr__(name: str) -> Any:
    if name == "LayerscopeCallback":  # transformers' trainer takes a while to import
        from layerscope.training.callback import LayerscopeCallback

        return LayerscopeCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
