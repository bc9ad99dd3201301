"""The quick way to the factorial's scores: rows that cannot be compared are not mixed."""

from __future__ import annotations

from pathlib import Path

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
    pd.DataFrame([{"model": "m", "task": "a", "small": small} for small in (True, False)]).to_csv(file, index=False)
    with pytest.raises(SystemExit, match="mixes rows"):
        table(file)
    pd.DataFrame([{"model": "m", "task": "a"}]).to_csv(file, index=False)  # of a version that did not say
    with pytest.raises(SystemExit, match="does not say"):
        score(["m"], tmp_path, file, small=False)
