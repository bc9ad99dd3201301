"""`layerscope report` and `open`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.support import Cli, assert_refused
from tests.report.synthetic import synthetic_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    synthetic_run().save(tmp_path / "run")
    return tmp_path / "run"


def test_a_page(cli: Cli, folder: Path, tmp_path: Path) -> None:
    ended = cli("report", folder)
    assert (ended.code, ended.out) == (0, "report.html\n")
    assert "Prompt entropy" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_another_format(cli: Cli, folder: Path, tmp_path: Path) -> None:
    assert cli("report", folder, "-o", "a.md").code == 0
    assert (tmp_path / "a.md").read_text(encoding="utf-8").startswith("# ")


def test_published_models(cli: Cli, tmp_path: Path) -> None:
    assert cli("report", "--atlas", "Pythia-14m,bert-base", "-o", "atlas.html").code == 0
    text = (tmp_path / "atlas.html").read_text(encoding="utf-8")
    assert "Pythia-14m" in text
    assert "bert-base" in text


def test_opening(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr("layerscope.report.server._until_interrupted", lambda: None)
    ended = cli("open", folder)
    assert ended.code == 0
    assert ended.out.startswith("http://127.0.0.1:")
    assert opened[0].rsplit(":", 1)[1][:5] == ended.out.rsplit(":", 1)[1][:5]  # the port
    assert (
        opened[0] != ended.out.strip()
    )  # it works once: others can read how a browser was started
    assert cli("open", folder, "--no-browser").code == 0
    assert len(opened) == 1


def test_mistakes(cli: Cli, folder: Path, tmp_path: Path) -> None:
    assert_refused(cli("report"), "give folders of finished runs, or --atlas")
    assert_refused(cli("report", tmp_path / "none"), "holds no run")
    assert_refused(cli("report", folder, "-o", "a.doc"), "unknown report format '.doc'")
    assert_refused(cli("report", "--atlas", "Pythia-41m"), "unknown atlas model", "Did you mean")
    assert_refused(cli("open", tmp_path / "none"), "holds no run")
    assert_refused(cli("open", folder, "--port", "99999999"), "cannot listen on port")
