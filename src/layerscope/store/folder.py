"""The folder of a run: its manifest, its tables, its state between interruptions, and the one
process that may write there. And `StoredRun`: the base of all kinds of finished runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, Self

from layerscope.core.files import sha256_of
from layerscope.core.options import shorten
from layerscope.core.runs import MANIFEST, finished_manifest, read_manifest, view
from layerscope.errors import RunFolderError, one_line
from layerscope.store import atomic, checked
from layerscope.store.atomic import RUN_LOCK, run_lock
from layerscope.store.checked import TABLES, remove_recorded
from layerscope.version import VERSION

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["RunFolder", "Session", "config_key", "is_complete"]

# Endings of what only the run's own process writes; a report may be written by somebody else at any
# moment.
_WRITTEN = (".json", ".parquet", ".csv", ".png", ".svg")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a cell begins that a spreadsheet runs
SHARDS = "shards"
"""The folder in a run's folder that holds what is needed only until the run is complete."""


def config_key(config: dict[str, Any]) -> str:
    """Return a fingerprint of everything that decides a run's numbers."""
    text = json.dumps(atomic.plain(config), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def is_complete(manifest: dict[str, Any]) -> bool:
    """Return whether a manifest is that of a finished run."""
    return manifest.get("status") == "complete"


@dataclass(frozen=True)
class Session:
    """The right to write a run's folder. Where the run is `finished` there is nothing to write."""

    folder: RunFolder
    finished: bool
    start: dict[str, Any]

    def completed(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Return the manifest of the finished run, with the facts from its start."""
        owned = [name for name in self.start["owned"] if (self.folder.path / name).exists()]
        return {**self.start, **manifest, "status": "complete", "owned": owned}


class RunFolder:
    """One folder for one run. The manifest says what the run is; the same configuration resumes it,
    another is refused.

    with folder.session("profile", config, owned=["shards"]) as session:
        if session.finished:
            return Profile.load(folder.path)
        …
        folder.write_table("profile", table)
        folder.write_manifest(session.completed({"model": …}))
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._digests: dict[str, str] = {}  # of the tables that were written through this object
        with atomic.explained(self.path):
            is_file = self.path.exists() and not self.path.is_dir()
        if is_file:
            raise RunFolderError(
                f"{self.path} is a file; a run needs a folder. Choose another out=."
            )

    @property
    def scratch(self) -> Path:
        """Return the folder of what is needed only until the run is complete."""
        return self.path / SHARDS

    def manifest(self) -> dict[str, Any] | None:
        """Return the manifest of the run, or None in a new folder."""
        return read_manifest(self.path)

    def write_manifest(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Write the manifest; return it as written: with its checksum and those of its tables and
        figures."""
        if self._digests:
            manifest = {**manifest, TABLES: {**manifest.get(TABLES, {}), **self._digests}}
        return checked.write_json(self.path / MANIFEST, manifest)

    @contextmanager
    def session(
        self,
        kind: str,
        config: dict[str, Any],
        *,
        overwrite: bool = False,
        owned: Sequence[str] = (SHARDS,),
        finished: Callable[[dict[str, Any]], bool] = is_complete,
        **facts: Any,
    ) -> Iterator[Session]:
        """Write a run: one process at a time, started anew or resumed. `facts` go into the manifest
        from the start.

        A folder that holds another run is refused with what differs, unless `overwrite`. `owned`
        names the folders that the run keeps in its own; of them, `overwrite` removes only files
        that the manifest names or that carry a checksum of layerscope's. `finished(manifest)` tells
        whether nothing is left to do.
        """
        start = {
            "kind": kind,
            "key": config_key(config),
            "config": config,
            "layerscope": VERSION,
            **facts,
            "owned": list(owned),
        }
        earlier = self.open(config, overwrite)
        is_swept = SHARDS not in self._owned() and not any(atomic.parts_in(self.path, _WRITTEN))
        if earlier is not None and finished(earlier) and is_swept:
            yield Session(self, True, start)
            return
        with run_lock(self.path):
            earlier = self.open(config, overwrite)  # another process may have finished it
            if earlier is None:
                for name in self._owned():
                    remove_recorded(self.path / name)  # what the user put there stays
            self._sweep()
            is_finished = earlier is not None and finished(earlier)
            if is_finished:  # it was killed at its last step
                self.finish()
            else:
                self.write_manifest({**start, "status": "running"})
            yield Session(self, is_finished, start)

    def open(self, config: dict[str, Any], overwrite: bool = False) -> dict[str, Any] | None:
        """Return the manifest of this very run if it was started or finished here, else None for a
        fresh start.

        A folder that holds another run is refused with what differs, unless `overwrite`.
        """
        manifest = self.manifest()
        if manifest is None:
            self._refuse_files(overwrite)
            return None
        if overwrite:
            return None
        if manifest.get("key") == config_key(config):
            return manifest
        changes = _differences(manifest.get("config", {}), atomic.plain(config))
        raise RunFolderError(
            f"{self.path} holds another run, which differs in "
            f"{'; '.join(changes) or 'its configuration'}. Choose another out=, or overwrite=True "
            "to replace it."
        )

    def _refuse_files(self, overwrite: bool) -> None:
        """Raise where a folder without a run holds files that are in the way."""
        if not self.path.exists():
            return
        # A run that was killed while it wrote its first file may have left a part of it.
        names = [
            path.name
            for path in sorted(self.path.iterdir())
            if path.name != RUN_LOCK and not path.name.endswith(atomic.PART)
        ]
        reason = ""
        if overwrite:  # what a run does not write may stay beside it
            names = [name for name in names if name.endswith(_WRITTEN)]
            reason = ", and only runs are replaced"
        if names:
            raise RunFolderError(
                f"{self.path} is not empty ({', '.join(names[:3])}) and holds no run{reason}. "
                "Choose another out=."
            )

    def _sweep(self) -> None:
        """Remove what killed writers left."""
        atomic.remove_parts(self.path, of=_WRITTEN)
        for owned in (self.path / name for name in self._owned()):
            for folder in (owned, *(path for path in owned.rglob("*") if path.is_dir())):
                atomic.remove_parts(folder)

    def write_table(self, name: str, table: pd.DataFrame, csv: bool = True) -> None:
        """Write a table as parquet and, for people, as CSV."""
        self.write_file(f"{name}.parquet", lambda stream: table.to_parquet(stream, index=False))
        if not csv:
            return
        # A text that begins as a formula does is one to a spreadsheet, and names and texts may be
        # a stranger's.
        texts = table.select_dtypes(exclude=["number", "bool"])
        escaped = {str(column): texts[column].map(_escape, na_action="ignore") for column in texts}
        content = table.assign(**escaped).to_csv(index=False).encode()
        self.write_file(f"{name}.csv", lambda stream: stream.write(content))

    def write_file(self, name: str, fill: Callable[[BinaryIO], Any]) -> None:
        """Write a table or a figure through `fill(stream)`; the manifest of the finished run will
        hold its sha256."""
        atomic.write(self.path / name, fill)
        self._digests[name] = sha256_of(self.path / name)

    def read_table(self, name: str) -> pd.DataFrame:
        """Read a table back, checked against the manifest."""
        import pandas as pd

        file = self.path / f"{name}.parquet"
        if not file.is_file():
            raise RunFolderError(
                f"{self.path} holds no {name} table. Run the same command again with "
                "overwrite=True."
            )
        recorded = (self.manifest() or {}).get(TABLES, {}).get(file.name)
        try:
            if recorded is not None and sha256_of(file) != recorded:
                raise ValueError("its checksum is not the one in the manifest")
            return pd.read_parquet(file)
        except Exception as error:  # of many kinds: a damaged file can say anything
            raise RunFolderError(
                f"{file} is damaged ({one_line(str(error))}). Run its command again with "
                "overwrite=True."
            ) from error

    def finish(self) -> None:
        """Remove what was needed only while running, where it is the run's own."""
        owned = self._owned()
        if SHARDS in owned:
            remove_recorded(self.scratch)
            # A folder of that name that comes later is the user's.
            owned.remove(SHARDS)
            checked.write_json(self.path / MANIFEST, {**(self.manifest() or {}), "owned": owned})

    @contextmanager
    def lock(self, *endings: str) -> Iterator[None]:
        """Be the only writer of this folder, where there is no session: a folder of several
        runs. `endings` are those of other files that the writer makes."""
        with run_lock(self.path):
            atomic.remove_parts(self.path, of=(*_WRITTEN, *endings))
            yield

    def _owned(self) -> list[str]:
        """Return the names of the folders that the run keeps in its folder."""
        return list((self.manifest() or {}).get("owned", ()))


def _escape(value: Any) -> Any:
    """Return a text so that no spreadsheet takes it for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _differences(old: Any, new: Any, name: str = "") -> list[str]:
    """Return in words what differs between two configurations."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for key in sorted({*old, *new})
            if old.get(key) != new.get(key)
            for line in _differences(old.get(key), new.get(key), f"{name}.{key}".lstrip("."))
        ]
    old_value = shorten(json.dumps(old, ensure_ascii=False), 60)
    new_value = shorten(json.dumps(new, ensure_ascii=False), 60)
    return [f"{name}: {old_value} there, {new_value} here"]


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
        fields = {**cls.read(RunFolder(path)), "manifest": manifest, "path": Path(path)}
        return cls(**fields)

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
