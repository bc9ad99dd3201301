"""Every kind of run on a page, also where tables have missing values of any
type."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerscope.core.runs import run_kinds
from layerscope.report.page import write_report
from tests.report.synthetic import (
    synthetic_evaluation,
    synthetic_faster,
    synthetic_improvement,
    synthetic_probe,
    synthetic_run,
)

KINDS: dict[str, Callable[[], Any]] = {
    "profile": synthetic_run, "evaluation": synthetic_evaluation, "probe": synthetic_probe,
    "improve": synthetic_improvement, "encoder": synthetic_faster,
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_on_a_page_with_missing_values(kind: str, tmp_path: Path) -> None:
    run = KINDS[kind]()
    if kind == "profile":  # each metric is drawn alike
        run.table = run.table[run.table["metric"].isin(["prompt_entropy", "infonce"])]
    held = {"evaluation": "scores", "encoder": "front"}.get(kind, "table")
    table = getattr(run, held).reset_index(drop=True)
    table = table.assign(block=[1.0, *[np.nan] * (len(table) - 1)], word=None, share=np.nan)
    setattr(run, held, table)
    assert b"<NA>" not in write_report([run], tmp_path / "page.html").read_bytes()


def test_every_kind_is_covered() -> None:
    assert {name for name in run_kinds if run_kinds.source(name) is None} - {"choice"} == set(KINDS)
