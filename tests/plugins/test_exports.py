"""An export format from outside the package: one file and an entry point, and it is written, told
and recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from layerscope.errors import UnknownNameError
from layerscope.exporting import export, verifying
from layerscope.exporting.card import print_export
from layerscope.exporting.formats import FORMATS
from tests.exporting.conftest import reload_here
from tests.tiny import tiny_model

pytest.importorskip("sentence_transformers")

FORMAT = """
import json

from layerscope.exporting.formats import ExportFormat


class Summary(ExportFormat):
    name = "summary"

    def write(self, draft):
        (draft.folder / "summary.json").write_text(json.dumps({"layer": draft.layer}))
        return {"files": ["summary.json"]}

    def card(self, facts):
        return f"## Summary\\n\\nSee {facts['files'][0]}."

    def lines(self, facts):
        return [f"summary in {facts['files'][0]}"]


SUMMARY = Summary()
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with the format, as pip would leave it."""
    info = tmp_path / "site" / "summary_export-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: summary-export\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[layerscope.formats]\nsummary = summary_export:SUMMARY\n"
    )
    (tmp_path / "site" / "summary_export.py").write_text(FORMAT)
    known = FORMATS.all()  # before the package is there
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(FORMATS, "_things", known)
    monkeypatch.setattr(FORMATS, "_loaded", False)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setattr(verifying, "reload", reload_here)
    return reload_here


@pytest.mark.usefixtures("installed")
def test_a_format_from_outside_is_written_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = export(tiny_model("llama"), 2, out=tmp_path / "x", max_length=64, formats=["summary"])
    assert (done.path / "summary.json").read_text() == '{"layer": 2}'
    assert done.facts["formats"] == {"summary": {"files": ["summary.json"]}}
    assert "## Summary" in (done.path / "README.md").read_text()
    print_export(done.facts)
    assert "summary in summary.json" in capsys.readouterr().out


def test_without_it_its_name_is_not_known(tmp_path: Path) -> None:
    assert "onnx" in FORMATS.all()
    with pytest.raises(UnknownNameError, match="export format 'summary'"):
        export(tiny_model("llama"), 2, out=tmp_path / "x", formats=["summary"])
