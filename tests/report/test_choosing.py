"""A choice as a picture: what is on it, and that it is drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from layerscope.errors import LayerscopeError
from layerscope.report.charts import save_figure
from layerscope.report.choosing import grid_of, groups, place_words, plot_choice
from tests.report.synthetic import synthetic_improvement


def test_rows_are_in_words_and_places_are_those_of_the_table() -> None:
    run = synthetic_improvement()
    grid = grid_of(run)
    assert grid is not None
    assert grid.rows[0] == ("plain text", "mean")
    assert grid.rows[-1] == ("plain text", "head")
    assert groups(grid) == ["plain text"] * 12 + ["prompts"] * 4 + ["heads"]
    assert grid.today == (0, 6)
    assert place_words(grid, grid.chosen) == "layer 4, one-word prompt, centered, no norm"
    heads = run.table[run.table["readout"] == "plain/mean/applied/keep/head"].sort_values("layer")
    assert list(grid.score[-1]) == list(heads["score"])
    assert grid.score[grid.chosen] == grid.score.max() == 0.4
    assert grid.cost is not None
    at = [(grid.cost[place], grid.score[place]) for place in grid.front]
    assert at == sorted(at)
    for cost, score in at:  # nothing that costs as little is better
        assert score == grid.score[grid.cost <= cost + 1e-12].max()


def test_scores_that_are_missing_or_undefined() -> None:
    run = synthetic_improvement()
    run.table.loc[run.table["layer"] == 0, "score"] = np.nan
    run.table = run.table[
        ~((run.table["layer"] == 2) & (run.table["readout"].str.startswith("one-word")))
    ]
    grid = grid_of(run)
    assert grid is not None
    assert np.isnan(grid.score[:, 0]).all()
    assert np.isnan(grid.score[12:16, 2]).all()
    assert not grid.tied[12:16, 2].any()
    plot_choice(run)
    run.table = run.table.iloc[:0]
    assert grid_of(run) is None
    with pytest.raises(LayerscopeError, match="nothing to draw"):
        run.plot()


def test_the_picture_marks_today_the_choice_and_the_budget(tmp_path: Path) -> None:
    pytest.importorskip("altair")
    run = synthetic_improvement("model $5", 100, 70, ("one-word", "step-by-step"))
    run.manifest["config"] = {"budget": 1.5}
    heat, costs = run.plot().hconcat
    rows = next(part.data for part in [heat, *heat.layer] if isinstance(part.data, pd.DataFrame))
    assert rows["readout"].nunique() == 21
    marked = rows[rows["place"] != ""].set_index("place")["words"]
    assert marked["today"].startswith("layer 100, plain text, mean · ")
    assert marked["chosen"].startswith("layer 70, one-word prompt, centered, no norm · 0.400 [")
    assert marked["chosen"].endswith(" · chosen · not told from the best")
    drawn = costs.to_dict()
    assert drawn["layer"][0]["encoding"]["x"]["scale"]["type"] == "log"
    assert any("budget" in str(values) for values in drawn["datasets"].values())
    assert save_figure(run.plot(), tmp_path / "choice.png").read_bytes().startswith(b"\x89PNG")
