"""Weights & Biases: one curve per layer and metric, in the run that is open, or a new one."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from layerscope.errors import MissingExtraError
from layerscope.training.loggers.base import tag


class WandbLog:
    """Logs into the current run; opens one, and closes it again, where there is none."""

    def __init__(self, conventions: dict[str, Any]) -> None:
        try:
            wandb: Any = import_module("wandb")
        except ImportError:
            raise MissingExtraError("logging to Weights & Biases", "training") from None
        self._own = wandb.run is None
        self._run: Any = wandb.init(config={"layerscope": conventions}) if self._own else wandb.run
        # a step axis of our own: the training loop may be ahead on W&B's
        self._run.define_metric("layers/step")
        self._run.define_metric("layers/*", step_metric="layers/step")

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        """One point per curve."""
        if rows:
            self._run.log({"layers/step": rows[0]["step"], **{tag(row): row["value"] for row in rows}})

    def close(self) -> None:
        """Finish the run if it is ours."""
        if self._own:
            self._run.finish()


def open_log(out: Path, conventions: dict[str, Any]) -> WandbLog:
    """The current run."""
    return WandbLog(conventions)
