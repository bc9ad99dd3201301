"""Links in the place of a file that is to be written: the file that a link leads to stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.support import Cli

MINE = "the user's own"


@pytest.fixture
def run(cli: Cli, model_folder: Path, tmp_path: Path) -> str:
    (tmp_path / "texts.txt").write_text("one text\nanother text\na third\n", encoding="utf-8")
    words = ("--metrics", "prompt_entropy", "--out", "run")
    assert cli("profile", model_folder, "--data", "texts.txt", *words).code == 0
    return "run"


def test_a_report_through_a_link(cli: Cli, run: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine.html"
    mine.write_text(MINE, encoding="utf-8")
    (tmp_path / "report.html").symlink_to(mine)
    cli("report", run, "--out", "report.html")
    assert mine.read_text(encoding="utf-8") == MINE


def test_a_report_through_a_hard_link(cli: Cli, run: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine.html"
    mine.write_text(MINE, encoding="utf-8")
    (tmp_path / "report.html").hardlink_to(mine)
    cli("report", run, "--out", "report.html")
    assert mine.read_text(encoding="utf-8") == MINE


def test_embed_through_a_link(cli: Cli, model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("one text\nanother text\n", encoding="utf-8")
    mine = tmp_path / "mine.parquet"
    mine.write_text(MINE, encoding="utf-8")
    (tmp_path / "v.parquet").symlink_to(mine)
    cli("embed", model_folder, "--data", "texts.txt", "--out", "v.parquet")
    cli("embed", model_folder, "--data", "texts.txt", "--out", "v.parquet", "--overwrite")
    assert mine.read_text(encoding="utf-8") == MINE
