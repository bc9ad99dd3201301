"""A kind of run that comes from outside the package, with its section of the page."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from layerscope.core import plugins
from layerscope.core.runs import RunKind, run_kinds
from layerscope.report.page import write_report
from layerscope.report.section import Chart, Line, Section
from layerscope.store import RunFolder
from tests.cli.support import run_main


class Weather:
    """A kind of run that layerscope knows nothing of."""

    kind, name, manifest, path = "weather", "Tuesday", {}, None

    @classmethod
    def load(cls, path: str | Path) -> Weather:
        return cls()

    def summary(self) -> dict[str, Any]:
        return {}

    def tables(self) -> dict[str, pd.DataFrame]:
        return {}


def read_weather(run: Weather) -> Section:
    lines = [Line("rain", [0, 1, 2], [0.0, 4.0, 1.0])]
    return Section(
        "weather", f"Weather of {run.name}", "sky", ["It rained."], [Chart("Rain", lines, "mm")]
    )


KIND = RunKind("weather", f"{__name__}:Weather", {"section": f"{__name__}:read_weather"})


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package with it; the registry looks again."""
    points = [EntryPoint("weather", f"{__name__}:KIND", "layerscope.runs")]
    monkeypatch.setattr(
        plugins, "entry_points", lambda group: [point for point in points if point.group == group]
    )
    monkeypatch.setattr(run_kinds, "_things", dict(run_kinds.all()))
    monkeypatch.setattr(run_kinds, "_loaded", False)


@pytest.mark.usefixtures("outside")
def test_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    RunFolder(run).write_manifest({"kind": "weather", "status": "complete"})
    ended = run_main(monkeypatch, capsys, "report", run, "--out", tmp_path / "report.html")
    assert ended.code == 0, ended
    assert "It rained" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("outside")
def test_in_python(tmp_path: Path) -> None:
    text = write_report([Weather()], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "It rained" in text
    assert '"title":"Rain","unit":"mm"' in text
    assert "Weather of Tuesday" in text
