"""What `improve` returns: the choice, its evidence, and a model that encodes at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

from layerscope.choose.choice import Choice
from layerscope.core.heads import unit
from layerscope.core.runs import finished_manifest, view
from layerscope.errors import DataError, LayerscopeError
from layerscope.exporting.formats.sentence_transformers import load_folder
from layerscope.improving.chosen import Chosen
from layerscope.improving.evidence import Evidence
from layerscope.improving.neighbors import BeforeAfter
from layerscope.maps.groups import clusters, group_names
from layerscope.models.settings import quiet
from layerscope.store import RunFolder, StoredRun

if TYPE_CHECKING:
    from layerscope.core.charts import Figure

_ROWS = 1024


@dataclass(repr=False)
class Improved(StoredRun):
    """A better way to read a model's embeddings.

    - `choice`: the layer and readout, with the reason.
    - `table`: every candidate with its score.
    - `neighbors`: five of the texts with their three nearest neighbors before and after.
    - `folder`: the exported sentence-transformers folder; None if `out` was not given, and `save`
      writes one.
    - `sampled`: the texts that were judged on and their vectors. `chosen`: the model that encodes.
      `card`: how it was chosen, for the model card. These are in memory only.
    """

    kind: ClassVar[str] = "improve"
    files: ClassVar[dict[str, str]] = {"candidates": "table", "neighbors": "neighbors"}

    choice: Choice
    table: pd.DataFrame
    neighbors: pd.DataFrame
    manifest: dict[str, Any]
    path: Path | None = None
    sampled: BeforeAfter | None = field(default=None, repr=False, compare=False)
    chosen: Chosen | None = field(default=None, repr=False, compare=False)
    card: str = field(default="", repr=False, compare=False)

    @classmethod
    def load(cls, path: str | Path) -> Improved:
        """Read a finished run from the folder that it exported."""
        manifest = finished_manifest(path, cls.kind)
        choice = Choice.from_json(manifest["choice"])
        return cls(choice, **cls.read(RunFolder(path)), manifest=manifest, path=Path(path))

    @property
    def model(self) -> str:
        """The name of the model that was improved."""
        return str(self.manifest["model"]["name"])

    @property
    def name(self) -> str:
        """The model and the texts."""
        return f"{self.model} on {self.manifest['texts']['name']}"

    @property
    def folder(self) -> Path | None:
        """The exported folder, which holds the run as well."""
        return self.path

    @property
    def evidence(self) -> Evidence:
        """The scores and costs on which the choice rests."""
        return Evidence.from_dict(self.manifest["evidence"])

    @property
    def warnings(self) -> list[str]:
        """Notes to read before you use the result."""
        return list(self.choice.warnings)

    def summary(self) -> dict[str, Any]:
        """Return the main facts as plain values; the table of candidates is left out."""
        names = ("model", "texts", "judge", "evidence", "seconds", "conventions")
        return {
            "folder": None if self.folder is None else str(self.folder),
            **{name: self.manifest.get(name) for name in names},
            "choice": self.choice.as_dict(),
            "neighbors": self.neighbors.to_dict(orient="records"),
        }

    def encode(self, texts: str | Sequence[str]) -> np.ndarray:
        """Return vectors (texts, D) of texts, or (D,) of one text.

        They have length 1, so inner products are cosine similarities.
        """
        return self._vectors(texts, is_query=False)

    def encode_query(self, texts: str | Sequence[str]) -> np.ndarray:
        """Return vectors of queries, where `queries=` was given; then `encode` is for documents."""
        return self._vectors(texts, is_query=True)

    def _vectors(self, texts: str | Sequence[str], is_query: bool) -> np.ndarray:
        if isinstance(texts, str):
            vector: np.ndarray = self._vectors([texts], is_query)[0]
            return vector
        batch = list(texts)
        for text in batch:
            if not isinstance(text, str):
                raise DataError(
                    f"encode takes strings, and was given {type(text).__name__} {text!r:.60}."
                )
        filled = batch or ["a text"]
        if self.chosen is not None:
            encode = self.chosen.encode_queries if is_query else self.chosen.encode
            vectors = encode(filled)
        else:
            model = self._folder_model
            encode = model.encode_query if is_query else model.encode_document
            vectors = np.asarray(encode(filled, show_progress_bar=False), dtype=np.float32)
        return unit(vectors)[: len(batch)]

    @cached_property
    def _folder_model(self) -> Any:
        if self.folder is None:
            raise LayerscopeError(
                "this run has no exported folder to encode with. Run improve again with out=FOLDER."
            )
        with quiet():
            return load_folder(self.folder)

    def save(self, out: str | Path, overwrite: bool = False) -> Path:  # type: ignore[override]
        """Write the sentence-transformers folder, verified in a fresh process."""
        if self.chosen is None:
            raise LayerscopeError(
                f"this run was read from disk; its model is in {self.folder}. Copy that folder."
            )
        self.path = self.chosen.save(Path(out), overwrite, self.card, self._write_run)
        return self.path

    def _write_run(self, place: Path) -> None:
        folder = RunFolder(place)
        self.write(folder)
        folder.write_manifest(self.manifest)

    def push(self, repo: str, public: bool = False) -> str:
        """Send the saved folder to the hub as `user/name`, and return its address.

        The repository is private unless `public`, and holds none of your texts.

            better.push("me/better-smollm2")
        """
        if self.folder is None:
            raise LayerscopeError(
                "nothing is saved that could be pushed. Save it first: better.save(FOLDER)."
            )
        from layerscope.exporting.pushing import pack, push

        return push(pack(self.folder, repo, public))

    def plot(self) -> Figure:
        """Draw every layer under every readout by its score, and the score by the cost."""
        figure: Figure = view("improve", "plot")(self)
        return figure

    def search(self, query: str, texts: Sequence[str] | None = None, top: int = 5) -> pd.DataFrame:
        """Return the texts nearest to a question, with their cosine.

        Without `texts`, they are among those that the choice was judged on.
        """
        if texts is None:
            sampled = self._sampled()
            words = list(sampled.texts)
            vectors = unit(sampled.after)
        else:
            words = list(texts)
            vectors = self.encode(words)
        cosines = vectors @ self.encode_query(query)
        best = np.argsort(-cosines, kind="stable")[:top]
        rows = [(rank, float(cosines[i]), words[i]) for rank, i in enumerate(best, 1)]
        return pd.DataFrame(rows, columns=["rank", "cosine", "text"])

    def about(self) -> pd.DataFrame:
        """Return each text's cluster, named by its words, and its nearest text, today and now.

        `cosine` is low for outliers and 1 for duplicates; the lowest comes first. The folder has
        the table as `about.csv`.
        """
        if self.sampled is None and self.has_about and self.path is not None:
            return RunFolder(self.path).read_table("about")
        sampled = self._sampled()
        texts = list(sampled.texts)
        table = pd.DataFrame({"text": texts})
        for suffix, vectors in (("_today", unit(sampled.before)), ("", unit(sampled.after))):
            table[f"cluster{suffix}"] = group_names(clusters(vectors), texts)
            nearest, cosines = _nearest(vectors)
            table[f"nearest{suffix}"] = [texts[i] for i in nearest]
            table[f"cosine{suffix}"] = cosines
        return table.sort_values("cosine", ignore_index=True)

    @property
    def has_about(self) -> bool:
        """Whether `about` has a table; a run without texts has none."""
        return self.sampled is not None or (
            self.path is not None and (self.path / "about.parquet").is_file()
        )

    def write(self, folder: RunFolder) -> None:
        """Write the tables, with `about` unless the folder may hold no texts."""
        super().write(folder)
        if self.sampled is not None and len(self.neighbors):
            folder.write_table("about", self.about())

    def _sampled(self) -> BeforeAfter:
        if self.sampled is None:
            raise LayerscopeError(
                "this run was read from disk and holds no texts. Give them, or run improve again."
            )
        return self.sampled

    def __repr__(self) -> str:
        place = "not saved" if self.folder is None else f"in {self.folder}"
        choice = f"layer {self.choice.layer} of {self.choice.layers}, {self.choice.readout}"
        return f"<Improved {self.name}: {choice}; {place}>"

    def __str__(self) -> str:
        return str(view("improve", "text")(self))


def _nearest(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the place and cosine of every vector's nearest other one, a block of rows at a time."""
    count = len(vectors)
    nearest = np.empty(count, dtype=int)
    cosines = np.empty(count)
    for start in range(0, count, _ROWS):
        rows = slice(start, start + _ROWS)
        block = vectors[rows] @ vectors.T
        block[np.arange(len(block)), np.arange(start, start + len(block))] = -np.inf
        nearest[rows] = block.argmax(1)
        cosines[rows] = block.max(1)
    return nearest, cosines
