"""The tutorials: every cell runs (on tiny models here), and the notebooks are made from the
scripts."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.blocks import ROOT
from tests.docs.sandbox import stand_ins

FOLDER = ROOT / "docs" / "tutorials"
SCRIPTS = sorted(FOLDER.glob("*.py"))


@pytest.fixture(scope="module")
def tutorials() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "tutorials", ROOT / "docs" / "site" / "tutorials.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tutorials"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_cell_runs(
    script: Path, tutorials: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_ins(monkeypatch, tmp_path / "stand-ins")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    cells = tutorials.read(script)
    tutorials.run(cells, script.stem)
    assert any(cell.outputs for cell in cells)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_notebook_is_made_from_the_script(script: Path, tutorials: ModuleType) -> None:
    notebook = script.with_suffix(".ipynb")
    content = json.loads(notebook.read_text(encoding="utf-8"))
    sources = ["".join(cell["source"]) for cell in content["cells"]]
    assert sources == [cell.text for cell in tutorials.read(script)], (
        f"run: python docs/site/tutorials.py {script.stem}"
    )
    assert any(cell.get("outputs") for cell in content["cells"]), "a notebook without results"
    assert notebook.stat().st_size < 600_000


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_first_code_cell_installs_on_colab(script: Path, tutorials: ModuleType) -> None:
    first = next(cell for cell in tutorials.read(script) if cell.kind == "code")
    assert "google.colab" in first.text
    assert "pip" in first.text
    assert first.tags == ["colab"]
