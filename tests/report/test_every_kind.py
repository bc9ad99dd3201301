"""Every kind of run on a page, also where tables have missing values of any
type."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from layerscope.core.runs import run_kinds
from layerscope.core.tables import plain_columns
from layerscope.report.write import write_report
from tests.report.synthetic import (
    synthetic_evaluation,
    synthetic_improvement,
    synthetic_probe,
    synthetic_run,
)

KINDS: dict[str, Callable[[], Any]] = {
    "profile": synthetic_run, "evaluation": synthetic_evaluation, "probe": synthetic_probe,
    "improve": synthetic_improvement,
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_on_a_page_with_missing_values(kind: str, tmp_path: Path) -> None:
    run = KINDS[kind]()
    if kind == "profile":  # each metric is drawn alike
        run.table = run.table[run.table["metric"].isin(["prompt_entropy", "infonce"])]
    table = (
        (run.scores if kind == "evaluation" else run.table).reset_index(drop=True).convert_dtypes()
    )
    more = {"block": "Int64", "share": "Float64", "kept": "boolean", "word": "string"}
    table = table.assign(
        **{name: pd.array([pd.NA] * len(table), dtype=dtype) for name, dtype in more.items()}
    )
    table = table.assign(block=pd.array([1, *[pd.NA] * (len(table) - 1)], dtype="Int64"))
    setattr(run, "scores" if kind == "evaluation" else "table", table)
    assert b"<NA>" not in write_report([run], tmp_path / "page.html").read_bytes()


def test_every_kind_is_covered() -> None:
    assert {name for name in run_kinds if run_kinds.source(name) is None} - {"choice"} == set(KINDS)


def test_plain_columns_keep_numbers_and_missing_values() -> None:
    table = pd.DataFrame(
        {"a": [1, 2], "b": [1, None], "c": [True, None], "d": ["x", None], "e": [0.5, 1.5]}
    )
    plain = plain_columns(table.convert_dtypes())
    assert plain["a"].tolist() == [1, 2]
    assert plain["a"].dtype.kind == "i"
    assert plain["b"].tolist()[0] == 1.0
    assert np.isnan(plain["b"].tolist()[1])
    assert plain["c"].tolist() == [True, None]
    assert plain["d"].tolist() == ["x", None]
    assert plain["e"].tolist() == [0.5, 1.5]
