"""A study that another package adds runs, prints, and is saved and loaded like one of the package's
own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from paper_support import run_main
from tests.tiny import tiny_model

import layerscope
import layerscope_paper
from layerscope_paper.studies.base import STUDIES

MODULE = '''
import pandas as pd

from layerscope_paper.studies import Option, Result, Study


class Lengths(Study):
    """How many tokens the texts have."""

    name = "lengths"
    title = "Tokens per text"
    models = (1, 1)
    texts = True
    options = (Option("twice", False, "count every token twice"),)

    def run(self, request, bar):
        from layerscope_paper.studies.shared.models import read_specs

        spec = read_specs(request.models)[0]
        model = spec.open(request)
        counts = [len(ids) for ids in model.tokenize(list(request.texts)).ids]
        value = sum(counts) / len(counts) * (2 if request.options["twice"] else 1)
        rows = [[spec.label, k, "prompt_entropy", value + k] for k in range(model.n_blocks + 1)]
        table = pd.DataFrame(rows, columns=["model", "layer", "metric", "value"])
        return Result(table, [f"In short: {value:g} tokens per text."], {"models": {spec.label: model.identity}})

    def draw(self, table, manifest):
        from layerscope_paper.drawing import new_figure

        figure = new_figure(2, 2)
        figure.subplots().plot(table["layer"], table["value"])
        return figure
'''
METADATA = "Metadata-Version: 2.1\nName: outside-study\nVersion: 1.0\n"


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package that declares a study as an entry point; the registry looks again."""
    site = tmp_path / "site"
    (site / "outside_study-1.0.dist-info").mkdir(parents=True)
    (site / "outside_study.py").write_text(MODULE, encoding="utf-8")
    (site / "outside_study-1.0.dist-info" / "METADATA").write_text(METADATA, encoding="utf-8")
    points = "[layerscope_paper.studies]\nlengths = outside_study:Lengths\n"
    (site / "outside_study-1.0.dist-info" / "entry_points.txt").write_text(points, encoding="utf-8")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(STUDIES, "_things", {})
    monkeypatch.setattr(STUDIES, "_broken", {})
    monkeypatch.setattr(STUDIES, "_loaded", False)
    yield
    sys.modules.pop("outside_study", None)


@pytest.mark.usefixtures("outside")
def test_in_python(texts: list[str], tmp_path: Path) -> None:
    assert "extreme" in STUDIES  # beside the built-in ones
    run = layerscope_paper.study(
        "lengths", tiny_model("llama"), data=texts[:3], out=tmp_path / "run", twice=True
    )
    counts = [len(ids) for ids in tiny_model("llama").tokenize(texts[:3]).ids]
    assert run.table["value"].iloc[0] == pytest.approx(2 * sum(counts) / 3)
    assert (tmp_path / "run" / "figure.png").is_file()
    again = layerscope.load_run(tmp_path / "run")
    assert isinstance(again, layerscope_paper.StudyRun)
    assert (again.kind, again.name) == ("study", "lengths")
    assert again.verdict == run.verdict
    assert again.table.equals(run.table)
    assert again.plot().axes


@pytest.mark.usefixtures("outside")
def test_on_the_command_line(
    texts: list[str],
    model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("\n".join(texts[:3]), encoding="utf-8")
    assert "Tokens per text" in run_main(monkeypatch, capsys, "study", "list").out
    assert "--set twice=false" in run_main(monkeypatch, capsys, "study", "list", "lengths").out
    ended = run_main(monkeypatch, capsys, "study", "lengths", model_folder, "--data", "texts.txt")
    assert ended.code == 0, ended
    assert ended.out.startswith("Tokens per text\nIn short: ")


def test_without_the_package_the_name_is_unknown() -> None:
    with pytest.raises(layerscope.LayerscopeError, match="unknown study 'lengths'"):
        layerscope_paper.study("lengths", tiny_model("llama"), data=["a"])
