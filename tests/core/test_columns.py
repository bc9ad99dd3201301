"""Columns are defined once: what tables, files, the page, sweeps and the documentation say follows
from them."""

from __future__ import annotations

import json
from pathlib import Path

from layerscope.core.columns import VALUE, names
from layerscope.core.statistics import Interval
from tests.forking import run_python

# a column of its own in one place, before anything else of layerscope is imported
ADDED = """
import json, sys
from pathlib import Path
from layerscope.core import columns

left_out = columns.Column("left_out", int, of=lambda m: m.estimate.undefined)
columns.PROFILE = (*columns.PROFILE, left_out)

import pandas as pd
import layerscope
from tests.tiny import tiny_model

here = Path(sys.argv[1])
texts = ["A cat sat on the mat.", "Rivers run to the sea.", "a", "Stars are far away."]
run = layerscope.profile(tiny_model(), texts, metrics=["prompt_entropy", "curvature"], out=here / "run", progress=False)
print("RESULT" + json.dumps({
    "table": run.table["left_out"].sum() >= 0 and run.table["left_out"].dtype.kind == "i",
    "curvature of one token": int(run.curve("curvature", sink="drop")["left_out"].max()),
    "loaded": "left_out" in layerscope.load_run(here / "run").table,
    "csv": pd.read_csv(here / "run" / "profile.csv").columns[-1],
}))
"""


def test_a_column_added_in_one_place_is_everywhere(tmp_path: Path) -> None:
    ended = run_python(ADDED, str(tmp_path), without=["layerscope", "tests"])
    assert "RESULT" in ended.stdout, ended.stderr
    found = json.loads(ended.stdout.split("RESULT", 1)[1])
    assert found.pop("curvature of one token") > 0
    assert found.pop("csv") == "left_out"
    assert set(found.values()) == {True}, found


def test_an_interval_is_the_columns_of_a_value() -> None:
    found = Interval(0.5, 0.25, 0.75, 12)
    assert list(found.columns) == names(VALUE)
    assert Interval.from_row(found.columns) == Interval(0.5, 0.25, 0.75)
    assert not Interval.from_row({"gain": 1.0, "ci_low": None}, "gain").known
    assert (
        Interval.from_row(
            {"gain": 1.0, "default_ci_low": 0, "default_ci_high": 2}, "gain", "default_"
        ).ends()
        == " [+0.0, +2.0]"
    )
