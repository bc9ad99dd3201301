"""A layer of a model, or an exported folder, as a step of a scikit-learn pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from layerscope.embedding.encoding import encode
from layerscope.errors import require
from layerscope.models import LoadedModel, open_model

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator, TransformerMixin
else:
    try:
        from sklearn.base import BaseEstimator, TransformerMixin
    except ImportError:  # told when a step is made
        BaseEstimator, TransformerMixin = type("BaseEstimator", (), {}), type("TransformerMixin", (), {})


class Layer(TransformerMixin, BaseEstimator):
    """Texts in, vectors (texts, D) of one layer out. `layer` and `readout` can be searched like any other parameter.

        make_pipeline(Layer("smollm2-135m", layer=20), LogisticRegression()).fit(texts, labels)

    Fitting loads the model, once for all steps that name it; what it learns is the mean that a centered readout subtracts.
    """

    def __init__(
        self, model: Any = "smollm2-135m", layer: int | None = None, readout: str | None = None, max_length: int = 256
    ) -> None:
        require("layerscope.sklearn", "sklearn", "sklearn")
        self.model, self.layer, self.readout, self.max_length = model, layer, readout, max_length

    def fit(self, X: Any, y: Any = None) -> Layer:
        """Load the model, and learn the mean where the readout is centered."""
        self.n_features_in_ = 1
        centered = (self.readout or "").endswith("/corpus")
        self.mean_ = self._vectors(X).mean(0) if centered else 0.0
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Vectors (texts, D)."""
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self, "mean_")
        return self._vectors(X) - self.mean_

    def _vectors(self, X: Any) -> np.ndarray:
        texts = _texts(X)
        readout = None if self.readout is None else self.readout.removesuffix("/corpus")
        given: dict[str, Any] = {"layers": self.layer, "readout": readout, "max_length": self.max_length, "progress": False}
        return np.asarray(encode(_loaded(self.model, self.layer, readout), texts, **given), dtype=np.float64)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array, tags.input_tags.one_d_array = True, False, True
        tags.requires_fit = True
        return tags


_LOADED: dict[str, LoadedModel] = {}


def _loaded(model: Any, layer: int | None, readout: str | None) -> Any:
    """A model by name, which is loaded once for all steps; a folder that is read as it says itself stays a name."""
    if not isinstance(model, str) or (layer is None and readout is None):
        return model
    if model not in _LOADED:
        _LOADED.clear()  # one at a time
        _LOADED[model] = open_model(model, None, False, {})
    return _LOADED[model]


def _texts(X: Any) -> list[str]:
    """A column of texts from whatever scikit-learn hands over."""
    rows: Iterable[Any] = X.iloc[:, 0] if hasattr(X, "iloc") and getattr(X, "ndim", 1) == 2 else X
    out = []
    for row in rows:
        value = row[0] if isinstance(row, np.ndarray | list | tuple) else row
        if not isinstance(value, str):
            raise ValueError(f"Layer takes texts, and was given {type(value).__name__}.")
        out.append(value)
    return out
