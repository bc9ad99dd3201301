"""A template from outside the package is one definition: `improve` tries it and it can be
exported."""

from __future__ import annotations

from pathlib import Path

import pytest

import layerscope
from layerscope.core.plugins import PluginError
from layerscope.core.templates import TEMPLATES, names_of
from layerscope.exporting import verifying
from tests.exporting.conftest import reload_here
from tests.improving.test_improve import some_texts
from tests.plugins.support import install
from tests.tiny import tiny_model

TEMPLATE = """
from layerscope.core.templates import Template

SHORT = Template("in-short", "{text}. In short:", ("last",), tried=True, with_labels=True)
"""
GIVEN = {"judge": "none", "max_length": 160, "progress": False}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install("outside_template", TEMPLATE, "SHORT", TEMPLATES, tmp_path, monkeypatch)
    monkeypatch.setattr(verifying, "reload", reload_here)


@pytest.mark.usefixtures("installed")
def test_improve_tries_a_template_from_outside() -> None:
    assert names_of("tried") == ["plain", "one-word", "step-by-step", "in-short"]
    result = layerscope.improve(tiny_model("llama"), some_texts(), **GIVEN)
    assert result.table["readout"].str.startswith("in-short/last/").any()


@pytest.mark.usefixtures("installed")
def test_it_is_exported_by_name(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    scored = layerscope.export(
        tiny_model("llama"), 2, readout="in-short/last/raw", out=tmp_path / "one", max_length=96
    )
    assert "{text}. In short:" in (scored.path / "README.md").read_text(encoding="utf-8")


def test_a_name_that_is_taken_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = TEMPLATE.replace('"in-short", "{text}.', '"one-word", "{text}.')
    install("outside_taken", taken, "SHORT", TEMPLATES, tmp_path, monkeypatch)
    assert TEMPLATES.get("one-word").pattern.startswith("This sentence")
    assert "two templates are called 'one-word'" in TEMPLATES._broken["short"]
    with pytest.raises(PluginError, match="cannot be used"):
        TEMPLATES.get("short")


def test_the_documentation_lists_every_template() -> None:
    page = (Path(__file__).parents[2] / "docs" / "improve.md").read_text(encoding="utf-8")
    assert [name for name in names_of("with_labels") if f"`{name}`" not in page] == []
