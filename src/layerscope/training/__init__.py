"""Layers watched while a model trains: `LayerWatch` for any loop, `LayerscopeCallback` for the Hugging Face Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layerscope.core.runs import view
from layerscope.training.watch import LayerWatch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from layerscope.training.callback import LayerscopeCallback

__all__ = ["LayerWatch", "LayerscopeCallback", "plot"]


def plot(source: Any, metrics: list[str] | None = None) -> Figure:
    """A panel per metric: its value against the training step, a line per layer, dark (first) to light (last).

    `source` is a `LayerWatch`, its table, or the CSV it wrote.
    """
    return view("training", "plot")(source, metrics)


def __getattr__(name: str) -> Any:
    if name == "LayerscopeCallback":  # brings transformers' Trainer in, which plain loops have no use for
        from layerscope.training.callback import LayerscopeCallback

        return LayerscopeCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
