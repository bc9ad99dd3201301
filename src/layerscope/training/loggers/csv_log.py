"""A CSV file, with what the numbers rest on in a JSON file beside it."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from layerscope.errors import RunFolderError
from layerscope.store import atomic
from layerscope.training.measuring import COLUMNS


class CsvLog:
    """Appends to a file, which is whole after every step; a run that goes on appends to what is there."""

    def __init__(self, path: Path, conventions: dict[str, Any]) -> None:
        self.path = path
        with atomic.explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            begun = path.exists() and path.stat().st_size > 0
            if begun:
                with open(path, newline="", encoding="utf-8") as held:
                    header = next(csv.reader(held), [])
                if header != COLUMNS:
                    raise RunFolderError(
                        f"{path} holds something else (its first line is {','.join(header)!r}). Choose another file."
                    )
            self._file = open(path, "a", newline="", encoding="utf-8")  # noqa: SIM115 - it stays open for the whole run
        self._rows = csv.DictWriter(self._file, COLUMNS)
        if not begun:
            self._rows.writeheader()
            self._file.flush()
        atomic.write_json(path.with_suffix(".json"), conventions)

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        """One line per row."""
        with atomic.explained(self.path):
            self._rows.writerows(rows)
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_log(out: Path, conventions: dict[str, Any]) -> CsvLog:
    """A CSV file at `out`, or `layers.csv` in the folder `out`."""
    return CsvLog(out if out.suffix else out / "layers.csv", conventions)
