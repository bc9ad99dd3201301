"""The log that only a watch has: a CSV file, which is whole after every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from layerscope.errors import RunFolderError
from layerscope.loggers import Log, LogKind, Logs
from layerscope.store import atomic
from layerscope.training.measuring import COLUMNS


class CsvLog:
    """Appends to a file, which is whole after every step; a run that goes on appends to what is there."""

    def __init__(self, path: Path, conventions: Mapping[str, Any]) -> None:
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
        atomic.write_json(path.with_suffix(".json"), dict(conventions))

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        with atomic.explained(self.path):
            pd.DataFrame(rows, columns=COLUMNS).to_csv(self.path, mode="a", header=False, index=False)

    def close(self) -> None:
        """Nothing is open between steps."""


def open_logs(wanted: Log, out: Path, conventions: dict[str, Any]) -> Logs:
    """A watch's logs: a CSV file at `out`, or `layers.csv` in the folder `out`; event files in that folder, or in the one beside
    the file that has its name."""
    csv = LogKind("csv", "a CSV file", lambda _, facts: CsvLog(out if out.suffix else out / "layers.csv", facts))
    return Logs(wanted, out.with_suffix(""), conventions, also={"csv": csv})
