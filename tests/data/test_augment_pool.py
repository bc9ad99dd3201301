"""Views made by other processes are the views made here."""

from __future__ import annotations

import io
import json

import pytest

from layerscope.data.augment import make_views
from layerscope.data.augment_pool import ViewPool
from layerscope.data.augment_worker import serve
from tests.tiny import tiny_model

TEXTS = [f"Layers in the middle, number {i}, often hold more — naïve \ud800 or not." for i in range(11)]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_views_in_the_same_order(workers: int) -> None:
    with ViewPool(3, seed=5, workers=workers) as pool:
        assert pool.make(TEXTS) == make_views(TEXTS, 3, seed=5)
        assert pool.make(TEXTS[:1]) == make_views(TEXTS[:1], 3, seed=5)
        assert pool.make([]) == []


def test_a_worker_that_dies_costs_nothing() -> None:
    with ViewPool(2, seed=0, workers=2) as pool:
        for child in pool._children:
            child.kill()
            child.wait()
        assert pool.make(TEXTS) == make_views(TEXTS, 2, seed=0)


def test_no_process_outlives_the_pool() -> None:
    with ViewPool(2, seed=0, workers=2) as pool:
        children = list(pool._children)
        assert len(children) == 2
        pool.close()  # and again when the block ends
    assert all(child.poll() is not None for child in children)


def test_the_worker_answers_line_by_line() -> None:
    requests = "".join(json.dumps({"texts": [text], "views": 2, "seed": 1}) + "\n" for text in TEXTS[:2])
    answers = io.BytesIO()
    serve(io.BytesIO(requests.encode()), answers)
    assert [json.loads(line)[0] for line in answers.getvalue().splitlines()] == make_views(TEXTS[:2], 2, seed=1)


@pytest.mark.parametrize("workers", [0, 2])
def test_token_ids_are_those_of_the_model(workers: int) -> None:
    model, texts = tiny_model("bert"), [text.replace("\ud800", "") for text in TEXTS]
    wanted = model.tokenize([view for views in make_views(texts, 3, seed=5) for view in views], 7).ids
    backend = model.tokenizer.backend_tokenizer.to_str()
    with ViewPool(3, seed=5, workers=workers, tokenizer=backend, max_length=7) as pool:
        assert [row.tolist() for row in pool.make_ids(texts)] == wanted
        for child in pool._children:
            child.kill()
            child.wait()
        assert [row.tolist() for row in pool.make_ids(texts)] == wanted


def test_a_worker_that_cannot_be_started_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise OSError("too many processes")

    monkeypatch.setattr("layerscope.data.augment_pool._start", fails)
    with ViewPool(2, seed=0, workers=3) as pool:
        assert pool._children == []
        assert pool.make(TEXTS) == make_views(TEXTS, 2, seed=0)


def test_a_tokenizer_may_come_after_the_workers() -> None:
    model, texts = tiny_model("gpt2"), [text.replace("\ud800", "") for text in TEXTS]
    with ViewPool(2, seed=1, workers=2) as pool:
        pool.set_tokenizer(model.tokenizer.backend_tokenizer.to_str(), 9)
        wanted = model.tokenize([view for views in make_views(texts, 2, seed=1) for view in views], 9).ids
        assert [row.tolist() for row in pool.make_ids(texts)] == wanted
