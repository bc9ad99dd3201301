"""The texts of a search: queries, documents, and the pairs of them that belong together.

Queries and documents are files, texts or tables. Pairs name both sides by the texts themselves or
by an `id` beside them, as in the files of BEIR and TREC: `query,document` or `query-id,corpus-id`,
with a `score` where some are more relevant than others.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.data.corpus import TextStream
from layerscope.data.readers import read_rows
from layerscope.data.records import is_missing
from layerscope.data.sampling import draw_texts
from layerscope.errors import DataError, one_line
from layerscope.improving.sample import Sample

LEAST = 20
"""Queries, and documents, with which a choice can be made: half of the queries choose, the others
tell the gain."""

LEAST_PAIRED = 10
"""Queries with pairs, if there are any: half of them tell the gain, and fewer would tell
nothing."""

TOP = 10
"""Documents that a reader looks at: recall@10 and nDCG@10."""

_IDS = {
    "query": ("id", "qid", "query_id"),
    "document": ("id", "pid", "docid", "doc_id", "document_id", "corpus_id"),
}
_QUERY = ("query", "query_id", "qid", "question")
_DOCUMENT = (
    "document",
    "document_id",
    "doc",
    "doc_id",
    "docid",
    "corpus_id",
    "pid",
    "passage",
    "answer",
)
_SCORE = ("score", "relevance", "label", "grade")

Pairs = str | Path | Iterable[Sequence[Any]]
"""A file of pairs, or (query, document) and (query, document, score) themselves."""


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

    def documents_as_sample(self) -> Sample:
        """Return the documents as texts that are judged on."""
        facts = self.facts["documents"]
        return Sample(
            tuple(self.documents), facts["distinct"], facts["name"], {**facts, "asked": self.facts}
        )

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
        first = np.concatenate([group[0::2] for group in groups])
        second = np.concatenate([group[1::2] for group in groups])
        return np.sort(first), np.sort(second)


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
    streams = {
        "queries": TextStream(queries, encoding=encoding),
        "documents": TextStream(documents, column=column, encoding=encoding),
    }
    grades = None if pairs is None else _read_pairs(pairs)
    draws = {
        "queries": draw_texts(streams["queries"], max(LEAST, sample // 2), seed),
        "documents": draw_texts(streams["documents"], sample, seed),
    }
    for kind, draw in draws.items():
        if draw.distinct < LEAST:
            raise DataError(
                f"{streams[kind].name} has {draw.distinct} of the {LEAST} different {kind} that "
                "are needed."
            )
    if draws["queries"].fingerprint == draws["documents"].fingerprint:
        raise DataError(
            "queries and documents are the same texts. To compare texts with each other, leave out "
            "queries=."
        )
    query_texts = list(draws["queries"].texts)
    document_texts = list(draws["documents"].texts)
    answers: Answers = {}
    if grades is not None:
        answers = _resolve(streams["queries"], streams["documents"], grades)
        ordered = draw_texts(answers, len(answers), seed).texts
        query_texts = list(dict.fromkeys([*ordered, *query_texts]))[: len(query_texts)]
        query_texts, named = _select(query_texts, answers, max(sample, LEAST))
        _check_pairs(query_texts, answers, sample)
        count = max(len(document_texts), len(named))
        document_texts = list(dict.fromkeys([*named, *document_texts]))[:count]
    rows = {text: i for i, text in enumerate(query_texts)}
    columns = {text: i for i, text in enumerate(document_texts)}
    relevant = np.zeros((len(rows), len(columns)), dtype=np.float32)
    for query in (text for text in query_texts if text in answers):
        for document, grade in answers[query].items():
            relevant[rows[query], columns[document]] = grade
    facts: dict[str, Any] = {
        kind: {
            "name": streams[kind].name,
            "distinct": draws[kind].distinct,
            "read": count,
            "fingerprint": draws[kind].fingerprint,
            "source": streams[kind].source,
        }
        for kind, count in (("queries", len(rows)), ("documents", len(columns)))
    }
    digest = None
    if grades is not None:
        digest = hashlib.sha256(repr(sorted(grades)).encode()).hexdigest()
    facts["pairs"] = {"fingerprint": digest, "used": int(np.count_nonzero(relevant))}
    return SearchTexts(query_texts, document_texts, relevant, facts)


Answers = dict[str, dict[str, float]]
"""The documents that belong to each query, with their grades."""

Grade = tuple[str, str, float]


def _resolve(queries: TextStream, documents: TextStream, grades: Sequence[Grade]) -> Answers:
    """Return the pairs by their texts."""
    query_by_name = _named(queries, {query for query, _, _ in grades}, "query")
    document_by_name = _named(documents, {document for _, document, _ in grades}, "document")
    answers: Answers = {}
    for query, document, grade in grades:
        of_query = answers.setdefault(query_by_name[query], {})
        of_query[document_by_name[document]] = grade
    return answers


def _select(queries: Sequence[str], answers: Answers, most: int) -> tuple[list[str], list[str]]:
    """Return queries without those whose documents no longer fit, and the documents named."""
    chosen = []
    named: dict[str, None] = {}
    for query in queries:
        more = dict.fromkeys(answers.get(query, {}))
        if more and named and len(named | more) > most:
            continue
        named |= more
        chosen.append(query)
    return chosen, list(named)


def _check_pairs(queries: Sequence[str], answers: Answers, sample: int) -> None:
    count = sum(query in answers for query in queries)
    if count < LEAST_PAIRED or len(queries) < LEAST:
        raise DataError(
            f"the pairs are of {len(answers)} different queries; at least {LEAST_PAIRED} are "
            f"needed whose documents fit into sample={sample} ({count} do), and {LEAST} queries in "
            f"all ({len(queries)} are left). Or leave out pairs=."
        )


def _named(stream: TextStream, names: set[str], kind: str) -> dict[str, str]:
    """Return the text that each name stands for: an id beside it, or the text itself."""
    texts: dict[str, str] = {}
    for row in stream.rows():
        text = str(row.text)
        ids = [
            str(value)
            for column, value in row.others.items()
            if column.strip("_ ").lower().replace("-", "_") in _IDS[kind]
        ]
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


def _read_pairs(pairs: Pairs) -> list[Grade]:
    """Return the pairs that belong together, with grades above 0."""
    source = str(pairs) if isinstance(pairs, str | Path) else "pairs="
    rows = _rows_of(Path(pairs)) if isinstance(pairs, str | Path) else list(map(list, pairs))
    grades = []
    for row in rows:
        try:
            query = str(row[0]).strip()
            document = str(row[1]).strip()
            grade = float(row[2]) if len(row) > 2 else 1.0
        except (LookupError, TypeError, ValueError):
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
    by_name = {name.strip().lower().replace("-", "_"): name for name in reversed(columns)}
    chosen = [
        next((by_name[name] for name in names if name in by_name), None)
        for names in (_QUERY, _DOCUMENT, _SCORE)
    ]
    if chosen[0] is None or chosen[1] is None:
        raise DataError(
            f"{file} needs the columns query and document (texts or ids), not "
            f"{', '.join(columns[:8])}."
        )
    return [[row.get(name) for name in chosen if name is not None] for _, row in rows]


def ranking_scores(
    similarity: np.ndarray, relevant: np.ndarray, top: int = TOP
) -> tuple[np.ndarray, np.ndarray]:
    """Return nDCG and recall of the `top` documents for each query; NaN without a relevant one.

    They are those of trec_eval and mteb.

    >>> found = ranking_scores(np.array([[0.9, 0.5, 0.1]]), np.array([[0, 1, 0]]), top=2)
    >>> [round(float(one[0]), 3) for one in found]  # the second of two: 1 / log2(3), and found
    [0.631, 1.0]
    """
    top = min(top, relevant.shape[1])
    order = np.argsort(-similarity, axis=1, kind="stable")[:, :top]
    discounts = 1 / np.log2(np.arange(top) + 2)
    gained = np.take_along_axis(relevant, order, axis=1)
    ideal = -np.sort(-relevant, axis=1)[:, :top] @ discounts
    with np.errstate(invalid="ignore", divide="ignore"):
        return (gained @ discounts) / ideal, (gained > 0).sum(1) / (relevant > 0).sum(1)
