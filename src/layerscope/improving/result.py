"""The result of `improve`: the choice, its evidence, and a model that encodes at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pandas as pd

from layerscope.choose import Candidate, Decision, Scores
from layerscope.choose.choice import Choice
from layerscope.core.heads import unit
from layerscope.core.identity import LAYER
from layerscope.core.identity import Reading as ReadingConventions
from layerscope.core.readout import describe_readout
from layerscope.core.runs import finished_manifest, view
from layerscope.core.sites import site_of
from layerscope.core.statistics import INTERVAL
from layerscope.data.corpus import columns_beside
from layerscope.errors import DataError, LayerscopeError
from layerscope.exporting.card import license_of
from layerscope.exporting.draft import ExportRequest, Side, verification_texts
from layerscope.exporting.formats import parse_formats
from layerscope.exporting.job import write_export
from layerscope.exporting.pipeline import load_folder
from layerscope.exporting.publishing import pack, push
from layerscope.improving.candidates import Chosen, Run, StoredCandidates, baseline_of
from layerscope.improving.judging import Judges
from layerscope.maps import MOST, LayerMap, Vectors, make_map
from layerscope.models.settings import quiet
from layerscope.store import RunFolder, StoredRun
from layerscope.store.folder import config_key
from layerscope.version import VERSION

if TYPE_CHECKING:
    from layerscope.core.charts import Figure

SHOWN = 5
NEAREST = 3

Range = tuple[float, float]


@dataclass(frozen=True)
class Training:
    """A student compared with the head that it began with, and with the baseline.

    `head`, `student` and `baseline` are agreements with the teacher on `checked` texts that nothing
    was fitted on. `over_head` and `over_baseline` are 95 % intervals of the student's gains.
    """

    teacher: str
    blocks: int
    steps: int
    texts: int
    seed: int
    checked: int
    head: float
    student: float
    baseline: float
    over_head: Range
    over_baseline: Range

    @property
    def is_better(self) -> bool:
        """Return whether the student clearly beats its head and the baseline."""
        return self.over_head[0] > 0 and self.over_baseline[0] > 0


@dataclass(frozen=True)
class Evidence:
    """The evidence for one choice, as the manifest of an improvement stores it.

    - `judge`, `score_name`: the sources that scored candidates, and their score, in words.
    - `before`, `after`, `interval`: the score of the baseline and of the choice, and the 95 %
      interval of the gain.
    - `near`: how many candidates score practically the same as the best.
    - `certainty`: the share of resamples that lead to the same choice.
    - `relative_cost`: computation per text, relative to the baseline's.
    - `encoder`: the judging encoder, if it was trained for embeddings.
    - `teacher`: the prompt that a head learned from.
    - `neighbors`: the shares of the right nearest neighbors that the baseline and the chosen one
      find.
    - `queries`: of a search, how many queries measured the gain; `query` is how queries are read.
    """

    judge: str
    kept_default: bool
    score_name: str = ""
    before: float = 0.0
    after: float = 0.0
    interval: Range = (0.0, 0.0)
    near: int = 0
    certainty: float | None = None
    relative_cost: float = 1.0
    encoder: str | None = None
    teacher: str | None = None
    training: Training | None = None
    neighbors: Range | None = None
    queries: int | None = None
    query: str = ""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the evidence that a manifest holds."""
        # a stranger may have added others
        recorded = {item.name: values[item.name] for item in fields(cls) if item.name in values}
        if recorded.get("training"):
            recorded["training"] = Training(**recorded["training"])
        return cls(**recorded)


COLUMNS = ["readout", "layer", "site", "score", *INTERVAL, "tied", "chosen", "cost", "eligible"]


@dataclass(frozen=True)
class Outcome:
    """A candidate that was chosen: as a choice, with the evidence for it."""

    choice: Choice
    evidence: Evidence
    candidate: Candidate


def describe(
    decision: Decision, candidates: Sequence[Candidate], scores: Scores, judges: Judges
) -> Outcome:
    """Return a decision as a choice, with what the judges' scores say of it.

    They claim nothing in points, so that the choice has no gain. The interval of the evidence holds
    for whichever candidate is chosen.
    """
    chosen = candidates[decision.chosen]
    baseline = baseline_of(candidates)
    before = float(scores.values[baseline])
    after = float(scores.values[decision.chosen])
    choice = Choice(
        chosen.layer,
        replace(chosen, query=None).readout_name,
        tied=decision.tied_layers,
        rule="improve",
        layers=candidates[baseline].layer,
        reason=decision.weak,
        abstained=bool(decision.weak),
        before=before,
        after=after,
        table=_table(decision, candidates, scores),
    )
    evidence = Evidence(
        judge=judges.name,
        kept_default=decision.chosen == baseline,
        score_name=judges.score_name,
        before=before,
        after=after,
        interval=(decision.claim.gain.low, decision.claim.gain.high),
        near=int(decision.near.sum()),
        certainty=decision.certainty,
        relative_cost=chosen.cost,
        encoder=judges.trained_encoder,
    )
    return Outcome(choice, evidence, chosen)


def _table(decision: Decision, candidates: Sequence[Candidate], scores: Scores) -> pd.DataFrame:
    """Return one row per candidate, the best first."""
    low, high = scores.interval()
    table = pd.DataFrame(
        {
            "readout": [candidate.readout_name for candidate in candidates],
            "layer": [candidate.layer for candidate in candidates],
            "site": [site_of(candidate.layer) for candidate in candidates],
            "score": scores.values,
            INTERVAL[0]: low,
            INTERVAL[1]: high,
            "tied": decision.tied,
            "chosen": np.arange(len(candidates)) == decision.chosen,
            "cost": [candidate.cost for candidate in candidates],
            "eligible": [not candidate.blocked for candidate in candidates],
        }
    )
    return table.sort_values("score", ascending=False, na_position="last", ignore_index=True)


def front(table: pd.DataFrame) -> pd.DataFrame:
    """Return the eligible candidates that none beats at the same cost or less, cheapest first."""
    table = table[table["eligible"].astype(bool)].dropna(subset=["score"])
    ordered = table.sort_values(["cost", "score"], ascending=[True, False])
    best_before = ordered["score"].shift().cummax().fillna(-np.inf)
    return ordered[ordered["score"] > best_before].reset_index(drop=True)


@dataclass(frozen=True)
class BeforeAfter:
    """Texts with their vectors (texts, D) by the baseline and by the choice."""

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


def make_manifest(run: Run, choice: Choice, evidence: Evidence, chosen: Chosen) -> dict[str, Any]:
    """Return the manifest of a finished run."""
    fitted_on = None if chosen.head is None else chosen.head.fitted_on
    centering = "none"
    if chosen.head is not None and evidence.training is None:
        centering = f"the mean over {fitted_on} is subtracted"
    # the readout names the norm
    reading = ReadingConventions(None, run.reader.max_length, run.model.anatomy.final_norm_name)
    sampled = len(run.sample.texts)
    config = run.config
    return {
        "kind": "improve",
        "key": config_key(config),
        "config": config,
        "layerscope": VERSION,
        "status": "complete",
        "model": run.model.identity,
        "texts": {**run.sample.facts, "sampled": sampled, "fitted_on": fitted_on},
        "judge": config["judge"],
        "evidence": asdict(evidence),
        "choice": choice.as_dict(),
        "conventions": {
            "layer": LAYER,
            "centering": centering,
            **reading.as_conventions(),
            "seed": run.request.seed,
        },
        "warnings": choice.warnings,
        "seconds": perf_counter() - run.started,
    }


def map_of_choice(
    run: Run,
    stored: StoredCandidates,
    baseline: Candidate,
    chosen: Candidate,
    trained: np.ndarray | None = None,
) -> LayerMap | None:
    """Return the map of the baseline and of the chosen one, where that is another.

    `trained` are the vectors of a student, which has them at its last layer alone. The sample is in
    random order, so that its first texts are a sample, too.
    """
    sample = run.sample
    texts = sample.texts[:MOST]
    layers = range(run.model.n_blocks + 1)

    def at_layers(name: str, candidate: Candidate) -> Vectors:
        items = [replace(candidate, blocks=tuple(range(layer))) for layer in layers]
        vectors = [stored.vectors(item)[: len(texts)] for item in items]
        words = describe_readout(candidate.readout_name)
        return Vectors(name, words, list(layers), candidate.layer, vectors)

    readings = [at_layers("baseline", baseline)]
    if trained is not None:
        words = "the trained blocks, through their head"
        layer = chosen.layer
        readings.append(Vectors("better", words, [layer], layer, [trained[: len(texts)]]))
    elif (chosen.readout_name, chosen.layer) != (baseline.readout_name, baseline.layer):
        readings.append(at_layers("better", chosen))
    return make_map(
        run.model.name,
        sample.name,
        run.model.n_blocks,
        readings,
        texts=texts,
        count=len(texts),
        total=sample.total,
        columns=columns_beside(sample.facts.get("source") or {}, texts),
    )


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
            if self.sampled is None:
                raise LayerscopeError(
                    "this run was read from disk and holds no texts. Give them, or run improve "
                    "again."
                )
            words = list(self.sampled.texts)
            vectors = unit(self.sampled.after)
        else:
            words = list(texts)
            vectors = self.encode(words)
        cosines = vectors @ self.encode_query(query)
        best = np.argsort(-cosines, kind="stable")[:top]
        rows = [(rank, float(cosines[i]), words[i]) for rank, i in enumerate(best, 1)]
        return pd.DataFrame(rows, columns=["rank", "cosine", "text"])

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
    head = chosen.head
    sides: tuple[Side, ...] = ()
    if chosen.query is not None:
        query = Side("query", chosen.query.readout.template, chosen.query.head)
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
