"""The factorial without mteb: rows that cannot be compared are not mixed, and problems travel as
they are."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from factorial import score, table, task_type


def test_types_of_tasks() -> None:
    assert [task_type(name) for name in ("STS12", "RedditClustering", "TwitterSemEval2015")] == [
        "similarity",
        "clustering",
        "pairs and ranking",
    ]


def test_small_and_full_rows_are_not_mixed(tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    pd.DataFrame([{"model": "m", "task": "a", "small": True}]).to_csv(file, index=False)
    with pytest.raises(SystemExit, match="give another --out"):
        score(["m"], tmp_path, file, small=False)
    pd.DataFrame([{"model": "m", "task": "a", "small": small} for small in (True, False)]).to_csv(
        file, index=False
    )
    with pytest.raises(SystemExit, match="mixes rows"):
        table(file)
    pd.DataFrame([{"model": "m", "task": "a"}]).to_csv(
        file, index=False
    )  # of a version that did not say
    with pytest.raises(SystemExit, match="does not say"):
        score(["m"], tmp_path, file, small=False)


def test_problems_travel_as_numbers() -> None:
    pytest.importorskip("layerscope_gpu")
    from scoring_shapes import pack, unpack

    from layerscope_gpu.scoring.kmeans import Clustering
    from layerscope_gpu.scoring.ranking import Pairs

    arrays: dict[str, Any] = {}
    plain: dict[str, dict[str, Any]] = {}
    given = {
        "a|0": Pairs(np.arange(3), np.arange(3, 6), np.array([0.5, 1.0, 2.0])),
        "b|0": Clustering(
            (np.arange(4), np.arange(2)),
            (np.array([0, 1, 0, 1]), np.array([0, 1])),
            (2, 2),
            500,
            42,
        ),
    }
    for name, problem in given.items():
        pack(name, problem, arrays, plain)
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    stream.seek(0)
    found = unpack(np.load(stream), json.loads(json.dumps(plain)))
    for name, problem in given.items():
        same = found[name[0]][0]
        assert type(same) is type(problem)
        for one, two in zip(vars(same).values(), vars(problem).values(), strict=True):
            assert (
                np.array_equal(np.hstack(one), np.hstack(two))
                if isinstance(two, (np.ndarray, tuple))
                else one == two
            )
