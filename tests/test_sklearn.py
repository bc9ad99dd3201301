"""A layer as a step of scikit-learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from layerscope import command
from layerscope.sklearn import Layer
from tests.improving.test_improve import some_texts
from tests.tiny import tiny_model

MODEL = tiny_model("llama")


def test_the_checks_of_scikit_learn() -> None:
    check_estimator(Layer(MODEL), on_skip=None)


def test_a_layer_in_a_grid_search() -> None:
    texts, labels = some_texts(24), np.arange(24) % 2
    steps = make_pipeline(Layer(MODEL, layer=1), LogisticRegression())
    found = GridSearchCV(
        steps,
        {"layer__layer": [0, 2], "layer__readout": ["plain/mean/raw/keep/corpus", None]},
        cv=2,
    )
    found.fit(texts, labels)
    assert found.best_params_["layer__layer"] in (0, 2)
    assert found.predict(texts[:3]).shape == (3,)


def test_a_mean_is_learned_on_the_texts_that_were_fitted_on() -> None:
    layer = Layer(MODEL, layer=1, readout="plain/mean/raw/keep/corpus ").fit(some_texts(10))
    assert np.abs(layer.transform(some_texts(10)).mean(0)).max() < 1e-5
    assert np.abs(layer.transform(some_texts(10, 1)).mean(0)).max() > 1e-5
    with pytest.raises(ValueError, match="takes texts"):
        layer.transform([1.0])
    with pytest.raises(ValueError, match="row 1 "):
        layer.transform(["words", " "])


def test_a_model_by_name_is_loaded_once_for_all_calls(model_folder: Path, monkeypatch) -> None:
    loads, load = [], command.open_model
    monkeypatch.setattr(command, "open_model", lambda *given: loads.append(1) or load(*given))
    layer = Layer(str(model_folder)).fit(some_texts(10))
    assert np.array_equal(layer.transform(some_texts(10)), layer.transform(some_texts(10)))
    assert len(loads) == 1
