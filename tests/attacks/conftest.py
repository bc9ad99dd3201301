"""The command line in a folder of its own, and two tiny models that differ in their weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.cli.support import Cli, run_main


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    monkeypatch.chdir(tmp_path)
    return lambda *words: run_main(monkeypatch, capsys, *words)


@pytest.fixture
def models(tmp_path: Path, model_folder: Path) -> tuple[Path, Path]:
    """Two folders in the working folder; their files have the same names and sizes."""
    from tests.tiny import build_tiny

    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        shutil.copytree(model_folder, folder)
    build_tiny("llama", seed=1).save_pretrained(other)
    return one, other


@pytest.fixture
def vectors() -> Callable[[Path], np.ndarray]:
    """Read the vectors of a file that `embed` wrote, (rows, width)."""
    return lambda file: np.array(pq.read_table(file).column("vector").to_pylist())
