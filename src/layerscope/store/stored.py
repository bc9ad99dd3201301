"""`StoredRun`: the base of all kinds of finished runs. A kind states its tables and its
summary."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from layerscope.core.runs import finished_manifest, view
from layerscope.store.folder import RunFolder

if TYPE_CHECKING:
    import pandas as pd


class StoredRun:
    """A finished run: tables and a manifest, in a folder (`path`) or in memory (None).

    A subclass is a dataclass with `manifest`, `path` and a field for each table. `files` has the
    tables' files and, for each, the name of its field; `without_csv` those that are too long to be
    written for people as well.
    """

    kind: ClassVar[str]
    files: ClassVar[dict[str, str]]
    without_csv: ClassVar[tuple[str, ...]] = ()

    manifest: dict[str, Any]
    path: Path | None
    _map: Any = None  # a `LayerMap`, where it is in memory

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a run's folder."""
        manifest = finished_manifest(path, cls.kind)
        return cls(**cls.read(RunFolder(path)), manifest=manifest, path=Path(path))  # type: ignore[call-arg]

    @classmethod
    def read(cls, folder: RunFolder) -> dict[str, Any]:
        """Return the tables in a folder, by the names of their fields."""
        return {field: folder.read_table(file) for file, field in cls.files.items()}

    def save(self, path: str | Path) -> Self:
        """Write the run's folder: each table as .parquet and .csv, and manifest.json."""
        folder = RunFolder(path)
        self.write(folder)
        self.manifest = folder.write_manifest(self.manifest)  # last: it says that the rest is there
        self.path = Path(path)
        return self

    def write(self, folder: RunFolder) -> None:
        """Write everything but the manifest into a folder."""
        for file, table in self.tables().items():
            folder.write_table(file, table, csv=file not in self.without_csv)
        self.write_map(folder)

    def write_map(self, folder: RunFolder) -> None:
        """Write the map, where the run keeps one."""
        if self._map is not None:
            self._map.write(folder)

    def find_map(self) -> Any:
        """Return the map that the run kept, if any."""
        return self._map if self._map is not None else view("map", "read")(self.path)

    def map(self) -> Any:
        """The texts as points at every layer, as far as the run kept them: drawn in a notebook,
        `run.map().save("map.html")`."""
        return view("map", "of")(self)

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return every table of the run, under the name of its file."""
        return {file: getattr(self, field) for file, field in self.files.items()}

    @property
    def name(self) -> str:
        """The subject of the run: by default its model."""
        return str(self.manifest["model"]["name"])

    def summary(self) -> dict[str, Any]:
        """Return the most important facts as plain values."""
        return {
            "warnings": self.manifest["warnings"],
            "run": None if self.path is None else str(self.path),
        }

    def report(self, out: str | Path = "report.html") -> Path:
        """Write one page about this run."""
        return Path(view(self.kind, "report")(self, out))

    def _repr_html_(self) -> str:
        """Return the run as HTML for notebooks; text is escaped."""
        return view(self.kind, "html")(self)
