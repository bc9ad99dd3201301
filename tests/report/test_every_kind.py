"""Every kind of run and every study on a page, also where tables have missing values of any
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
from layerscope.report.drawing import new_figure, save_figure
from layerscope.report.write import write_report
from layerscope.store.verify import check_tree
from layerscope.studies.base import STUDIES
from layerscope.studies.run import study
from tests.evaluation.support import write_tasks
from tests.report.synthetic import (
    synthetic_evaluation,
    synthetic_improvement,
    synthetic_probe,
    synthetic_run,
    synthetic_study,
    synthetic_sweep,
)
from tests.tiny import build_tiny, tiny_model, tiny_tokenizer

KINDS: dict[str, Callable[[], Any]] = {
    "profile": synthetic_run, "evaluation": synthetic_evaluation, "probe": synthetic_probe, "study": synthetic_study,
    "sweep": synthetic_sweep, "improve": synthetic_improvement,
}  # fmt: skip


REST = sorted(set(STUDIES) - {"sublayers", "scores"})


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_on_a_page_with_missing_values(kind: str, tmp_path: Path) -> None:
    run = KINDS[kind]()
    if kind == "profile":  # each metric is drawn alike
        run.table = run.table[run.table["metric"].isin(["prompt_entropy", "infonce"])]
    if kind == "study":
        figure = new_figure(2, 1)
        figure.subplots().plot([0, 1])
        save_figure(figure, tmp_path / "figure.png")
        run.path = tmp_path
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
    assert set(run_kinds.all()) - {"choice"} == set(KINDS)


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


def settings_of(name: str, texts: list[str], folder: Path) -> tuple[list[Any], dict[str, Any]]:
    """The models and the smallest settings with which a study runs."""
    model = tiny_model("llama")
    if name == "checkpoints":
        for seed, step in enumerate((0, 20)):
            build_tiny("llama", seed).save_pretrained(folder / "training" / f"step{step}")
            tiny_tokenizer().save_pretrained(folder / "training" / f"step{step}")
        return [folder / "training"], {"data": texts[:4], "metrics": "prompt_entropy"}
    if name == "factorial":
        tasks = write_tasks(folder / "tasks", pairs=300, texts=600)
        given = {
            "tasks": "Pairs,TwitterSemEval2015",
            "data_dir": str(tasks),
            "items": 20,
            "fit": 200,
        }
        return [model], {**given, "max_length": 64}
    found: dict[str, tuple[list[Any], dict[str, Any]]] = {
        "compare": ([model, tiny_model("bert")], {"data": texts[:4], "metrics": "prompt_entropy"}),
        "extreme": ([model], {"data": texts[:3], "levels": [0, 1], "conditions": ["repetition"]}),
        "reasoning": ([model], {"data": texts[:4], "stride": 4}),
        "scale": (
            [model, tiny_model("llama", seed=1)],
            {"data": texts[:4], "metrics": "prompt_entropy"},
        ),
        "sublayers": ([model], {"data": texts[:4]}),
    }
    return found[name]


@pytest.mark.parametrize(
    "name", ["sublayers", *(pytest.param(name, marks=pytest.mark.slow) for name in REST)]
)
def test_every_study_on_a_page(name: str, texts: list[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    models, settings = settings_of(name, texts, tmp_path)
    study(name, *models, out=tmp_path / "run", progress=False, **settings)
    assert b"<NA>" not in write_report([tmp_path / "run"], tmp_path / "page.html").read_bytes()
    assert {check.status for check in check_tree(tmp_path / "run")} == {"ok"}
