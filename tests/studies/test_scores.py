"""The study of scores by layer: what a metric's lowest value chooses."""

from __future__ import annotations

import pandas as pd

from layerscope.studies.scores import choose_by_lowest


def test_the_lowest_value_chooses_per_task_among_scored_layers() -> None:
    scores = pd.DataFrame({"task": ["a"] * 3 + ["b"] * 3, "layer": [0, 1, 2] * 2, "score": [10.0, 30, 20, 50, 40, 45]})

    def curve(values: list[float]) -> pd.DataFrame:
        sites = ["embed", "block.0", "block.1", "block.2"]
        rows = {"site": sites, "layer": range(4), "metric": "dime", "normalization": "raw", "sink": None, "value": values}
        return pd.DataFrame(rows)

    chosen = choose_by_lowest(scores, {"a": curve([3.0, 1, 2, 0]), "b": curve([3.0, 1, 2, 0])}, ["dime"])
    # layer 3 has no score, so layer 1 is the lowest
    assert chosen[["task", "layer", "gain"]].values.tolist() == [["a", 1, 10.0], ["b", 1, -5.0]]
    assert choose_by_lowest(scores, {"a": curve([0.0, 0, 1, 1])}, ["dime"])["layer"].tolist() == [0]
