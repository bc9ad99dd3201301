"""Which of several models to use: by labels if there are any, else a trained encoder first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import layerscope
from layerscope.choose import Scores
from layerscope.choose.labels import build
from layerscope.embedding.comparing import (
    ComparedModel,
    choose_by_labels,
    choose_without_labels,
    label_items,
)
from layerscope.errors import InvalidValueError, LayerscopeError
from tests.improving.test_improve import some_texts
from tests.tiny import tiny_model

PAIRS = build("scores", [((f"a{i}", f"b{i}"), float(i)) for i in range(60)])
CLASSES = build("classification", [((f"text {i}",), "ab"[i % 2]) for i in range(20)])


def compared(name: str, speed: float, trained: bool = False) -> ComparedModel:
    vectors = np.zeros((3, 2))
    return ComparedModel(name, "as it comes", vectors, vectors, speed, trained=trained)


def scores_of(*values: float) -> Scores:
    """Scores of models whose resamples move by about two points, each by itself."""
    draws = np.random.default_rng(0).normal(np.array(values)[:, None], 2, (len(values), 1000))
    return Scores(np.array(values), draws)


@pytest.mark.parametrize(
    ("speeds", "values", "name", "verdict"),
    [
        (
            (10, 120, 500),
            (80, 79, 30),
            "quick",
            "Use quick: 79.0 % of the labeled texts have a right nearest neighbor; slow has 80.0, "
            "which these labels cannot tell from it. It is 12.0 × as fast as slow.",
        ),
        (
            (10, 11, 500),
            (80, 79, 30),
            "slow",
            "quick has 79.0, which these labels cannot tell from it. It is 1.1 × slower than quick.",
        ),
        ((10, 5, 5), (90, 30, 20), "slow", "; quick has 30.0. It is 2.0 × as fast as quick."),
    ],
)
def test_of_tied_models_the_fastest_is_taken_if_it_is_clearly_faster(
    speeds: tuple[float, ...], values: tuple[float, ...], name: str, verdict: str
) -> None:
    names = ("slow", "quick", "poor")
    models = [compared(*pair) for pair in zip(names, speeds, strict=True)]
    pick, words = choose_by_labels(models, CLASSES, scores_of(*values))
    assert pick.name == name
    assert words.endswith(verdict)
    _, words = choose_by_labels(models, PAIRS, scores_of(*values))
    assert "rank correlation × 100" in words


def test_without_labels_a_trained_encoder_comes_first() -> None:
    models = [compared("lm", 10), compared("other", 9), compared("encoder", 90, trained=True)]
    _, words = choose_without_labels(models, [0.1, 0.4, 0.4])
    assert words.startswith("Use encoder, unless labels say otherwise")
    assert "9.0 × as fast as lm" in words
    models[2] = replace(models[2], trained=False)
    pick, words = choose_without_labels(models, [0.1, 0.4, 0.3])
    assert pick.name == "other"
    assert "does not say who is right" in words


def test_items_of_labeled_texts_and_pairs() -> None:
    directions = np.eye(2)[CLASSES.targets.astype(int)]
    near = directions + 0.01 * np.arange(20)[:, None] * directions[:, ::-1]
    order = [CLASSES.sides[0].index(text) for text in CLASSES.texts]
    assert label_items(CLASSES, near[order]).mean() == 1
    assert label_items(CLASSES, np.roll(near[order], 1, 0)).mean() < 1
    np.testing.assert_allclose(label_items(PAIRS, np.ones((len(PAIRS.texts), 2))), 1)


def test_models_on_texts_with_labels(tmp_path: Path) -> None:
    texts = some_texts(60)
    lines = [f"{text},{'ab'[i % 2]}" for i, text in enumerate(texts)]
    (tmp_path / "labels.csv").write_text("\n".join(["text,label", *lines[:20]]))
    (tmp_path / "all.csv").write_text("\n".join(["text,label", *lines]))
    encoder = tiny_model("bert", seed=3)
    encoder.identity["sentence_encoder"] = True
    models = [tiny_model("llama"), encoder]
    spaced = [f" {text} " for text in texts]
    result = layerscope.compare(models, spaced, labels=tmp_path / "labels.csv", progress=False)
    assert result.verdict.startswith("Use ")
    assert set(result.table["read"]) == {"last layer, mean", "as it comes"}
    assert result.table[result.measure].is_monotonic_decreasing
    np.testing.assert_allclose(np.diag(result.agreement), 1, atol=1e-5)
    off_diagonal = result.agreement.to_numpy()[0, 1]
    np.testing.assert_allclose(result.table["agreement with others"], off_diagonal, atol=1e-6)
    assert (result.table["texts per second"] > 0).all()
    with pytest.raises(LayerscopeError, match="0 texts that are not among the labels; 20"):
        layerscope.compare(models, texts, labels=tmp_path / "all.csv")
    with pytest.raises(InvalidValueError, match="two models are called tiny-llama"):
        layerscope.compare([models[0], tiny_model("llama")], texts, progress=False)
    with pytest.raises(InvalidValueError, match="two models or more"):
        layerscope.compare(["x"], texts)
