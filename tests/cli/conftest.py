"""The command line as a function, in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.support import Cli, run_main
from tests.improving.conftest import in_few_parts

__all__ = ["in_few_parts"]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    monkeypatch.chdir(tmp_path)
    return lambda *words: run_main(monkeypatch, capsys, *words)


@pytest.fixture
def data(tmp_path: Path, texts: list[str]) -> Path:
    """The texts as a file."""
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(texts), encoding="utf-8")
    return path
