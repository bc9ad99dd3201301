"""Fifty news texts and how similar people find each pair."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

from layerscope.data.catalogue import corpora
from layerscope.data.catalogue import entry as corpus_entry
from layerscope.evaluation.tasks.catalogue.entry import Member, Splits, TaskEntry

_TEXTS = Member("gensim/test/test_data/lee.cor", "lee.cor", "a878f9a58f6743c32985c56c2f2f75988386216b38a4023a01fd3bcf7884d93e")
_SIMILARITY = Member(
    "gensim/test/test_data/similarities0-1.txt",
    "similarities0-1.txt",
    "23762bc6b728897144dda3d324a2c032dc1e059e1009806226d64b6dd123ed79",
)


def read(folder: Path) -> Splits:
    """One text per line; the matrix is filled above its diagonal."""
    texts = (folder / _TEXTS.filename).read_text(encoding="latin-1").rstrip("\n").split("\n")
    rows = (folder / _SIMILARITY.filename).read_text(encoding="ascii").splitlines()
    matrix = [[float(value) for value in row.split()] for row in rows if row.strip()]
    pairs = combinations(range(len(texts)), 2)
    return {"test": [{"sentence1": texts[i], "sentence2": texts[j], "score": matrix[i][j]} for i, j in pairs]}


ENTRY = TaskEntry(
    name="LeeSimilarity",
    task_type="STS",
    summary="1,225 pairs of 50 English news texts with human similarity from 0 to 1",
    licence="the texts are the broadcaster's, collected for research; carried as test data in gensim (LGPL-2.1)",
    citation=corpora()["lee"].citation,
    package=corpus_entry("lee").origin.package,  # type: ignore[union-attr]
    files=(_TEXTS, _SIMILARITY),
    read=read,
    attributes={"min_score": 0, "max_score": 1},
)
