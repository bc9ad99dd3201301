"""The plain-Python stand-in for pytrec_eval, on answers that are known."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

_FILE = Path(__file__).parents[2] / "packages" / "pytrec-eval-pure" / "pytrec_eval" / "__init__.py"


def _load() -> ModuleType:
    """The file of this repository, whatever pytrec_eval is installed."""
    spec = importlib.util.spec_from_file_location("pytrec_eval_pure", _FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pure = _load()


def test_the_example_of_the_original() -> None:
    """The README of pytrec_eval prints these values for trec_eval's C code."""
    judged = {"q1": {"d1": 0, "d2": 1, "d3": 0}, "q2": {"d2": 1, "d3": 1}}
    run = {"q1": {"d1": 1.0, "d2": 0.0, "d3": 1.5}, "q2": {"d1": 1.5, "d2": 0.2, "d3": 0.5}}
    found = pure.RelevanceEvaluator(judged, {"map_cut.10", "ndcg_cut.10"}).evaluate(run)
    assert found["q1"] == pytest.approx({"map_cut_10": 0.3333333333333333, "ndcg_cut_10": 0.5})
    assert found["q2"] == pytest.approx(
        {"map_cut_10": 0.5833333333333333, "ndcg_cut_10": 0.6934264036172708}
    )


def test_ties_go_to_the_later_name_and_scores_are_single_precision() -> None:
    evaluator = pure.RelevanceEvaluator({"q": {"a": 1}}, {"P.1"})
    assert evaluator.evaluate({"q": {"a": 0.5, "b": 0.5}})["q"]["P_1"] == 0.0
    assert evaluator.evaluate({"q": {"a": 0.5 + 1e-12, "b": 0.5}})["q"]["P_1"] == 0.0
    assert evaluator.evaluate({"q": {"a": 0.5 + 1e-6, "b": 0.5}})["q"]["P_1"] == 1.0


def test_queries_without_judgments_are_left_out_and_unknown_measures_refused() -> None:
    assert pure.RelevanceEvaluator({"q": {"a": 1}}, {"P.1"}).evaluate({"other": {"a": 1.0}}) == {}
    with pytest.raises(ValueError, match=r"bpref.*Valid: P, map_cut, ndcg_cut, recall, success"):
        pure.RelevanceEvaluator({}, {"bpref"})


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(-1, 3), st.floats(-1, 1, width=32)), min_size=1, max_size=12),
    st.integers(1, 6),
)
def test_against_the_formulas_in_numpy(items: list[tuple[int, float]], cutoff: int) -> None:
    names = [f"d{i:02d}" for i in range(len(items))]
    judged = {name: rel for name, (rel, _) in zip(names, items, strict=True)}
    scores = {name: score for name, (_, score) in zip(names, items, strict=True)}
    measures = {f"{name}.{cutoff}" for name in ("map_cut", "ndcg_cut", "recall", "P", "success")}
    found = pure.RelevanceEvaluator({"q": judged}, measures).evaluate({"q": scores})["q"]
    order = sorted(names, key=lambda name: (scores[name], name), reverse=True)
    rel = np.array([judged[name] for name in order])
    hit, total = rel >= 1, int((rel >= 1).sum())
    top = hit[:cutoff]
    discount = 1 / np.log2(np.arange(len(rel)) + 2)
    best = np.sort(np.clip(rel, 0, None))[::-1]
    ideal = float((best * discount)[:cutoff].sum())
    precision = np.cumsum(hit) / np.arange(1, len(hit) + 1)
    assert found[f"P_{cutoff}"] == pytest.approx(top.sum() / cutoff)
    assert found[f"recall_{cutoff}"] == pytest.approx(top.sum() / total if total else 0.0)
    assert found[f"success_{cutoff}"] == float(top.any())
    assert found[f"map_cut_{cutoff}"] == pytest.approx(
        (precision * hit)[:cutoff].sum() / total if total else 0.0
    )
    assert found[f"ndcg_cut_{cutoff}"] == pytest.approx(
        (np.clip(rel, 0, None) * discount)[:cutoff].sum() / ideal if ideal else 0.0
    )
