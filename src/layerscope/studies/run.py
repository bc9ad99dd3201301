"""A finished study: its table, its verdict, its figure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from layerscope.errors import MissingExtraError, RunFolderError
from layerscope.store import RunFolder, atomic
from layerscope.studies.registry import get_study

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass
class StudyRun:
    """What `layerscope.study` returns. `table` is tidy; `verdict` is the answer in plain sentences."""

    table: pd.DataFrame
    manifest: dict[str, Any]
    path: Path | None = None

    @classmethod
    def load(cls, path: str | Path) -> StudyRun:
        """Read a study's folder."""
        folder = RunFolder(path)
        manifest = folder.manifest()
        if manifest is None or manifest.get("kind") != "study":
            raise RunFolderError(f"{path} holds no study: its manifest.json is missing or is that of another kind of run.")
        if manifest.get("status") != "complete":
            raise RunFolderError(f"the study in {path} is not finished. Run the same command again: it goes on where it stopped.")
        return cls(folder.read_table("study"), manifest, Path(path))

    @property
    def name(self) -> str:
        """The study's name."""
        return str(self.manifest["study"])

    @property
    def verdict(self) -> list[str]:
        """The answer first, then what it rests on."""
        return list(self.manifest["verdict"])

    def plot(self) -> Figure:
        """The study's figure."""
        return get_study(self.name).draw(self.table, self.manifest)

    def save(self, path: str | Path) -> StudyRun:
        """Write the folder: study.parquet, study.csv, figure.png, figure.svg, manifest.json."""
        folder = RunFolder(path)
        folder.write_table("study", self.table)
        try:
            figure = self.plot()
            for kind in ("png", "svg"):
                atomic.write(folder.path / f"figure.{kind}", partial(figure.savefig, format=kind))
        except MissingExtraError as error:  # the numbers must not be lost for want of a picture
            self.manifest["warnings"] = [*self.manifest["warnings"], f"no figure was drawn: {error}"]
        folder.write_manifest(self.manifest)  # last: it says that the rest is there
        self.path = Path(path)
        return self

    def summary(self) -> dict[str, Any]:
        """What a reader wants first, as plain values."""
        keep = ("study", "title", "paper", "verdict", "options", "warnings")
        told = {name: self.manifest[name] for name in keep}
        return {**told, "rows": len(self.table), "run": None if self.path is None else str(self.path)}

    def __repr__(self) -> str:
        return f"<StudyRun {self.name}: {len(self.table)} rows. {self.verdict[0] if self.verdict else ''}>"
