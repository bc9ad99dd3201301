"""A model for tests: the same text always has the same embedding, and shared words make texts
similar."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ModelMeta

from tests.shared import shared_folder

WIDTH = 24


class WordHashEncoder(AbsEncoder):
    """Embeds a text as the sum of one fixed random vector per word; keeps every text it was asked
    for."""

    def __init__(self) -> None:
        overwrites = {
            "name": "tests/word-hash",
            "revision": "1",
            "experiment_kwargs": {"layer": 3, "pooling": "mean"},
        }
        self.mteb_model_meta = ModelMeta.create_empty(overwrites=overwrites)
        self.seen: list[tuple[str, str]] = []

    def encode(
        self, inputs: Any, *, task_metadata: Any, hf_split: str, hf_subset: str, **_: Any
    ) -> np.ndarray:
        texts = [text for batch in inputs for text in batch["text"]]
        self.seen += [(hf_split, text) for text in texts]
        return np.stack([self._embed(text) for text in texts])

    def _embed(self, text: str) -> np.ndarray:
        vectors = [np.full(WIDTH, 1e-3), *(_word_vector(word) for word in text.lower().split())]
        return np.sum(vectors, axis=0).astype(np.float32)


@cache
def _word_vector(word: str) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4])
    return np.random.default_rng(seed).standard_normal(WIDTH)


def score(task: Any, model: WordHashEncoder | None = None, **options: Any) -> dict[str, Any]:
    """mteb's scores of one loaded task, of its first split and subset."""
    import mteb

    result = mteb.evaluate(
        model or WordHashEncoder(),
        task,
        cache=None,
        co2_tracker=False,
        show_progress_bar=False,
        **options,
    )
    scores = result.task_results[0].scores
    return next(iter(scores.values()))[0]


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """A `.jsonl` or `.jsonl.gz` file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()) if path.name.endswith(".gz") else text.encode())
    return path


def shared_data() -> Path:
    """The folder of real data beside the repository, or a skip."""
    return shared_folder("data", "mteb")
