"""A store that cannot hold all readouts: they are screened on a part first, and the run says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from layerscope import Evaluation, evaluate
from layerscope.core.readout import Readout, all_readouts
from layerscope.evaluation import job as evaluation_job
from layerscope.evaluation import plan as screening
from layerscope.store.embeddings import EmbeddingStore
from tests.evaluation.support import watch, write_tasks
from tests.tiny import tiny_model

NEEDED = 120 * 26 * 32 * 4  # texts, kinds (12 + 12 + 2), features, bytes at one layer

SEVEN = [f"plain/{pooling}" for pooling in ("mean", "wmean", "max", "last", "mean/raw", "max/raw", "last/raw")]  # a kind each


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(screening, "_SCREEN_LEAST", 10)
    data = write_tasks(tmp_path / "data", pairs=120, texts=120)
    return {"out": tmp_path / "run", "data_dir": data, "store": tmp_path / "store", "layers": [-1], "scoring_workers": 0}


def test_the_grid_is_screened_on_a_part(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watch(monkeypatch)
    budget = int(0.85 * NEEDED)
    run = evaluate(tiny_model(), ["Pairs"], readouts="all", store_size=budget, **given)
    screened = run.manifest["screened"]
    assert screened["of"] == len(all_readouts()) == 60
    assert len(screened["kept"]) == 6
    assert screened["items"] == {"Pairs": int(0.3 * 0.85 * 120)}
    assert any("screened on a part" in line and "Raise store_size=" in line for line in run.manifest["warnings"])
    names = {"/".join(row) for row in run.scores[["template", "pooling", "final_norm", "sink", "centering"]].to_numpy()}
    assert names == {*screened["kept"], "plain/mean/applied/keep/none"}
    assert run.manifest["tasks"]["Pairs"]["items"] == 120
    assert EmbeddingStore(given["store"], None).size() <= budget
    # what was screened best is what is kept
    small = Evaluation.load(given["out"] / "screen").scores
    assert len(small) == 60
    keys = ["template", "pooling", "final_norm", "sink", "centering"]
    best = small.sort_values("score", ascending=False).head(6)
    assert {"/".join(row) for row in best[keys].to_numpy()} == set(screened["kept"])
    # the part's texts are not encoded again in full
    templates = {name.split("/")[0] for name in names}
    assert len(seen) < 3 * 120
    assert len(seen) >= 120 * len(templates)


def test_what_does_not_fit_is_left_out_best_first(given: dict[str, Any]) -> None:
    run = evaluate(tiny_model(), ["Pairs"], readouts=SEVEN, store_size=100_000, **given)
    assert run.failed == []
    assert 1 <= len(run.manifest["screened"]["kept"]) < 6
    assert f"the best {len(run.manifest['screened']['kept'])} were scored" in " ".join(run.manifest["warnings"])


def test_more_room_later_scores_the_rest(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    seen = watch(monkeypatch)
    given = {**given, "readouts": ["plain/mean", "plain/max/raw", "echo/mean/raw/drop", "echo/last"]}
    monkeypatch.setattr(screening, "_SCREEN_KEEP", 2)
    first = evaluate(tiny_model(), ["Pairs"], store_size=NEEDED // 6, **given)
    assert first.manifest["screened"]["of"] == 4
    count = len(seen)
    again = evaluate(tiny_model(), ["Pairs"], store_size=NEEDED // 6, **given)
    assert len(seen) == count
    assert again.manifest["screened"] == first.manifest["screened"]
    full = evaluate(tiny_model(), ["Pairs"], store_size=None, **given)  # as the warning advises
    assert full.manifest["screened"] is None
    assert len(full.scores) == 4 > len(first.scores)


def test_a_part_is_never_more_than_what_is_scored(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screening, "_SCREEN_LEAST", 100)
    run = evaluate(tiny_model(), ["Pairs"], readouts=SEVEN, store_size=30_000, sample=20, **given)
    assert run.manifest["screened"]["items"] == {"Pairs": 20}


def test_a_grid_that_fits_is_not_screened(given: dict[str, Any]) -> None:
    run = evaluate(tiny_model(), ["Pairs"], readouts=["plain/mean", "echo/max"], store_size=NEEDED, **given)
    assert run.manifest["screened"] is None
    assert not (given["out"] / "screen").exists()


def test_another_budget_screens_anew(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screening, "_SCREEN_KEEP", 2)
    small = evaluate(tiny_model(), ["Pairs"], readouts=SEVEN, store_size=100_000, **given)
    given["store"] = given["store"].with_name("fresh")
    larger = evaluate(tiny_model(), ["Pairs"], readouts=SEVEN, store_size=115_000, **given)
    assert larger.manifest["screened"]["budget"] == 115_000
    assert larger.manifest["screened"]["items"]["Pairs"] > small.manifest["screened"]["items"]["Pairs"]
    assert larger.manifest["key"] == small.manifest["key"]  # the same run: what was asked has not changed
    assert larger.manifest["config"]["readouts"] == [Readout.parse(name).name for name in SEVEN]


def test_a_screened_run_that_was_stopped_goes_on_with_its_readouts(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = evaluate(tiny_model(), ["Pairs"], readouts=SEVEN, store_size=100_000, **given)
    given = {**given, "out": given["out"].with_name("again"), "store": given["store"].with_name("fresh")}
    score_all = evaluation_job.score_all
    calls = []

    def stopped(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:  # after screening
            raise KeyboardInterrupt
        return score_all(*args)

    monkeypatch.setattr(evaluation_job, "score_all", stopped)
    with pytest.raises(KeyboardInterrupt):
        evaluate(tiny_model(), ["Pairs"], readouts=SEVEN, store_size=100_000, **given)
    # what was decided is in the manifest: resuming does not decide again, be it by other rules
    monkeypatch.setattr(screening, "_SCREEN_KEEP", 1)
    run = evaluate(tiny_model(), ["Pairs"], readouts=SEVEN, store_size=100_000, **given)
    assert run.manifest["screened"] == plain.manifest["screened"]
    assert len(calls) == 3
    pd.testing.assert_frame_equal(run.scores, plain.scores)
    assert run.manifest["key"] == plain.manifest["key"]
