"""Damaged workbooks: their texts, or one line."""

from __future__ import annotations

import contextlib
import zipfile
from pathlib import Path

import numpy as np
import pytest

from layerscope.data import load_corpus
from layerscope.errors import LayerscopeError
from tests.data.workbook import write_workbook
from tests.faults.inputs import mutate


def test_mutated_workbooks(tmp_path: Path) -> None:
    pytest.importorskip("python_calamine")
    rows = [["text", "n"], *([f"words {i}", i] for i in range(9))]
    write_workbook(tmp_path / "a.xlsx", rows)
    with zipfile.ZipFile(tmp_path / "a.xlsx") as packed:
        contents = {name: packed.read(name) for name in packed.namelist()}
    for seed in range(30):
        rng = np.random.default_rng(seed)
        chosen = sorted(contents)[int(rng.integers(len(contents)))]
        with zipfile.ZipFile(tmp_path / "b.xlsx", "w") as packed:
            for name, content in contents.items():
                packed.writestr(name, mutate(content, rng) if name == chosen else content)
        with contextlib.suppress(LayerscopeError):  # anything else is a defect
            load_corpus(tmp_path / "b.xlsx")
