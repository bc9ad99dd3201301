"""Studies, probes and profiles of images on a cluster: the tables of one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

import layerscope
from layerscope.engines import RayEngine
from layerscope.probing import probe
from layerscope.studies.run import study
from tests.profiling.support import assert_same_numbers
from tests.tiny_images import pictures, tiny_image_model


def assert_close(one: pd.DataFrame, other: pd.DataFrame) -> None:
    numbers = list(one.select_dtypes("number").columns)
    rest = [name for name in one.columns if name not in numbers]
    pd.testing.assert_frame_equal(one[rest], other[rest])
    np.testing.assert_allclose(one[numbers].to_numpy(float), other[numbers].to_numpy(float), rtol=1e-6, atol=1e-6)


def test_a_study(engine: RayEngine, model_folder: Path, prompts: list[str]) -> None:
    given = {"texts": prompts[:80], "max_length": 24}
    here = study("sublayers", model_folder, **given)
    assert_close(here.table, study("sublayers", model_folder, engine=engine, **given).table)


def test_probes(engine: RayEngine, model_folder: Path, prompts: list[str]) -> None:
    labels = ["odd" if i % 2 else "even" for i in range(len(prompts))]
    given = {"data": prompts, "labels": labels, "heads": ["mean", "knn"], "epochs": 2, "trial": 1, "max_length": 32}
    here = probe(model_folder, **given)
    there = probe(model_folder, engine=engine, **given)
    assert_close(here.table, there.table)
    assert here.items.equals(there.items)


def test_images(engine: RayEngine) -> None:
    model, images = tiny_image_model("vit"), pictures(40)
    here = layerscope.profile(model, images=images, views=2, permutations=2)
    there = layerscope.profile(model, images=images, views=2, permutations=2, engine=engine)
    assert_same_numbers(here.table, there.table, 1e-5)  # BLAS may round another way for another number of rows
