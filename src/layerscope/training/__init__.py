"""Measure layers during training: `LayerWatch` in any loop, `LayerscopeCallback` in the Hugging
Face Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layerscope.core.charts import Figure
from layerscope.core.runs import view
from layerscope.training.watch import LayerWatch

if TYPE_CHECKING:
    from layerscope.training.callback import LayerscopeCallback

__all__ = ["LayerWatch", "LayerscopeCallback", "plot"]


def plot(source: Any, metrics: list[str] | None = None) -> Figure:
    """A panel per metric: its value against the training step, a line per layer, dark (first) to
    light (last).

    `source` is a `LayerWatch`, its table, or the CSV it wrote.
    """
    return view("training", "plot")(source, metrics)


def __getattr__(name: str) -> Any:
    if (
        name == "LayerscopeCallback"
    ):  # it brings in transformers' Trainer, which plain loops do not need
        from layerscope.training.callback import LayerscopeCallback

        return LayerscopeCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
