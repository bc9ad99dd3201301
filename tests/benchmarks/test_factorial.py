"""What of a gain belongs to the readout, what to the layer, and what to both together, on scores whose answer is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from factorial import READOUTS, middle_gain, parts, score, table, task_type


def cube(readout: float, layer: float, both: float) -> np.ndarray:
    """Five tasks: one readout, one layer, and the two together gain so much over today (the first readout, the last layer)."""
    made = np.zeros((5, len(READOUTS), 6)) + np.arange(5.0)[:, None, None]
    made[:, 3] += readout
    made[:, :, 2] += layer
    made[:, 3, 2] += both
    return made


@pytest.mark.parametrize(("readout", "layer", "both"), [(4.0, 2.0, 1.0), (4.0, 2.0, -1.0), (5.0, 0.5, 0.0)])
def test_the_parts_of_a_gain(readout: float, layer: float, both: float) -> None:
    found = parts(cube(readout, layer, both))
    np.testing.assert_allclose(found, [[readout, layer, both, readout + layer + both]] * 5)


def test_a_task_does_not_choose_for_itself() -> None:
    scores = cube(0.0, 0.0, 0.0)
    scores[0, 5, 1] += 30  # one task alone, by luck
    found = parts(scores)
    assert found[0, 3] == 0
    weights = np.array([3.0, 0, 0, 0, 2.0])
    assert parts(scores, weights)[0, 3] == 0


def test_the_inner_layer_of_the_other_tasks() -> None:
    scores = cube(0.0, 0.0, 0.0)
    scores[:, 0, 3] += 2
    np.testing.assert_allclose(middle_gain(scores, 0), 2.0)
    assert (task_type("STS12"), task_type("RedditClustering"), task_type("TwitterSemEval2015")) == (
        "similarity",
        "clustering",
        "pairs and ranking",
    )


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
