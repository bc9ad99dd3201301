"""A choice as a picture: what is on it, and that it is drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from layerscope.errors import LayerscopeError
from layerscope.report.improve import candidate_rows, plot_choice
from tests.report.synthetic import synthetic_improvement


def test_rows_are_in_words_and_scores_are_those_of_the_table() -> None:
    run = synthetic_improvement()
    rows = candidate_rows(run)
    assert rows is not None
    first = rows.drop_duplicates("readout")
    best = rows.groupby("readout", sort=False)["score"].max()  # the best readout first
    assert list(best) == sorted(best, reverse=True)
    assert first["kind"].value_counts().to_dict() == {"plain text": 12, "prompts": 4, "heads": 1}
    assert "head on plain text" in set(first["readout"])
    heads = run.table[run.table["readout"] == "plain/mean/applied/keep/head"].sort_values("layer")
    assert list(rows[rows["kind"] == "heads"]["score"]) == list(heads["score"])
    places = rows[rows["place"] != ""].set_index("place")
    assert (places["readout"]["baseline"], places["layer"]["baseline"]) == ("plain text, mean", 6)
    assert places["score"]["chosen"] == rows["score"].max() == 0.4
    for row in rows[rows["front"]].to_dict("records"):  # nothing that costs as little is better
        assert row["score"] == rows[rows["cost"] <= row["cost"] + 1e-12]["score"].max()


def test_scores_that_are_missing_or_undefined() -> None:
    run = synthetic_improvement()
    run.table.loc[run.table["layer"] == 0, "score"] = np.nan
    run.table = run.table[
        ~((run.table["layer"] == 2) & (run.table["readout"].str.startswith("one-word")))
    ]
    rows = candidate_rows(run)
    assert rows is not None
    assert 0 not in set(rows["layer"])
    assert 2 not in set(rows[rows["kind"] == "prompts"]["layer"])
    plot_choice(run)
    run.table = run.table.iloc[:0]
    assert candidate_rows(run) is None
    with pytest.raises(LayerscopeError, match="nothing to draw"):
        run.plot()


def test_the_picture_marks_the_baseline_the_choice_and_the_budget(tmp_path: Path) -> None:
    pytest.importorskip("altair")
    run = synthetic_improvement("model $5", 100, 70, ("one-word", "step-by-step"))
    run.manifest["config"] = {"budget": 1.5}
    heat, costs = run.plot().hconcat
    rows = next(part.data for part in [heat, *heat.layer] if isinstance(part.data, pd.DataFrame))
    assert rows["readout"].nunique() == 21
    marked = rows[rows["place"] != ""].set_index("place")
    assert tuple(marked.loc["baseline", ["layer", "readout"]]) == (100, "plain text, mean")
    assert tuple(marked.loc["chosen", ["layer", "score", "tied"]]) == (70, 0.4, True)
    assert marked["readout"]["chosen"] == "one-word prompt, centered, no norm"
    drawn = costs.to_dict()
    assert drawn["layer"][0]["encoding"]["x"]["scale"]["type"] == "log"
    assert any("budget" in str(values) for values in drawn["datasets"].values())
    run.plot().save(str(tmp_path / "choice.png"))
    assert (tmp_path / "choice.png").read_bytes().startswith(b"\x89PNG")
