"""A layer of a model, or an exported folder, as a step of a scikit-learn pipeline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from layerscope.command import Command
from layerscope.core.readout import Readout
from layerscope.embedding.encoders import Encoder, open_encoder
from layerscope.embedding.encoding import encode
from layerscope.errors import require
from layerscope.models import LoadedModel

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator, TransformerMixin
else:
    try:
        from sklearn.base import BaseEstimator, TransformerMixin
    except ImportError:  # told when a step is made
        BaseEstimator, TransformerMixin = (
            type("BaseEstimator", (), {}),
            type("TransformerMixin", (), {}),
        )


class Layer(TransformerMixin, BaseEstimator):
    """Texts in, vectors (texts, D) of one layer out. `layer` and `readout` can be searched like any
    other parameter.

        make_pipeline(Layer("smollm2-135m", layer=20), LogisticRegression()).fit(texts, labels)

    Fitting loads the model, once for all steps that name it; what it learns is the mean that a
    centered readout subtracts.
    """

    def __init__(
        self,
        model: Any = "smollm2-135m",
        layer: int | None = None,
        readout: str | None = None,
        max_length: int | None = None,
    ) -> None:
        require("layerscope.sklearn", "sklearn", "sklearn")
        self.model, self.layer, self.readout, self.max_length = model, layer, readout, max_length

    def fit(self, X: Any, y: Any = None) -> Layer:
        """Load the model, and learn the mean where the readout is centered."""
        self.n_features_in_ = 1
        centered = self.readout is not None and Readout.parse(self.readout).centering == "corpus"
        self.mean_ = self._vectors(X).mean(0) if centered else 0.0
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Vectors (texts, D)."""
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self, "mean_")
        return self._vectors(X) - self.mean_

    def _vectors(self, X: Any) -> np.ndarray:
        texts = _texts(X)
        asked = None if self.readout is None else Readout.parse(self.readout)
        readout = (
            replace(asked, centering="none")
            if asked is not None and asked.centering == "corpus"
            else asked
        )
        given: dict[str, Any] = {
            "layers": self.layer,
            "readout": readout,
            "max_length": self.max_length,
        }
        return np.asarray(
            encode(_loaded(self.model, **given), texts, **given, progress=False), dtype=np.float64
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.two_d_array, tags.input_tags.one_d_array = (
            True,
            False,
            True,
        )
        tags.requires_fit = True
        return tags


_LOADED: dict[Any, LoadedModel | Encoder] = {}


def _loaded(model: Any, layers: int | None, readout: Readout | None, max_length: int | None) -> Any:
    """A model by name, or a folder that is read as it says itself, which is loaded once for all
    steps."""
    if not isinstance(model, str | Path):
        return model
    itself = layers is None and readout is None
    key = (str(model), itself and (max_length,))
    if key not in _LOADED:
        _LOADED.clear()  # one at a time
        with Command("encode", {}, progress=False) as command:
            _LOADED[key] = (
                open_encoder(command, model, max_length=max_length)
                if itself
                else command.load(model)
            )
    return _LOADED[key]


def _texts(X: Any) -> list[str]:
    """A column of texts from whatever scikit-learn hands over."""
    rows: Iterable[Any] = X.iloc[:, 0] if hasattr(X, "iloc") and getattr(X, "ndim", 1) == 2 else X
    out = []
    for number, row in enumerate(rows):
        value = row[0] if isinstance(row, np.ndarray | list | tuple) else row
        if not isinstance(value, str):
            raise ValueError(f"Layer takes texts, and was given {type(value).__name__}.")
        if not value.strip():
            raise ValueError(
                f"Layer takes texts with words, and row {number} (from 0) has none. Leave it out, or fill it in."
            )
        out.append(value)
    return out
