"""Shared by the tests: the fixtures of the core's tests, the command as a function, small models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from paper_support import SETTINGS, Cli, run_main
from tests.conftest import (
    caches,
    cluster,
    few_experiments,
    model_folder,
    one_thread,
    own_cache,
    texts,
)
from tests.tiny import build_tiny, tiny_tokenizer

from layerscope.extras import MissingExtraError
from layerscope_paper.studies.run import StudyRun

__all__ = [
    "caches",
    "cluster",
    "few_experiments",
    "model_folder",
    "one_thread",
    "own_cache",
    "texts",
]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    """Run `layerscope-paper WORDS…` in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: run_main(monkeypatch, capsys, *words)


@pytest.fixture
def data(tmp_path: Path, texts: list[str]) -> Path:
    """The texts as a file."""
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(texts), encoding="utf-8")
    return path


@pytest.fixture
def figure_files() -> None:
    """For tests that look at the files of a figure."""


@pytest.fixture
def no_figure_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made, and not drawn into files: for tests that do not look at them."""
    from matplotlib.figure import Figure

    from layerscope.report import notebook

    monkeypatch.setattr(Figure, "savefig", lambda self, file, **_: file.write(b"a figure"))
    monkeypatch.setattr(notebook, "picture", lambda chart: chart.to_json().encode())


@pytest.fixture
def no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nothing could be drawn: the study must come out all the same."""

    def missing(self: StudyRun) -> None:
        raise MissingExtraError("drawing figures", "report")

    monkeypatch.setattr(StudyRun, "plot", missing)


@pytest.fixture(autouse=True)
def quick_folders(request: pytest.FixtureRequest) -> None:
    """Most of the time of a study on a tiny model would go into figures that no test looks at."""
    if (
        request.node.path.name.startswith("test_study")
        and "figure_files" not in request.fixturenames
    ):
        request.getfixturevalue("no_figure_files")


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> Path:
    """Two small models as folders, two small corpora as files."""
    folder = tmp_path_factory.mktemp("sweep")
    for seed, name in enumerate(("step-20", "step-100")):
        build_tiny("llama", seed).save_pretrained(folder / name)
        tiny_tokenizer().save_pretrained(folder / name)
    (folder / "first.txt").write_text("\n".join(texts), encoding="utf-8")
    (folder / "second.txt").write_text("\n".join(text.upper() for text in texts), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def wanted(home: Path) -> dict[str, Any]:
    """What a sweep's file says: two checkpoints, a model that is not there, two corpora."""
    models = [{"checkpoints": str(home / "step-*")}, {"name": str(home / "nowhere")}]
    corpora = [str(home / "first.txt"), {"data": str(home / "second.txt"), "limit": 7}]
    return {"models": models, "corpora": corpora, "profile": SETTINGS}
