"""The result of `improve` for a sentence encoder: the same encoder with fewer blocks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

from layerscope.blocks.folder import MadeEncoder, write_export
from layerscope.core.runs import view
from layerscope.errors import LayerscopeError
from layerscope.exporting.pipeline import load_folder
from layerscope.exporting.publishing import published
from layerscope.models.settings import quiet
from layerscope.store import RunFolder, StoredRun

if TYPE_CHECKING:
    from layerscope.core.charts import Figure


@dataclass(repr=False)
class FasterEncoder(StoredRun):
    """A sentence encoder with fewer blocks.

    - `front`: every candidate: how many blocks, which, refitted or as they are, cost, agreement with
      the whole encoder (with its interval), and the share of nearest neighbors that are the same.
    - `removals`: each step of the search: how close the encoder stays after each possible removal.
    - `folder`: the exported sentence-transformers folder, None if `out` was not given.

        faster = layerscope.improve("minilm-l6", texts, budget=0.5, out="faster")
        faster.encode(["how do I reset my card?"])
    """

    kind: ClassVar[str] = "encoder"
    files: ClassVar[dict[str, str]] = {"front": "front", "removals": "removals"}

    front: pd.DataFrame
    removals: pd.DataFrame
    manifest: dict[str, Any]
    path: Path | None = None
    _made: MadeEncoder | None = field(default=None, repr=False, compare=False)

    @property
    def folder(self) -> Path | None:
        """The exported folder, which holds the run as well."""
        return self.path

    @property
    def model(self) -> str:
        """The name of the whole encoder."""
        return str(self.manifest["model"]["name"])

    @property
    def name(self) -> str:
        """The encoder and the texts."""
        return f"{self.model} on {self.manifest['texts']['name']}"

    @property
    def blocks(self) -> tuple[int, ...]:
        """The blocks that remain, numbered from 0 as in the whole encoder."""
        return tuple(self.manifest["choice"]["blocks"])

    @property
    def warnings(self) -> list[str]:
        """Notes that a user should know before using the result."""
        return list(self.manifest["warnings"])

    def encode(self, texts: str | Sequence[str]) -> np.ndarray:
        """Return vectors (texts, D) of texts, or (D,) of one text, of length 1."""
        if isinstance(texts, str):
            vector: np.ndarray = self.encode([texts])[0]
            return vector
        if self._made is not None:
            return self._made.encode(texts)
        if self.path is None:
            raise LayerscopeError("this encoder was not saved. Save it first: faster.save(FOLDER).")
        with quiet():
            loaded = load_folder(self.path)
        vectors = loaded.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(vectors, dtype=np.float32)

    def save(self, out: str | Path, overwrite: bool = False) -> Path:  # type: ignore[override]
        """Write the sentence-transformers folder, verified in a fresh process.

        It appears complete or not at all.
        """
        if self._made is None:
            raise LayerscopeError(
                f"this run was read from disk; its model is in {self.folder}. Copy that folder."
            )
        with published(Path(out), overwrite) as folder:
            manifest = write_export(self._made, self.manifest, folder)
            run = RunFolder(folder)
            self.write(run)
            self.manifest = run.write_manifest(manifest)
        self.path = Path(out)
        return self.path

    def plot(self) -> Figure:
        """Draw what each block's removal costs, and the agreement by the share of blocks kept."""
        figure: Figure = view("encoder", "plot")(self)
        return figure

    def summary(self) -> dict[str, Any]:
        """Return what a reader wants first, as plain values."""
        names = ("model", "texts", "choice", "claim", "labels", "speed", "seconds", "conventions")
        return {
            "folder": None if self.folder is None else str(self.folder),
            **{name: self.manifest.get(name) for name in names},
            "front": self.front.to_dict(orient="records"),
            "warnings": self.warnings,
        }

    def to_json(self, indent: int | None = 2) -> str:
        """Return the summary as JSON."""
        return json.dumps(self.summary(), indent=indent, ensure_ascii=False, default=str)

    def __repr__(self) -> str:
        place = "not saved" if self.folder is None else f"in {self.folder}"
        count = f"{len(self.blocks)} of {self.manifest['model']['n_blocks']} blocks"
        return f"<FasterEncoder {self.name}: {count}; {place}>"

    def __str__(self) -> str:
        return str(view("encoder", "text")(self))
