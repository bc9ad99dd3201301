"""Which of several models to use: by labels where there are any, and a trained encoder first where
there are none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import layerscope
from layerscope.choose.labels.read import build
from layerscope.embedding.comparing import _by_labels, _Compared, _without_labels, label_items
from layerscope.errors import InvalidValueError, LayerscopeError
from tests.improving.test_improve import some_texts
from tests.tiny import tiny_model


def way(name: str, right: float, ready: bool = False) -> _Compared:
    items = (np.arange(100) < 100 * right).astype(float)
    return _Compared(
        name,
        lambda texts: np.zeros((len(texts), 2)),
        1e6,
        ready,
        ready,
        np.zeros((3, 2)),
        items,
    )


def test_of_those_that_labels_cannot_tell_apart_the_fastest_is_taken() -> None:
    labeled = build("classification", [((f"text {i}",), str(i % 2)) for i in range(100)])
    found = [way("slow", 0.80), way("quick", 0.79, ready=True), way("poor", 0.30)]
    speeds = {"slow": 10.0, "quick": 120.0, "poor": 500.0}
    pick, said = _by_labels(found, labeled, speeds)
    assert pick is found[1]
    assert said.startswith("Use quick: 79.0 %")
    assert "the best within the noise (slow has 80.0); it is 12.0 × as fast as slow." in said
    pick, close = _by_labels(
        found, labeled, {**speeds, "quick": 11.0}
    )  # hardly faster is no reason to take the lower score
    assert pick is found[0]
    assert (
        "quick has 79.0, which these labels cannot tell from it. It is 1.1 × slower than quick."
        in close
    )
    _, best = _by_labels(
        [way("slow", 0.9), way("poor", 0.3)],
        labeled,
        {"slow": 10.0, "poor": 5.0},
    )
    assert best.startswith("Use slow: 90.0 %")
    assert "poor has 30.0" in best


def test_pairs_tie_by_the_same_rule() -> None:
    pairs = build("scores", [((f"a{i}", f"b{i}"), float(i)) for i in range(60)])
    noise = np.random.default_rng(0).normal(size=(3, 60))
    found = [way("slow", 0), way("quick", 0), way("poor", 0)]
    for one, items in zip(found, pairs.targets / 20 + noise * [[0.5], [0.45], [9.0]], strict=True):
        one.items = items
    speeds = {"slow": 10.0, "quick": 120.0, "poor": 500.0}
    pick, said = _by_labels(found, pairs, speeds)
    assert pick is found[1]
    assert "rank correlation × 100" in said
    assert "poor" not in said


def test_without_labels_a_trained_encoder_comes_first_and_nothing_is_called_right() -> None:
    found = [way("lm", 0.5), way("other", 0.5), way("encoder", 0.5, ready=True)]
    _, said = _without_labels(found, [0.1, 0.4, 0.4], {"lm": 10.0, "other": 9.0, "encoder": 90.0})
    assert said.startswith("Use encoder, unless labels say otherwise")
    assert "9.0 × as fast as lm" in said
    found[2].trained = False  # an export of a language model, or one that does not know the words
    assert "does not say who is right" in _without_labels(found, [0.1, 0.4, 0.3], {})[1]


def test_labels_of_classes_and_of_pairs() -> None:
    classes = build("classification", [((f"t{i}",), "ab"[i % 2]) for i in range(20)])
    side = classes.sides[0]
    near = {
        text: np.array([1.0, 0.01 * i]) if classes.targets[i] else np.array([0.01 * i, 1.0])
        for i, text in enumerate(side)
    }
    assert label_items(classes, near).mean() == 1
    pairs = build("scores", [((f"a{i}", f"b{i}"), float(i)) for i in range(20)])
    found = label_items(pairs, {text: np.eye(2)[0] for text in pairs.texts})
    assert np.allclose(found, 1)


def test_models_on_texts_with_labels(tmp_path: Path) -> None:
    texts = some_texts(60)
    (tmp_path / "labels.csv").write_text(
        "text,label\n" + "\n".join(f"{text},{'ab'[i % 2]}" for i, text in enumerate(texts[:20]))
    )
    ready = tiny_model("bert", seed=3)
    ready.identity["sentence_encoder"] = True
    spaced = [f" {text} " for text in texts]
    found = layerscope.compare(
        [tiny_model("llama"), ready], spaced, labels=tmp_path / "labels.csv", progress=False
    )
    assert found.verdict.startswith("Use ")
    assert set(found.table["read"]) == {"last layer, mean", "as it comes"}
    assert found.table[found.measure].is_monotonic_decreasing
    assert np.allclose(np.diag(found.agreement), 1, atol=1e-5)
    assert (found.table["texts per second"] > 0).all()
    every = tmp_path / "all.csv"
    every.write_text(
        "text,label\n" + "\n".join(f"{text},{'ab'[i % 2]}" for i, text in enumerate(texts))
    )
    with pytest.raises(LayerscopeError, match="0 texts that are not among the labels; 20"):
        layerscope.compare([tiny_model("llama"), ready], texts, labels=every)
    with pytest.raises(InvalidValueError, match="same name"):
        layerscope.compare([tiny_model("llama"), tiny_model("llama")], texts, progress=False)
    with pytest.raises(InvalidValueError, match="two models"):
        layerscope.compare(["x"], texts)
