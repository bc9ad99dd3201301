"""A run's folder: its manifest, its tables, and its state between interruptions."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerscope.errors import RunFolderError
from layerscope.store import atomic

if TYPE_CHECKING:
    import pandas as pd

MANIFEST = "manifest.json"


def config_key(config: dict[str, Any]) -> str:
    """A fingerprint of everything that decides a run's numbers."""
    text = json.dumps(atomic.plain(config), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


class RunFolder:
    """One folder for one run. The manifest says what the run is; the same configuration resumes it, another is refused."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise RunFolderError(f"{self.path} is a file; a run needs a folder. Choose another --out.")

    @property
    def scratch(self) -> Path:
        """What is needed only until the run is complete."""
        return self.path / "shards"

    def manifest(self) -> dict[str, Any] | None:
        """The manifest, or None in a new folder."""
        file = self.path / MANIFEST
        if not file.exists():
            return None
        try:
            held = json.loads(file.read_text(encoding="utf-8"))
            if not isinstance(held, dict):
                raise ValueError("not a JSON object")
        except (ValueError, OSError) as error:
            raise RunFolderError(f"{file} cannot be read ({error}). Delete the folder or choose another --out.") from error
        return held

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Write the manifest."""
        atomic.write_json(self.path / MANIFEST, manifest)

    def open(self, config: dict[str, Any], overwrite: bool = False) -> dict[str, Any] | None:
        """The manifest of this very run if it was begun or finished here, else None for a fresh start.

        A folder that holds another run is refused with what differs, unless `overwrite`.
        """
        held = self.manifest()
        if held is None:
            # a run that was killed while it wrote its first file may have left a part of it
            found = sorted(p.name for p in self.path.iterdir()) if self.path.exists() else []
            others = [name for name in found if name != "shards" and not name.endswith(".part")][:3]
            if others and not overwrite:
                raise RunFolderError(
                    f"{self.path} is not empty ({', '.join(others)}) and holds no run. Choose another --out, or --overwrite."
                )
            return None
        if held.get("key") == config_key(config):
            return held
        if overwrite:
            shutil.rmtree(self.scratch, ignore_errors=True)
            return None
        changes = "; ".join(_differences(held.get("config", {}), atomic.plain(config))) or "its configuration"
        raise RunFolderError(
            f"{self.path} holds another run, which differs in {changes}. Choose another --out, or --overwrite to replace it."
        )

    def write_table(self, name: str, table: pd.DataFrame, csv: bool = True) -> None:
        """Write a table as parquet and, for people, as CSV."""
        atomic.write(self.path / f"{name}.parquet", lambda stream: table.to_parquet(stream, index=False))
        if csv:
            atomic.write(self.path / f"{name}.csv", lambda stream: stream.write(table.to_csv(index=False).encode()))

    def read_table(self, name: str) -> pd.DataFrame:
        """Read a table back."""
        import pandas as pd

        file = self.path / f"{name}.parquet"
        if not file.exists():
            raise RunFolderError(f"{self.path} holds no {name} table. Run the same command again with --overwrite.")
        return pd.read_parquet(file)

    def finish(self) -> None:
        """Remove what was needed only while running."""
        shutil.rmtree(self.scratch, ignore_errors=True)


def _differences(old: Any, new: Any, name: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for key in sorted({*old, *new})
            if old.get(key) != new.get(key)
            for line in _differences(old.get(key), new.get(key), f"{name}.{key}".lstrip("."))
        ]
    return [f"{name}: {_short(old)} there, {_short(new)} here"]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"
