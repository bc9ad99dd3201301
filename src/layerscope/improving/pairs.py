"""What a search is about: queries, documents, the pairs of them that belong together, and how well
rankings find those.

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
from layerscope.data.readers import is_missing, read_rows
from layerscope.data.sampling import draw_texts
from layerscope.errors import DataError, InvalidValueError, one_line
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
class Asked:
    """Queries and documents that are read; `relevant` (queries, documents) says how much a document
    answers a query."""

    queries: list[str]
    documents: list[str]
    relevant: np.ndarray
    facts: dict[str, Any]

    @property
    def key(self) -> str:
        """What tells it from others."""
        return hashlib.sha256(
            "|".join(str(one["fingerprint"]) for one in self.facts.values()).encode()
        ).hexdigest()

    def documents_as_sample(self) -> Sample:
        """The documents as texts that are judged on."""
        facts = self.facts["documents"]
        return Sample(
            tuple(self.documents), facts["distinct"], facts["name"], {**facts, "asked": self.facts}
        )

    @property
    def paired(self) -> np.ndarray:
        """Which queries have a document that belongs to them (queries,)."""
        return np.asarray((self.relevant > 0).any(1))

    def halves(self, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Indices of the queries used to choose and of those used to report the gain; half of the
        paired ones in each."""
        order = np.random.default_rng(seed).permutation(len(self.queries))
        parts = [order[self.paired[order]], order[~self.paired[order]]]
        return tuple(np.sort(np.concatenate([part[i::2] for part in parts])) for i in (0, 1))  # type: ignore[return-value]


def check_search(queries: Any, **others: Any) -> None:
    """Refuse what does not go together with queries."""
    if queries is None:
        raise InvalidValueError(
            "pairs= say which documents answer which queries: give queries= too."
        )
    given = next(
        (name for name, value in others.items() if value not in (None, False, "auto")), None
    )
    if given is not None:
        raise InvalidValueError(
            f"{given}= is not for a search. With queries= give pairs=, or nothing."
        )


def read_asked(
    queries: Any, documents: Any, pairs: Pairs | None = None, *, column: str | None = None, encoding: str | None = None,
    sample: int = 1000, seed: int = 0, offline: bool = False,
) -> Asked:  # fmt: skip
    """About `sample` documents and at most half as many queries, at random; a query with pairs
    comes with all its documents."""
    asking, found = (
        TextStream(given, column=named, offline=offline, encoding=encoding)
        for given, named in ((queries, None), (documents, column))
    )
    known = None if pairs is None else _read_pairs(pairs)
    drawn, others = (
        draw_texts(asking, max(LEAST, sample // 2), seed),
        draw_texts(found, sample, seed),
    )
    for kind, stream, draw in (("queries", asking, drawn), ("documents", found, others)):
        if draw.distinct < LEAST:
            raise DataError(
                f"{stream.name} has {draw.distinct} of the {LEAST} different {kind} that are needed."
            )
    if drawn.fingerprint == others.fingerprint:
        raise DataError(
            "queries and documents are the same texts. To compare texts with each other, leave out queries=."
        )
    words, texts, grades = (
        list(drawn.texts),
        dict.fromkeys(others.texts),
        dict[tuple[str, str], float](),
    )
    if known is not None:
        names = (
            _named(asking, {one for one, _, _ in known}, "query"),
            _named(found, {one for _, one, _ in known}, "document"),
        )
        of: dict[str, dict[str, float]] = {}
        for one, other, grade in known:
            of.setdefault(names[0][one], {})[names[1][other]] = grade
        words = list(
            dict.fromkeys([*(text for text in draw_texts(of, len(of), seed).texts), *words])
        )[: len(words)]
        named: dict[str, None] = {}
        for text in [text for text in words if text in of]:
            if (
                len(named | dict.fromkeys(of[text])) > max(sample, LEAST) and named
            ):  # its documents are too many to be read
                words.remove(text)
                continue
            named |= dict.fromkeys(of[text])
            grades |= {(text, other): grade for other, grade in of[text].items()}
        fit = sum(text in of for text in words)
        if fit < LEAST_PAIRED or len(words) < LEAST:
            raise DataError(
                f"the pairs are of {len(of)} different queries; at least {LEAST_PAIRED} are needed whose documents fit into "
                f"sample={sample} ({fit} do), and {LEAST} queries in all ({len(words)} are left). Or leave out pairs=."
            )
        texts = dict.fromkeys(list(named | texts)[: max(len(texts), len(named))])
    at = [{text: i for i, text in enumerate(side)} for side in (words, texts)]
    relevant = np.zeros((len(words), len(texts)), dtype=np.float32)
    for (one, other), grade in grades.items():
        relevant[at[0][one], at[1][other]] = grade
    facts = {
        kind: {
            "name": on.name,
            "distinct": draw.distinct,
            "read": count,
            "fingerprint": draw.fingerprint,
            "source": on.source,
        }
        for kind, on, draw, count in (
            ("queries", asking, drawn, len(words)),
            ("documents", found, others, len(texts)),
        )
    }
    told = None if known is None else hashlib.sha256(repr(sorted(known)).encode()).hexdigest()
    return Asked(
        words, list(texts), relevant, {**facts, "pairs": {"fingerprint": told, "used": len(grades)}}
    )


def _named(stream: TextStream, names: set[str], kind: str) -> dict[str, str]:
    """The text that each name stands for: an id beside it, or the text itself."""
    found: dict[str, str] = {}
    for row in stream.rows():
        ids = [
            str(value)
            for name, value in row.others.items()
            if name.strip("_ ").lower().replace("-", "_") in _IDS[kind]
        ]
        text = str(row.text)
        for name in (*ids, text, text.strip()):
            if name in names and found.setdefault(name, text).strip() != text.strip():
                raise DataError(
                    f"{one_line(repr(name[:60]))} names two different {kind} texts in {stream.name}."
                )
    unknown = sorted(names - set(found))
    if unknown:
        shown = one_line(repr(unknown[0][:60]))
        raise DataError(
            f"the pairs name {len(unknown)} {kind} texts or ids that {stream.name} does not have, such as {shown}. "
            "Name texts as they are there, or by its column `id`."
        )
    return found


def _read_pairs(pairs: Pairs) -> list[tuple[str, str, float]]:
    where = str(pairs) if isinstance(pairs, str | Path) else "pairs="
    rows: list[Sequence[Any]]
    if isinstance(pairs, str | Path):
        columns, read = read_rows(Path(pairs))
        places = {name.strip().lower().replace("-", "_"): name for name in reversed(columns)}
        chosen = [
            next((places[name] for name in some if name in places), None)
            for some in (_QUERY, _DOCUMENT, _SCORE)
        ]
        if chosen[0] is None or chosen[1] is None:
            raise DataError(
                f"{where} needs the columns query and document (texts or ids), not {', '.join(columns[:8])}."
            )
        rows = [[row.get(name) for name in chosen if name is not None] for _, row in read]
    else:
        rows = [list(pair) for pair in pairs]
    found = []
    for row in rows:
        try:
            one, other, grade = (
                str(row[0]).strip(),
                str(row[1]).strip(),
                float(row[2]) if len(row) > 2 else 1.0,
            )
        except (LookupError, TypeError, ValueError):
            raise DataError(
                f"{where}: {one_line(repr(row)[:60])} is no query, document and (if any) score."
            ) from None
        if not any(is_missing(cell) for cell in row[:2]) and math.isfinite(grade) and grade > 0:
            found.append((one, other, grade))
    if not found:
        raise DataError(f"{where} holds no pair of a query and a document that belong together.")
    return found


def ranking_scores(
    similarity: np.ndarray, relevant: np.ndarray, top: int = TOP
) -> tuple[np.ndarray, np.ndarray]:
    """nDCG and recall of the `top` documents for each query, as trec_eval and mteb compute them;
    NaN without a relevant one.

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
