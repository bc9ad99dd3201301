"""`layerscope report`."""

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


def test_mistakes(cli: Cli, folder: Path, tmp_path: Path) -> None:
    assert_refused(cli("report"), "a report needs at least one run")
    assert_refused(cli("report", tmp_path / "none"), "holds no run")
    assert_refused(cli("report", folder, "-o", "a.doc"), "a.doc does not end in .html")
