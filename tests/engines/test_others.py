"""Probes on a cluster: the tables of one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import layerscope
from layerscope.engines import RayEngine
from layerscope.probing import probe


def assert_close(one: pd.DataFrame, other: pd.DataFrame) -> None:
    numbers = list(one.select_dtypes("number").columns)
    rest = [name for name in one.columns if name not in numbers]
    pd.testing.assert_frame_equal(one[rest], other[rest])
    np.testing.assert_allclose(
        one[numbers].to_numpy(float), other[numbers].to_numpy(float), rtol=1e-6, atol=1e-6
    )


@pytest.mark.slow
def test_probes(engine: RayEngine, model_folder: Path, prompts: list[str]) -> None:
    labels = ["odd" if i % 2 else "even" for i in range(len(prompts))]
    given = {
        "data": prompts,
        "labels": labels,
        "heads": ["mean", "knn"],
        "epochs": 2,
        "trial": 1,
        "max_length": 32,
    }
    here = probe(model_folder, **given)
    there = probe(model_folder, engine=engine, **given)
    assert_close(here.table, there.table)
    assert here.items.equals(there.items)


@pytest.mark.slow  # quickly: an evaluation, whose workers encode in the same way
def test_improve(engine: RayEngine, model_folder: Path, prompts: list[str], tmp_path: Path) -> None:
    given = {
        "judge": "none",
        "templates": ["one-word"],
        "max_length": 64,
        "sample": 60,
        "center_on": "all",
        "progress": False,
    }
    here = layerscope.improve(model_folder, prompts, store=tmp_path / "here", **given)
    there = layerscope.improve(
        model_folder, prompts, store=tmp_path / "there", engine=engine, **given
    )
    assert (there.choice.layer, there.choice.readout) == (here.choice.layer, here.choice.readout)
    assert there.manifest["key"] == here.manifest["key"]
    assert there.manifest["texts"] == here.manifest["texts"]
    order = ["readout", "layer"]
    assert_close(
        *(
            run.table.sort_values(order, ignore_index=True)[[*order, "site", "cost"]]
            for run in (here, there)
        )
    )
    np.testing.assert_allclose(there.encode(prompts[:5]), here.encode(prompts[:5]), atol=1e-5)
