"""Fifty news texts and how similar people find each pair."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

from layerscope.data.catalogue import CORPORA, GENSIM
from layerscope.evaluation.tasks.catalogue import Splits, TaskEntry, files_of

_SHA256 = {
    "lee.cor": "a878f9a58f6743c32985c56c2f2f75988386216b38a4023a01fd3bcf7884d93e",
    "similarities0-1.txt": "23762bc6b728897144dda3d324a2c032dc1e059e1009806226d64b6dd123ed79",
}


def read(folder: Path) -> Splits:
    """One text per line; the matrix is filled above its diagonal."""
    texts = (folder / "lee.cor").read_text(encoding="latin-1").rstrip("\n").split("\n")
    rows = (folder / "similarities0-1.txt").read_text(encoding="ascii").splitlines()
    matrix = [[float(value) for value in row.split()] for row in rows if row.strip()]
    pairs = combinations(range(len(texts)), 2)
    return {
        "test": [
            {"sentence1": texts[i], "sentence2": texts[j], "score": matrix[i][j]} for i, j in pairs
        ]
    }


ENTRY = TaskEntry(
    name="LeeSimilarity",
    task_type="STS",
    summary="1,225 pairs of 50 English news texts with human similarity from 0 to 1",
    license="the texts are the broadcaster's, collected for research; carried as test data in gensim (LGPL-2.1)",
    citation=CORPORA.get("lee").citation,
    origin=files_of(
        GENSIM, *((f"gensim/test/test_data/{name}", sha256) for name, sha256 in _SHA256.items())
    ),
    read=read,
    attributes={"min_score": 0, "max_score": 1},
)
