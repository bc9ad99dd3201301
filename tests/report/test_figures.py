"""Charts as pictures: a panel per metric, a line per run, files of several kinds, and a clear error
without Altair."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from layerscope.core.charts import Chart, Line
from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.extras import MissingExtraError
from layerscope.metrics import main_metrics
from layerscope.profiling import Profile
from layerscope.report.charts import plot_charts
from layerscope.report.profile import plot_profiles

pytest.importorskip("altair")


def panels(figure: Any) -> list[Any]:
    return list(figure.concat)


def rows(figure: Any, place: int = 0) -> pd.DataFrame:
    """The table that a chart is drawn from; what charts share is kept at the top."""
    panel = figure.concat[place]
    tables = [part.data for part in (figure, panel, *panel.layer)]
    return next(table for table in tables if isinstance(table, pd.DataFrame))


def test_a_panel_per_metric(run: Profile) -> None:
    assert len(panels(run.plot())) == len(main_metrics())
    figure = plot_profiles([run], ["dime", "curvature", "prompt_entropy"])
    titles = [panel["title"]["text"] for panel in figure.to_dict()["concat"]]
    assert titles == ["DiME", "Curvature", "Prompt entropy"]


def test_a_line_per_run_and_sink_setting(run: Profile) -> None:
    figure = plot_profiles([run, run], ["prompt_entropy", "dime"], x="layer")
    table = rows(figure)
    assert table["line"].nunique() == 4
    assert rows(figure, 1)["line"].nunique() == 2
    kept, dropped = (table[table["line"] == place] for place in (0, 1))
    assert kept["x"].tolist() == [0, 1, 2, 3]
    assert kept["value"].tolist() == [3.0, 3.1, 1.25, 3.0]
    assert dropped["value"].tolist() == [3.0, 3.1, 3.2, 3.0]
    assert [note for note in table["note"] if note] == ["layer 2: the sink"]
    layers = figure.to_dict()["concat"][0]["layer"]
    (dashes,) = [
        layer["encoding"]["strokeDash"] for layer in layers if "strokeDash" in layer["encoding"]
    ]
    assert dashes["scale"]["range"][:2] == [[1, 0], [2, 2]]
    depth = plot_profiles([run], ["dime"])
    assert rows(depth)["x"].tolist() == pytest.approx([0, 1 / 3, 2 / 3, 1])


def test_bars_have_their_intervals_and_their_level() -> None:
    line = Line("gain", ["a", "b"], [0.2, -0.1], [0.1, -0.2], [0.3, 0.0])
    chart = Chart("Gains", [line], x="task", bars=True, level=(0.15, "noise"))
    spec = plot_charts([chart], "title").to_dict()
    (bars,) = spec["concat"]
    marks = [layer["mark"]["type"] for layer in bars["layer"]]
    assert marks == ["bar", "rule", "rule", "text"]
    levels = [row["level"] for rows in spec["datasets"].values() for row in rows if "level" in row]
    assert levels == [0.15, -0.15]  # on both sides of zero


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("svg", b"<svg")])
def test_files(run: Profile, tmp_path: Path, suffix: str, start: bytes) -> None:
    target = tmp_path / f"figure.{suffix}"
    plot_profiles([run], ["dime"]).save(str(target))
    assert target.read_bytes().startswith(start)
    assert b"<script>" not in target.read_bytes()


def test_bars_of_one_kind_leave_the_legend_to_the_chart_beside_them() -> None:
    bars = Chart("Lost", [Line("block", ["0", "1"], [0.2, 0.1])], x="block", bars=True)
    lines = [Line(name, [2, 3], [0.8, 1.0]) for name in ("as they are", "refitted")]
    spec = plot_charts([bars, Chart("Kept", lines, x="blocks kept")], "title").to_dict()
    assert "scale" not in spec["concat"][0]["layer"][0]["encoding"]["color"]
    color = spec["concat"][1]["layer"][0]["encoding"]["color"]
    assert color["scale"]["domain"] == ["as they are", "refitted"]
    assert spec["concat"][1]["layer"][0]["encoding"]["x"]["axis"]["values"] == [2, 3]


def test_mistakes(run: Profile) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'layer'"):
        plot_profiles([run], x="layers")
    with pytest.raises(UnknownNameError, match="Did you mean 'dime'"):
        plot_profiles([run], ["dim"])
    with pytest.raises(LayerscopeError, match="nothing to draw"):
        plot_profiles([])
    run.table = run.table[run.table["metric"] == "dime"]
    with pytest.raises(UnknownNameError, match="metric in these runs 'curvature'"):
        plot_profiles([run], ["curvature"])


def test_without_altair(run: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[report\]'"):
        run.plot()
