"""Reranking rows (a query, its relevant texts, the others) in the layout of mteb's retrieval tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from layerscope.errors import DataError
from layerscope.evaluation.tasks.files import Rows


def retrieval_split(rows: Rows, path: Path, split: str) -> tuple[dict[str, Any], int]:
    """One split's queries, corpus, relevant_docs and top_ranked; and how many queries had nothing to rank.

    A query without relevant or without other texts says nothing about an order, so it is left out, as mteb does. A
    query may be a list: its parts are then ranked apart, and `<query>_<part>` is the id by which mteb joins them.
    """
    from datasets import Dataset

    queries: list[dict[str, str]] = []
    corpus: list[dict[str, str]] = []
    relevant: dict[str, dict[str, int]] = {}
    ranked: dict[str, list[str]] = {}
    dropped = 0
    for number, row in enumerate(rows):
        parts, positive, negative = _checked(row, path, number + 1)
        if not (positive and negative):
            dropped += 1
            continue
        # Equal scores are ordered by id; positives come before negatives there, as in mteb's own conversion.
        texts = {f"a{number:06d}-{i:05d}": text for i, text in enumerate(positive)}
        judged = dict.fromkeys(texts, 1)
        texts |= {f"n{number:06d}-{i:05d}": text for i, text in enumerate(negative)}
        judged |= {key: 0 for key in texts if key not in judged}
        corpus += [{"id": key, "title": "", "text": text} for key, text in texts.items()]
        for part, text in enumerate(parts):
            query = f"{split}-{number:06d}_{part}"
            queries.append({"id": query, "text": text})
            relevant[query], ranked[query] = dict(judged), list(texts)
    if not queries:
        raise DataError(f"{path} holds no query that has both 'positive' and 'negative' texts.")
    data = {"queries": Dataset.from_list(queries), "corpus": Dataset.from_list(corpus)}
    return data | {"relevant_docs": relevant, "top_ranked": ranked}, dropped


def _checked(row: dict[str, Any], path: Path, number: int) -> tuple[list[str], list[str], list[str]]:
    missing = [name for name in ("query", "positive", "negative") if name not in row]
    if missing:
        raise DataError(f"{path}, row {number} has no column {missing[0]!r}; it has {', '.join(map(repr, row)) or 'none'}.")
    query = row["query"]
    lists = [query if isinstance(query, list) else [query], row["positive"], row["negative"]]
    for name, values in zip(("query", "positive", "negative"), lists, strict=True):
        if not isinstance(values, list) or not all(isinstance(text, str) for text in values):
            raise DataError(f"{path}, row {number}: {name!r} must be {'a text' if name == 'query' else 'a list of texts'}.")
    return lists[0], lists[1], lists[2]
