"""What `improve` returns: the choice, what it rests on, the exported folder, and a model that
encodes at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pandas as pd

from layerscope.core.heads import unit
from layerscope.core.runs import finished_manifest, view
from layerscope.errors import DataError, LayerscopeError
from layerscope.exporting.formats.sentence_transformers import load_folder
from layerscope.maps.groups import clusters, group_names
from layerscope.models.settings import quiet
from layerscope.selection.choice import Choice
from layerscope.store import RunFolder, StoredRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROWS = 1024
Encoder = Callable[[Sequence[str]], np.ndarray]


@dataclass(repr=False)
class Improved(StoredRun):
    """A better way to read a model's embeddings.

    `choice` is the layer and readout, with the reason. `table` has every candidate with its score.
    `neighbors` has five of the texts with their three nearest neighbors before and after. `folder`
    is the exported sentence-transformers folder (None if `out` was not given; `save` writes one).
    """

    kind: ClassVar[str] = "improve"
    files: ClassVar[dict[str, str]] = {"candidates": "table", "neighbors": "neighbors"}

    choice: Choice
    table: pd.DataFrame
    neighbors: pd.DataFrame
    manifest: dict[str, Any]
    path: Path | None = None
    sampled: dict[str, Any] | None = field(default=None, repr=False, compare=False)
    """The texts that were read, and their vectors `before` and `after`; in memory only."""
    _encode: Encoder | None = field(default=None, repr=False, compare=False)
    _save: Callable[[Path, bool], Path] | None = field(default=None, repr=False, compare=False)
    _asks: Encoder | None = field(default=None, repr=False, compare=False)
    """How queries are encoded, where that is otherwise than for other texts."""

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
        """What the run is about: the model and the texts."""
        return f"{self.model} on {self.manifest['texts']['name']}"

    @property
    def folder(self) -> Path | None:
        """The exported folder, which holds the run as well."""
        return self.path

    def summary(self) -> dict[str, Any]:
        """What a reader wants first, as plain values; the table of candidates is left out."""
        names = ("model", "texts", "judge", "evidence", "seconds", "conventions")
        return {
            "folder": None if self.folder is None else str(self.folder),
            **{name: self.manifest.get(name) for name in names},
            "choice": self.choice.as_dict(),
            "neighbors": self.neighbors.to_dict(orient="records"),
        }

    @property
    def warnings(self) -> list[str]:
        """What you should know before you use the result."""
        return list(self.choice.warnings)

    def encode(self, texts: str | Sequence[str]) -> np.ndarray:
        """Vectors (texts, D) of texts, or (D,) of one text. They have length 1, so inner products
        are cosine similarities."""
        return self._vectors(texts)

    def encode_query(self, texts: str | Sequence[str]) -> np.ndarray:
        """The same for what is asked: with `queries=` it is read in its own way, and `encode` is
        for documents."""
        return self._vectors(texts, asked=True)

    def _vectors(self, texts: str | Sequence[str], asked: bool = False) -> np.ndarray:
        if isinstance(texts, str):
            return self._vectors([texts], asked)[0]
        given = list(texts)
        wrong = next((text for text in given if not isinstance(text, str)), None)
        if wrong is not None:
            raise DataError(
                f"encode takes strings, and was given {type(wrong).__name__} {wrong!r:.60}."
            )
        if self._encode is None:
            self._encode, self._asks = self._from_folder()
        found = ((asked and self._asks) or self._encode)(given or ["a text"])[: len(given)]
        return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-30)

    def save(self, out: str | Path, overwrite: bool = False) -> Path:  # type: ignore[override]
        """Write the sentence-transformers folder, verified in a fresh process."""
        if self._save is None:
            raise LayerscopeError(
                f"this run was read from disk; its model is in {self.folder}. Copy that folder."
            )
        self.path = self._save(Path(out), overwrite)
        return self.path

    def push(self, repo: str, public: bool = False) -> str:
        """Send the saved folder to the hub as `user/name`, private unless `public`, without your
        texts; returns its address.

        better.push("me/better-smollm2")
        """
        if self.folder is None:
            raise LayerscopeError(
                "nothing is saved that could be pushed. Save it first: better.save(FOLDER)."
            )
        from layerscope.exporting.pushing import pack, push

        return push(pack(self.folder, repo, public))

    def plot(self) -> Figure:
        """The choice as a picture: every layer under every readout by its score, and the score
        against what it costs."""
        return view("improve", "plot")(self)

    def search(self, query: str, texts: Sequence[str] | None = None, top: int = 5) -> pd.DataFrame:
        """The texts nearest to a question, with their cosine; without `texts`, among those that the
        choice was judged on."""
        words = self._judged_on()["texts"] if texts is None else list(texts)
        cosines = (
            unit(self._judged_on()["after"]) if texts is None else self.encode(words)
        ) @ self.encode_query(query)
        best = np.argsort(-cosines, kind="stable")[:top]
        rows = [
            {"rank": rank, "cosine": float(cosines[i]), "text": words[i]}
            for rank, i in enumerate(best, 1)
        ]
        return pd.DataFrame(rows)

    def about(self) -> pd.DataFrame:
        """What the texts are about, today and better: each text's cluster, named by its words, and
        its nearest other text.

        `cosine` is low for outliers and 1 for duplicates; the lowest comes first. The folder has it
        as `about.csv`.
        """
        if self.sampled is None and self.has_about and self.path is not None:
            return RunFolder(self.path).read_table("about")
        given = self._judged_on()
        table = pd.DataFrame({"text": given["texts"]})
        for vectors, which in ((unit(given["before"]), "_today"), (unit(given["after"]), "")):
            table[f"cluster{which}"] = group_names(clusters(vectors), given["texts"])
            near, cosines = np.empty(len(vectors), dtype=int), np.empty(len(vectors))
            for start in range(0, len(vectors), _ROWS):  # not all pairs at once
                some = vectors[start : start + _ROWS] @ vectors.T
                some[np.arange(len(some)), np.arange(start, start + len(some))] = -np.inf
                near[start : start + _ROWS], cosines[start : start + _ROWS] = (
                    some.argmax(1),
                    some.max(1),
                )
            table[f"nearest{which}"] = [given["texts"][i] for i in near]
            table[f"cosine{which}"] = cosines
        return table.sort_values("cosine", ignore_index=True)

    @property
    def has_about(self) -> bool:
        """Whether `about` has something to say: texts may be left out."""
        return self.sampled is not None or (
            self.path is not None and (self.path / "about.parquet").is_file()
        )

    def write(self, folder: RunFolder) -> None:
        """The tables; what the texts are about is one of them, unless the folder may hold no
        texts."""
        super().write(folder)
        if self.sampled is not None and len(self.neighbors):
            folder.write_table("about", self.about())

    def _judged_on(self) -> dict[str, Any]:
        if self.sampled is None:
            raise LayerscopeError(
                "this run was read from disk and holds no texts. Give them, or run improve again."
            )
        return self.sampled

    def _from_folder(self) -> tuple[Encoder, Encoder]:
        """How the folder encodes documents, and queries."""
        if self.folder is None:
            raise LayerscopeError(
                "this run has no exported folder to encode with. Run improve again with out=FOLDER."
            )
        with quiet():
            loaded = load_folder(self.folder)

        def vectors(encode: Callable[..., Any]) -> Encoder:
            return lambda texts: np.asarray(
                encode(list(texts), show_progress_bar=False), dtype=np.float32
            )

        return vectors(loaded.encode_document), vectors(loaded.encode_query)

    def __repr__(self) -> str:
        where = "not saved" if self.folder is None else f"in {self.folder}"
        return f"<Improved {self.name}: layer {self.choice.layer} of {self.choice.layers}, {self.choice.readout}; {where}>"

    def __str__(self) -> str:
        return view("improve", "text")(self)
