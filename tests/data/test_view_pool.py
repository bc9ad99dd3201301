"""Views made by other processes are the views made here."""

from __future__ import annotations

import subprocess
import sys

import pytest

from layerscope.data.augment import ViewPool, ViewRequest, make_views
from tests.tiny import tiny_model

TEXTS = [
    f"Layers in the middle, number {i}, often hold more — naïve \ud800 or not." for i in range(11)
]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_views_in_the_same_order(workers: int) -> None:
    with ViewPool(ViewRequest(3, 5), workers) as pool:
        assert pool.make(TEXTS) == make_views(TEXTS, 3, seed=5)
        assert pool.make(TEXTS[:1]) == make_views(TEXTS[:1], 3, seed=5)
        assert pool.make([]) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_token_ids_are_those_of_the_model(workers: int) -> None:
    model, texts = tiny_model("bert"), [text.replace("\ud800", "") for text in TEXTS]
    wanted = model.tokenize(
        [view for views in make_views(texts, 3, seed=5) for view in views], 7
    ).ids
    backend = model.tokenizer.backend_tokenizer.to_str()
    with ViewPool(ViewRequest(3, 5, tokenizer=backend, max_length=7), workers) as pool:
        assert [row.tolist() for row in pool.make_ids(texts)] == wanted


def test_a_tokenizer_may_come_after_the_workers() -> None:
    model, texts = tiny_model("gpt2"), [text.replace("\ud800", "") for text in TEXTS]
    with ViewPool(ViewRequest(2, 1), 2) as pool:
        pool.set_tokenizer(model.tokenizer.backend_tokenizer.to_str(), 9)
        wanted = model.tokenize(
            [view for views in make_views(texts, 2, seed=1) for view in views], 9
        ).ids
        assert [row.tolist() for row in pool.make_ids(texts)] == wanted


def test_a_worker_starts_without_numpy() -> None:
    """Sixteen workers that import it at once keep a GPU waiting for the first views."""
    code = "import sys, layerscope.data.workers, layerscope.data.augment; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
