"""The settings of an improvement, the checks that need no model, and the texts.

In a search, queries look for documents. Pairs say which belong together: both sides are named by
the texts themselves or by an `id` beside them, as in the files of BEIR and TREC (`query,document`
or `query-id,corpus-id`, with a `score` where some documents are more relevant than others).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.core.runs import MANIFEST
from layerscope.data.corpus import Draw, TextStream, draw_texts
from layerscope.data.readers import read_rows
from layerscope.data.records import is_missing
from layerscope.errors import DataError, InvalidValueError, UnknownNameError, one_line
from layerscope.exporting.publishing import check_free
from layerscope.exporting.servers import check_names
from layerscope.extras import require
from layerscope.store import RunFolder
from layerscope.store.folder import config_key, is_complete
from layerscope.training.distill import check_settings

LEAST_TEXTS = 20
"""Texts, queries and documents with which a choice can be made."""

LEAST_PAIRED = 10
"""Queries with pairs, if there are any: half of them tell the gain, and fewer would tell
nothing."""

MORE = 5
"""The sizes of a sample that are drawn, so that a fit can take more texts than are judged."""

MOST_FITTED = 50_000
"""The most texts that are fitted on: their vectors are held in memory, and more add little."""

CENTER_ON = ("auto", "all", "sample")

Pairs = str | Path | Iterable[Sequence[Any]]
"""A file of pairs, or (query, document) and (query, document, score) themselves."""

Answers = dict[str, dict[str, float]]
"""The documents that belong to each query, with their grades."""


@dataclass(frozen=True)
class ImproveRequest:
    """The settings of one improvement.

    `templates` are names, the baseline's `plain` first. `judge` is a model, its name, `none`, or an
    object with a method `judge`. `train` has settings of the trainer; None: nothing is trained.
    """

    templates: tuple[str, ...]
    judge: Any
    labels: str | Path | None
    budget: float | None
    keep: float | None
    servers: tuple[str, ...]
    sample: int
    max_length: int
    seed: int
    center_on: str
    time: float | None
    train: Mapping[str, Any] | None
    texts: bool
    out: Path | None
    overwrite: bool

    @property
    def further_texts(self) -> int:
        """Return how many texts are drawn beside the sample, for a fit on more than are judged."""
        if self.center_on == "all" or self.train is not None:
            return max(0, MOST_FITTED - self.sample)
        return (MORE - 1) * self.sample


def check_request(request: ImproveRequest) -> None:
    """Refuse a wrong setting that needs no model, before anything is read."""
    if request.budget is not None and not request.budget > 0:
        raise InvalidValueError(
            "a budget is a share of the baseline's computation per text above 0, such as 0.3, not "
            f"{request.budget:g}."
        )
    if request.sample < 1:
        raise InvalidValueError(f"a sample has at least one text, not {request.sample}.")
    if request.center_on not in CENTER_ON:
        raise UnknownNameError("choice of the texts to center on", request.center_on, CENTER_ON)
    check_names(request.servers)
    if request.time is not None and not request.time > 0:
        raise InvalidValueError(f"time= is minutes, more than 0, not {request.time:g}.")
    if request.train is not None:
        require("train")
        check_settings(request.train)
    elif request.time is not None:
        raise InvalidValueError("time= is the minutes of a training: give train= too.")
    if request.out is not None and not (request.out / MANIFEST).is_file():
        check_free(request.out, request.overwrite)  # a run that is there may be this very one


def check_search(request: ImproveRequest) -> None:
    """Refuse what a search with a language model cannot do."""
    if request.servers:
        raise InvalidValueError(
            "queries are read in their own way by sentence-transformers alone: leave out servers=."
        )
    options = {"labels": request.labels, "train": request.train}
    options["center_on"] = None if request.center_on == "auto" else request.center_on
    for name, value in options.items():
        if value is not None:
            raise InvalidValueError(
                f"{name}= is not for a search. With queries= give pairs=, or nothing."
            )


def is_done(request: ImproveRequest, config: dict[str, Any]) -> bool:
    """Return whether `out` holds this very run, finished; refuse a folder that is in the way."""
    if request.out is None:
        return False
    manifest = RunFolder(request.out).manifest() if request.out.is_dir() else None
    if manifest is not None and is_complete(manifest) and not request.overwrite:
        stored = config_key(manifest.get("config") or {})
        if stored == config_key(config):
            return True
    check_free(request.out, request.overwrite)
    return False


@dataclass(frozen=True)
class Sample:
    """Distinct texts drawn at random from `total`; `further` were drawn likewise, for a fit.

    `facts` are for the manifest. In a search the texts are the documents.
    """

    texts: tuple[str, ...]
    total: int
    name: str
    facts: dict[str, Any]
    further: tuple[str, ...] = ()

    def count_words(self, count: int) -> str:
        """Return in words how many of the texts were fitted on."""
        if count == self.total:
            return f"all {count:,} texts of {self.name}"
        return f"{count:,} of {self.total:,} texts (drawn at random) of {self.name}"

    def first(self, count: int) -> list[str]:
        """Return the first texts: those of the sample, and further ones."""
        return [*self.texts, *self.further][:count]


def draw_sample(
    texts: Any,
    *,
    column: str | None = None,
    encoding: str | None = None,
    size: int = 1000,
    further: int = 0,
    seed: int = 0,
) -> Sample:
    """Draw at most `size` distinct texts, and `further` ones for a fit.

    The draw depends on the seed and on which texts there are. Texts are read in a stream, so that a
    file of millions needs little memory.
    """
    stream = TextStream(texts, column=column, encoding=encoding)
    drawn = draw_texts(stream, size + further, seed)
    if drawn.distinct < LEAST_TEXTS:
        plural = "s" if drawn.distinct > 1 else ""
        copies = ""
        if drawn.distinct < drawn.read:
            copies = f" ({drawn.read} texts, of which {drawn.distinct} differ)"
        raise DataError(
            f"{stream.name} holds {drawn.distinct} different text{plural}{copies}; at least "
            f"{LEAST_TEXTS} are needed to see which are neighbors, and some hundreds are better. "
            "To read a layer of your own choice, use `layerscope export`."
        )
    facts = {"read": drawn.read, "dropped": stream.dropped, **_facts(stream, drawn)}
    return Sample(drawn.texts[:size], drawn.distinct, stream.name, facts, drawn.texts[size:])


def _facts(stream: TextStream, drawn: Draw) -> dict[str, Any]:
    return {
        "name": stream.name,
        "distinct": drawn.distinct,
        "source": stream.source,
        "fingerprint": drawn.fingerprint,
    }


@dataclass(frozen=True)
class SearchTexts:
    """Queries and documents; `relevant` (queries, documents) grades how a document answers."""

    queries: list[str]
    documents: list[str]
    relevant: np.ndarray
    facts: dict[str, Any]

    @property
    def key(self) -> str:
        """Return a digest of both sides and the pairs."""
        prints = "|".join(str(facts["fingerprint"]) for facts in self.facts.values())
        return hashlib.sha256(prints.encode()).hexdigest()

    @property
    def sample(self) -> Sample:
        """Return the documents as texts that are judged on."""
        facts = {**self.facts["documents"], "search": self.facts}
        return Sample(tuple(self.documents), facts["distinct"], facts["name"], facts)

    @property
    def paired(self) -> np.ndarray:
        """Return which queries have a document that belongs to them (queries,)."""
        return np.asarray((self.relevant > 0).any(1))

    def halves(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the places of the queries that choose, and of those that report the gain.

        Half of the queries with pairs are in each.
        """
        order = np.random.default_rng(seed).permutation(len(self.queries))
        groups = [order[self.paired[order]], order[~self.paired[order]]]
        choosing = np.concatenate([group[0::2] for group in groups])
        checking = np.concatenate([group[1::2] for group in groups])
        return np.sort(choosing), np.sort(checking)


def read_search(
    queries: Any,
    documents: Any,
    pairs: Pairs | None = None,
    *,
    column: str | None = None,
    encoding: str | None = None,
    sample: int = 1000,
    seed: int = 0,
) -> SearchTexts:
    """Draw about `sample` documents and at most half as many queries.

    A query with pairs comes with all its documents.
    """
    query_stream = TextStream(queries, encoding=encoding)
    document_stream = TextStream(documents, column=column, encoding=encoding)
    query_draw = draw_texts(query_stream, max(LEAST_TEXTS, sample // 2), seed)
    document_draw = draw_texts(document_stream, sample, seed)
    sides = {"queries": (query_stream, query_draw), "documents": (document_stream, document_draw)}
    for kind, (stream, draw) in sides.items():
        if draw.distinct < LEAST_TEXTS:
            raise DataError(
                f"{stream.name} has {draw.distinct} of the {LEAST_TEXTS} different {kind} that are "
                "needed."
            )
    if query_draw.fingerprint == document_draw.fingerprint:
        raise DataError(
            "queries and documents are the same texts. To compare texts with each other, leave out "
            "queries=."
        )
    query_texts = list(query_draw.texts)
    document_texts = list(document_draw.texts)
    answers: Answers = {}
    digest = None
    if pairs is not None:
        grades = _read_pairs(pairs)
        digest = hashlib.sha256(repr(sorted(grades)).encode()).hexdigest()
        query_by_name = _named(query_stream, {query for query, _, _ in grades}, "query")
        document_by_name = _named(document_stream, {name for _, name, _ in grades}, "document")
        for query, document, grade in grades:
            answers.setdefault(query_by_name[query], {})[document_by_name[document]] = grade
        ordered = draw_texts(answers, len(answers), seed).texts
        query_texts = list(dict.fromkeys([*ordered, *query_texts]))[: len(query_texts)]
        query_texts, named = _select(query_texts, answers, max(sample, LEAST_TEXTS))
        count = max(len(document_texts), len(named))
        document_texts = list(dict.fromkeys([*named, *document_texts]))[:count]
    columns = {text: i for i, text in enumerate(document_texts)}
    relevant = np.zeros((len(query_texts), len(columns)), dtype=np.float32)
    for row, query in enumerate(query_texts):
        for document, grade in answers.get(query, {}).items():
            relevant[row, columns[document]] = grade
    facts: dict[str, Any] = {kind: _facts(*side) for kind, side in sides.items()}
    facts["queries"]["read"] = len(query_texts)
    facts["documents"]["read"] = len(document_texts)
    facts["pairs"] = {"fingerprint": digest, "used": int(np.count_nonzero(relevant))}
    return SearchTexts(query_texts, document_texts, relevant, facts)


_IDS = {
    "query": ("id", "qid", "query_id"),
    "document": ("id", "pid", "docid", "doc_id", "document_id", "corpus_id"),
}
_COLUMNS = (
    (*_IDS["query"][1:], "query", "question"),
    (*_IDS["document"][1:], "document", "doc", "passage", "answer"),
    ("score", "relevance", "label"),
)
"""The columns of a file of pairs: of queries, documents and scores."""


def _named(stream: TextStream, names: set[str], kind: str) -> dict[str, str]:
    """Return the text that each name stands for: an id beside it, or the text itself."""
    texts: dict[str, str] = {}
    for row in stream.rows():
        text = str(row.text)
        ids = [str(value) for name, value in row.others.items() if _plain(name) in _IDS[kind]]
        for name in (*ids, text, text.strip()):
            if name in names and texts.setdefault(name, text).strip() != text.strip():
                raise DataError(
                    f"{one_line(repr(name[:60]))} names two different {kind} texts in "
                    f"{stream.name}."
                )
    unknown = sorted(names - set(texts))
    if unknown:
        raise DataError(
            f"the pairs name {len(unknown)} {kind} texts or ids that {stream.name} does not have, "
            f"such as {one_line(repr(unknown[0][:60]))}. Name texts as they are there, or by its "
            "column `id`."
        )
    return texts


def _plain(column: str) -> str:
    return column.strip("_ ").lower().replace("-", "_")


def _select(queries: Sequence[str], answers: Answers, limit: int) -> tuple[list[str], list[str]]:
    """Return the queries all of whose documents fit into the limit, and these documents."""
    chosen = []
    named: dict[str, None] = {}
    for query in queries:
        documents = dict.fromkeys(answers.get(query, {}))
        if documents and named and len(named | documents) > limit:
            continue
        named |= documents
        chosen.append(query)
    count = sum(query in answers for query in chosen)
    if count < LEAST_PAIRED or len(chosen) < LEAST_TEXTS:
        raise DataError(
            f"the pairs are of {len(answers)} different queries; at least {LEAST_PAIRED} are "
            f"needed whose documents fit into sample={limit} ({count} do), and {LEAST_TEXTS} "
            f"queries in all ({len(chosen)} are left). Or leave out pairs=."
        )
    return chosen, list(named)


def _read_pairs(pairs: Pairs) -> list[tuple[str, str, float]]:
    """Return the pairs that belong together, with grades above 0."""
    source = str(pairs) if isinstance(pairs, str | Path) else "pairs="
    rows = _rows_of(Path(pairs)) if isinstance(pairs, str | Path) else pairs
    grades = []
    for row in rows:
        try:
            query, document = (str(cell).strip() for cell in row[:2])
            grade = float(row[2]) if len(row) > 2 else 1.0
        except (TypeError, ValueError):
            raise DataError(
                f"{source}: {one_line(repr(row)[:60])} is no query, document and (if any) score."
            ) from None
        is_whole = not any(is_missing(cell) for cell in row[:2])
        if is_whole and math.isfinite(grade) and grade > 0:
            grades.append((query, document, grade))
    if not grades:
        raise DataError(f"{source} holds no pair of a query and a document that belong together.")
    return grades


def _rows_of(file: Path) -> list[list[Any]]:
    """Return the rows of a file of pairs: query, document and, if there is one, score."""
    columns, rows = read_rows(file)
    chosen = [
        next((column for column in columns if _plain(column) in names), None) for names in _COLUMNS
    ]
    if chosen[0] is None or chosen[1] is None:
        raise DataError(
            f"{file} needs the columns query and document (texts or ids), not "
            f"{', '.join(columns[:8])}."
        )
    return [[row.get(name) for name in chosen if name is not None] for _, row in rows]
