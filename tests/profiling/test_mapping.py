"""The map of a profile: texts and images, the same whatever their order, and another run than one
without."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import layerscope
from layerscope.errors import RunFolderError
from tests.tiny import tiny_model

TEXTS = [f"the {word} number {i} runs" for i in range(8) for word in ("cat", "dog", "star")]


def test_texts_are_where_their_vectors_are(tmp_path: Path) -> None:
    model = tiny_model("llama")
    given = {"metrics": ["dataset_entropy"], "progress": False, "map": True}
    made = layerscope.profile(model, TEXTS, out=tmp_path / "run", **given).map()
    assert (made.texts, made.total, made.kind) == (TEXTS, 24, "texts")
    assert made.readings[0].layers == [0, 1, 2, 3]
    turned = layerscope.profile(model, TEXTS[::-1], **given).map()
    order = [turned.texts.index(text) for text in TEXTS]
    back = np.argsort(order)
    near = turned.readings[0].near[:, order]
    assert (
        np.mean(back[near][:, :, 0] == made.readings[0].near[:, :, 0]) > 0.9
    )  # equal distances may swap
    assert layerscope.load_run(tmp_path / "run").map().texts == TEXTS
    layerscope.profile(model, TEXTS, out=tmp_path / "bare", texts=False, **given)
    assert layerscope.load_run(tmp_path / "bare").map().texts is None
    with pytest.raises(RunFolderError, match="map"):  # a map with texts is not one without
        layerscope.profile(model, TEXTS, out=tmp_path / "run", texts=False, **given)
    with pytest.raises(RunFolderError, match="map"):
        layerscope.profile(
            model, TEXTS, out=tmp_path / "run", metrics=["dataset_entropy"], progress=False
        )
