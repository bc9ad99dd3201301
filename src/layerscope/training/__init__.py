"""Measure layers during training (`LayerWatch`, `LayerscopeCallback`), or penalize them (`LayerPenalty`, `PenaltyCallback`).

The first of each pair is for any training loop, the second for the Hugging Face Trainer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from layerscope.core.charts import Figure
from layerscope.core.runs import view
from layerscope.training.penalties import LayerPenalty, token_entropies, variance_covariance
from layerscope.training.watch import LayerWatch

if TYPE_CHECKING:
    from layerscope.training.callback import LayerscopeCallback, PenaltyCallback

__all__ = [
    "LayerPenalty",
    "LayerWatch",
    "LayerscopeCallback",
    "PenaltyCallback",
    "plot",
    "token_entropies",
    "variance_covariance",
]


def plot(source: Any, metrics: list[str] | None = None) -> Figure:
    """A panel per metric: its value against the training step, a line per layer, dark (first) to light (last).

    `source` is a `LayerWatch`, its table, or the CSV it wrote.
    """
    return view("training", "plot")(source, metrics)


def __getattr__(name: str) -> Any:
    if name in ("LayerscopeCallback", "PenaltyCallback"):  # they bring in transformers' Trainer, which plain loops do not need
        from layerscope.training import callback

        return getattr(callback, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
