"""A section of the page that comes from outside the package: one value behind one entry point."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from layerscope.core import plugins
from layerscope.core.plugins import Registry
from layerscope.report import contents, write_report
from layerscope.report.sections import sections
from layerscope.report.sources import Block, Chart, Line, Section


class Weather:
    """A kind of run that layerscope knows nothing of."""

    kind, name, manifest, path = "weather", "Tuesday", {}, None

    def summary(self) -> dict[str, Any]:
        return {}

    def tables(self) -> dict[str, pd.DataFrame]:
        return {}


def read_weather(run: Weather) -> Block:
    lines = [Line("rain", [0, 1, 2], [0.0, 4.0, 1.0])]
    return Block("weather", f"Weather of {run.name}", "sky", ["It rained."], [Chart("Rain", lines, "mm")])


SECTION = Section("weather", read_weather)


def test_a_section_of_another_package_is_on_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("weather", f"{__name__}:SECTION", "layerscope.sections")
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point] if group == point.group else [])
    fresh: Registry[Section] = Registry(
        sections.kind, sections.group, name=sections._name, check=sections._check, package=sections.package, find=sections._find
    )
    monkeypatch.setattr(contents, "sections", fresh)
    assert {"weather", "profile"} <= set(fresh)
    text = write_report([Weather()], tmp_path / "report.html").read_text(encoding="utf-8")
    assert "It rained" in text
    assert '"title":"Rain","unit":"mm"' in text
    assert "Weather of Tuesday" in write_report([Weather()], tmp_path / "report.md").read_text(encoding="utf-8")
