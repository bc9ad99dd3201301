"""The shapes of files that `--data` accepts: their texts and the columns beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from layerscope.data import load_corpus
from layerscope.data.corpus import TextStream

SHAPES = Path(__file__).parents[1] / "fixtures" / "shapes"
CASES: dict[str, dict[str, Any]] = json.loads(
    (SHAPES / "expected.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", CASES)
def test_a_shape(name: str) -> None:
    case = CASES[name]
    if case["file"].endswith(".xlsx"):
        pytest.importorskip("python_calamine")
    options = case.get("options", {})
    assert list(load_corpus(SHAPES / case["file"], **options).texts) == case["texts"]
    rows = list(TextStream(SHAPES / case["file"], **options).rows())
    assert [row.text for row in rows] == case["texts"]
    for column, values in case.get("columns", {}).items():
        given = [row.others.get(column) for row in rows]
        assert [None if one is None else str(one) for one in given] == values
