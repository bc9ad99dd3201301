"""The result of `improve`: the choice, its evidence, and a model that encodes at once."""

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
from layerscope.exporting.card import license_of
from layerscope.exporting.draft import ExportRequest, Side, verification_texts
from layerscope.exporting.formats import parse_formats
from layerscope.exporting.pipeline import load_folder
from layerscope.exporting.job import write_export
from layerscope.exporting.publishing import pack, push
from layerscope.improving.decision import Evidence
from layerscope.improving.reader import Chosen
from layerscope.maps import clusters, group_names
from layerscope.models.settings import quiet
from layerscope.store import RunFolder, StoredRun

if TYPE_CHECKING:
    from layerscope.core.charts import Figure

SHOWN = 5
NEAREST = 3


@dataclass(frozen=True)
class BeforeAfter:
    """Texts with their vectors (texts, D) as they are read today, and as was chosen."""

    texts: Sequence[str]
    before: np.ndarray
    after: np.ndarray


def neighbor_table(asking: BeforeAfter, among: BeforeAfter | None = None) -> pd.DataFrame:
    """Return the nearest texts of the first few, by cosine, before and after.

    The texts are a random sample. `among` are other texts to find neighbors in.
    """
    pool = among or asking
    rows = []
    for side, vectors, candidates in (
        ("before", asking.before, pool.before),
        ("after", asking.after, pool.after),
    ):
        cosines = unit(vectors)[:SHOWN] @ unit(candidates).T
        if among is None:
            np.fill_diagonal(cosines, -np.inf)
        for text, row in zip(asking.texts, cosines, strict=False):
            for rank, place in enumerate(np.argsort(-row, kind="stable")[:NEAREST], 1):
                rows.append((text, side, rank, pool.texts[place], float(row[place])))
    return pd.DataFrame(rows, columns=["text", "which", "rank", "neighbor", "cosine"])


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
        """Return the name of the model that was improved."""
        return str(self.manifest["model"]["name"])

    @property
    def name(self) -> str:
        """Return the model and the texts in words."""
        return f"{self.model} on {self.manifest['texts']['name']}"

    @property
    def folder(self) -> Path | None:
        """Return the exported folder, which holds the run as well."""
        return self.path

    @property
    def evidence(self) -> Evidence:
        """Return the scores and costs on which the choice rests."""
        return Evidence.from_dict(self.manifest["evidence"])

    @property
    def warnings(self) -> list[str]:
        """Return notes to read before the result is used."""
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
            chosen = self.chosen.query or self.chosen if is_query else self.chosen
            vectors = chosen.encode(filled)
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
        request = _export_request(self.chosen, self.card)
        formats = parse_formats(self.chosen.formats)
        write_export(request, Path(out), overwrite, self._write_run, formats)
        self.path = Path(out)
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
            cosines = vectors @ vectors.T
            np.fill_diagonal(cosines, -np.inf)
            table[f"cluster{suffix}"] = group_names(clusters(vectors), texts)
            table[f"nearest{suffix}"] = [texts[i] for i in cosines.argmax(1)]
            table[f"cosine{suffix}"] = cosines.max(1)
        return table.sort_values("cosine", ignore_index=True)

    @property
    def has_about(self) -> bool:
        """Return whether `about` has a table; a run without texts has none."""
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


def _export_request(chosen: Chosen, reason: str) -> ExportRequest:
    """Return what to export: the chosen reading of one side, or of queries and documents."""
    model = chosen.model
    length = chosen.reader.max_length
    head = None if chosen.fitted is None else chosen.fitted.head
    sides: tuple[Side, ...] = ()
    if chosen.query is not None:
        query_head = None if chosen.query.fitted is None else chosen.query.fitted.head
        query = Side("query", chosen.query.readout.template, query_head)
        sides = (query, Side("document", chosen.readout.template, head))
        head = None
    identity = model.identity
    return ExportRequest(
        model,
        chosen.layer,
        chosen.readout,
        tuple(verification_texts(brief=True)),
        max_length=length,
        # a sentence encoder that keeps its reading keeps its own scaling
        unit=not identity.get("sentence_encoder") or bool(identity.get("normalizes")),
        head=head,
        sides=sides,
        license=license_of(model, None),
        reason=reason,
    )
