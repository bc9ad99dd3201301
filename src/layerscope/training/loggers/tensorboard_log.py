"""TensorBoard: one curve per layer and metric."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from layerscope.errors import MissingExtraError
from layerscope.training.loggers.base import tag


class TensorBoardLog:
    """Event files in a folder."""

    def __init__(self, folder: Path, conventions: dict[str, Any]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtraError("logging to TensorBoard", "training") from None
        self._writer: Any = SummaryWriter(str(folder))
        self._writer.add_text("layerscope", f"```\n{json.dumps(conventions, indent=1)}\n```")

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        """One point per curve."""
        for row in rows:
            self._writer.add_scalar(tag(row), row["value"], row["step"])
        self._writer.flush()

    def close(self) -> None:
        """Finish the event file."""
        self._writer.close()


def open_log(out: Path, conventions: dict[str, Any]) -> TensorBoardLog:
    """Event files in the folder `out`; where that names a file, in the folder beside it that has its name."""
    return TensorBoardLog(out.with_suffix(""), conventions)
