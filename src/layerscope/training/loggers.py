"""Where a watch's numbers go: a CSV file, TensorBoard, Weights & Biases, or any object with `write` and `close`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from layerscope.errors import RunFolderError, UnknownNameError, require
from layerscope.store import atomic
from layerscope.training.measuring import COLUMNS


class Logger(Protocol):
    """Takes rows as they are measured: step, site, layer, depth, metric, sink, value, n."""

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        """Keep the rows of one step."""

    def close(self) -> None:
        """No more will come."""


def tag(row: dict[str, Any]) -> str:
    """The name of a row's curve in a dashboard.

    >>> tag({"metric": "prompt_entropy", "sink": "drop", "layer": 3})
    'layers/prompt_entropy_sink_dropped/03'
    """
    sink = "_sink_dropped" if row["sink"] == "drop" else ""
    return f"layers/{row['metric']}{sink}/{row['layer']:02d}"


class CsvLog:
    """Appends to a file, which is whole after every step; a run that goes on appends to what is there."""

    def __init__(self, path: Path, conventions: dict[str, Any]) -> None:
        self.path = path
        with atomic.explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "a+", encoding="utf-8") as stream:
                stream.seek(0)
                first = stream.readline()
                if not first:
                    stream.write(f"{','.join(COLUMNS)}\n")
        header = first.rstrip("\r\n")
        if first and header != ",".join(COLUMNS):
            raise RunFolderError(f"{path} holds something else (its first line is {header!r}). Choose another file.")
        atomic.write_json(path.with_suffix(".json"), conventions)

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        with atomic.explained(self.path):
            pd.DataFrame(rows, columns=COLUMNS).to_csv(self.path, mode="a", header=False, index=False)

    def close(self) -> None:
        """Nothing is open between steps."""


class TensorBoardLog:
    """Event files in a folder."""

    def __init__(self, folder: Path, conventions: dict[str, Any]) -> None:
        require("logging to TensorBoard", "training", "torch.utils.tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))
        self._writer.add_text("layerscope", f"```\n{json.dumps(conventions, indent=1)}\n```")

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        for row in rows:
            self._writer.add_scalar(tag(row), row["value"], row["step"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbLog:
    """Logs into the current run; opens one, and closes it again, where there is none."""

    def __init__(self, conventions: dict[str, Any]) -> None:
        require("logging to Weights & Biases", "training", "wandb")
        wandb: Any = import_module("wandb")
        self._own = wandb.run is None
        self._run: Any = wandb.init(config={"layerscope": conventions}) if self._own else wandb.run
        # a step axis of our own: the training loop may be ahead on W&B's
        self._run.define_metric("layers/step")
        self._run.define_metric("layers/*", step_metric="layers/step")

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        if rows:
            self._run.log({"layers/step": rows[0]["step"], **{tag(row): row["value"] for row in rows}})

    def close(self) -> None:
        if self._own:
            self._run.finish()


LOGS: dict[str, Callable[[Path, dict[str, Any]], Logger]] = {
    # a CSV file at `out`, or `layers.csv` in the folder `out`
    "csv": lambda out, conventions: CsvLog(out if out.suffix else out / "layers.csv", conventions),
    # event files in the folder `out`; where that names a file, in the folder beside it that has its name
    "tensorboard": lambda out, conventions: TensorBoardLog(out.with_suffix(""), conventions),
    "wandb": lambda out, conventions: WandbLog(conventions),
}


def open_loggers(wanted: Any, out: Path, conventions: dict[str, Any]) -> list[Logger]:
    """The loggers asked for, by name or as objects."""
    each: Sequence[Any] = [wanted] if isinstance(wanted, str) or hasattr(wanted, "write") else list(wanted)
    for item in each:
        if isinstance(item, str) and item not in LOGS:
            raise UnknownNameError("log", item, LOGS)
    return [LOGS[item](out, conventions) if isinstance(item, str) else item for item in each]
