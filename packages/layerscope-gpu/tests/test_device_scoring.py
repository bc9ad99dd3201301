"""`scoring="device"` against mteb's own code: the same tasks, both ways."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pytest
import torch
from datasets import Dataset, DatasetDict
from mteb.abstasks import AbsTaskClustering, AbsTaskRetrieval
from tests.evaluation.support import TASKS, write_tasks
from tests.tiny import tiny_model
from threadpoolctl import threadpool_limits

from layerscope import evaluate
from layerscope.core.readout import Readout
from layerscope.errors import LayerscopeError, RunFolderError
from layerscope.evaluation import scoring
from layerscope.evaluation.mteb_models import LayerView, model_meta
from layerscope.evaluation.results import ScoreResult, read_result
from layerscope.evaluation.scoring import encoded_texts
from layerscope.evaluation.tasks import reseed, resolve_tasks
from layerscope.evaluation.tasks.mteb_tasks import make_task
from layerscope_gpu.mteb_tasks import scorer as device_scoring
from layerscope_gpu.mteb_tasks.problems import NotDescribed, parts_of
from layerscope_gpu.mteb_tasks.scorer import DeviceScoring, score_problem

pytestmark = [pytest.mark.usefixtures("few_experiments"), pytest.mark.filterwarnings("ignore")]

READOUTS = ["plain/mean/applied/keep/none", "plain/wmean/raw/drop/corpus"]


@pytest.fixture(autouse=True)
def one_fit_thread() -> Iterator[None]:
    with threadpool_limits(1):
        yield


@pytest.mark.contract
def test_every_type_of_task_is_scored_as_by_mteb(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "data_dir": write_tasks(tmp_path / "data", pairs=40, texts=36), "store": tmp_path / "store", "layers": [0, 2, -1],
        "readouts": READOUTS, "scoring_workers": 0,
    }  # fmt: skip
    by_mteb = evaluate(tiny_model(), TASKS, scoring="mteb", **given)
    ours = evaluate(tiny_model(), TASKS, scoring="device", **given)
    keys = [
        "task",
        "split",
        "subset",
        "template",
        "pooling",
        "final_norm",
        "sink",
        "centering",
        "layer",
    ]
    both = by_mteb.scores.merge(ours.scores, on=keys, suffixes=("_mteb", ""))
    assert len(both) == len(by_mteb.scores) == len(ours.scores) == len(TASKS) * 6
    apart = (both["score"] - both["score_mteb"]).abs()
    assert apart[~both["task"].isin(["Topics"])].max() <= 1e-4
    assert apart.max() <= 0.05  # a text in twelve may fall on the other side
    gains = by_mteb.gains.merge(ours.gains, on=keys, suffixes=("_mteb", ""))
    exact = gains[~gains["task"].isin(["Topics", "Sets"])]
    np.testing.assert_allclose(exact["ci_high"], exact["ci_high_mteb"], atol=2e-3)
    assert by_mteb.manifest["scoring"] == {"by": "mteb"}
    assert ours.manifest["scoring"]["by"] == "device"
    assert not ours.manifest["scoring"]["by_mteb"]
    assert 0 <= ours.manifest["scoring"]["fits_converged"]["Topics"] <= 1
    assert by_mteb.manifest["conventions"]["scoring"] != ours.manifest["conventions"]["scoring"]


def test_a_folder_is_not_filled_by_both(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "data_dir": write_tasks(tmp_path / "data"), "store": tmp_path / "store", "layers": [-1], "scoring_workers": 0,
        "out": tmp_path / "run",
    }  # fmt: skip
    evaluate(tiny_model(), ["Pairs"], scoring="device", **given)
    files = sorted((tmp_path / "run" / "results").glob("*/*.safetensors"))
    assert [read_result(file).scoring for file in files] == ["device"]
    assert (
        evaluate(tiny_model(), ["Pairs"], scoring="device", **given).manifest["scoring"]["by"]
        == "device"
    )
    with pytest.raises(RunFolderError):
        evaluate(tiny_model(), ["Pairs"], scoring="mteb", **given)
    with pytest.raises(LayerscopeError, match="scoring"):
        evaluate(tiny_model(), ["Pairs"], scoring="gpu", **given)


def ranked_task(joined: bool, listed: bool, score: str = "map_at_1000") -> Any:
    """A small search: documents of two topics, some with a title, one that is judged but not there,
    two that are the same."""
    documents = [
        {"id": f"d{i}", "title": "t" * (i % 3), "text": f"document {i % 29}"} for i in range(30)
    ]
    queries = [
        {"id": f"q{i // 2}_{i % 2}" if joined else f"q{i}", "text": f"query {i}"} for i in range(8)
    ]
    relevant = {
        query["id"]: {f"d{(3 * i) % 30}": 1, f"d{i + 10}": 2, "gone": 1}
        for i, query in enumerate(queries)
    }
    ranked = (
        {
            query["id"]: [f"d{(i * 7 + k) % 30}" for k in range(12)]
            for i, query in enumerate(queries)
        }
        if listed
        else None
    )
    if joined:
        relevant = {query: relevant[query[:3] + "1"] for query in relevant}
    task = make_task("Search", "Reranking", description="made up", origin="tests", version="1")
    task.metadata = task.metadata.model_copy(update={"main_score": score})
    data = {"queries": Dataset.from_list(queries), "corpus": Dataset.from_list(documents)}
    task.dataset = {"default": {"test": {**data, "relevant_docs": relevant, "top_ranked": ranked}}}
    task.data_loaded = True
    return task


def both_ways(task: Any, score: str, width: int = 8) -> tuple[float, float]:
    """mteb's score of made-up vectors, and ours."""
    texts: dict[str, int] = {}
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(4000, width)).astype(np.float32)

    def rows(some: Any) -> np.ndarray:
        return np.array([texts.setdefault(text, len(texts)) for text in some])

    reseed(task)
    view = LayerView(lambda some: vectors[rows(some)], model_meta("made-up", None, width, None))
    found = mteb.evaluate(
        view, task, cache=None, show_progress_bar=False, co2_tracker=False
    ).task_results[0]
    reseed(task)
    (part,) = parts_of(task, rows)
    ours = score_problem(torch.as_tensor(vectors[None, : len(texts)]), part.problem)[0]
    return found.scores["test"][0][score], float(ours[0])


@pytest.mark.parametrize("score", ["map_at_1000", "ndcg_at_10", "map_at_5"])
@pytest.mark.parametrize("listed", [True, False], ids=["reranking", "retrieval"])
def test_documents_are_ranked_as_by_mteb(score: str, listed: bool) -> None:
    wanted, ours = both_ways(ranked_task(False, listed, score), score)
    assert ours == pytest.approx(wanted, abs=1e-5)


def test_queries_in_parts_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from mteb._evaluators.retrieval_metrics import max_over_subqueries

    task = ranked_task(True, True, "max_over_subqueries_map_at_1000")

    def specific(self: Any, scores: Any, qrels: Any, results: Any, **_: Any) -> dict[str, float]:
        return max_over_subqueries(qrels, results, self.k_values)

    monkeypatch.setattr(type(task), "task_specific_scores", specific)
    wanted, ours = both_ways(task, "max_over_subqueries_map_at_1000")
    assert ours == pytest.approx(wanted, abs=1e-5)


def test_the_newer_kind_of_clustering_draws_the_same_documents() -> None:
    class Drawn(AbsTaskClustering):
        metadata = ranked_task(False, True).metadata.model_copy(
            update={"name": "Drawn", "type": "Clustering", "main_score": "v_measure"}
        )
        max_fraction_of_documents_to_embed, max_document_to_embed = None, 150
        max_documents_per_cluster, n_clusters, k_mean_batch_size = 120, 3, 50

    task = Drawn()
    labels = [[f"a{i % 3}", f"b{i % 7}"] if i % 4 else [f"a{i % 3}"] for i in range(200)]
    task.dataset = DatasetDict(
        {
            "test": Dataset.from_dict(
                {"sentences": [f"text {i}" for i in range(200)], "labels": labels}
            )
        }
    )
    task.data_loaded = True
    wanted, ours = both_ways(task, "v_measure")
    assert ours == pytest.approx(wanted, abs=1e-4)


def test_a_task_with_steps_of_its_own_is_left_to_mteb() -> None:
    class Own(AbsTaskRetrieval):
        metadata = ranked_task(False, True).metadata

        def _evaluate_subset(self, *args: Any, **kwargs: Any) -> Any:
            return super()._evaluate_subset(*args, **kwargs)

    with pytest.raises(NotDescribed, match="_evaluate_subset"):
        parts_of(Own(), lambda texts: np.zeros(len(texts), int))
    with pytest.raises(NotDescribed, match="recall"):
        parts_of(ranked_task(False, True, "recall_at_5"), lambda texts: np.zeros(len(texts), int))


def test_a_task_that_fails_does_not_end_the_run_and_a_resumed_one_knows_who_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {
        "data_dir": write_tasks(tmp_path / "data", pairs=20, texts=24), "store": tmp_path / "store", "layers": [0, -1],
        "scoring": "device", "scoring_workers": 0, "out": tmp_path / "run",
    }  # fmt: skip
    known = parts_of

    def unready(task: Any, rows: Any) -> Any:
        if task.metadata.name == "Topics":
            raise RuntimeError("out of memory")
        if task.metadata.name == "Pairs":
            raise NotDescribed("has a step of its own")
        return known(task, rows)

    monkeypatch.setattr(device_scoring, "parts_of", unready)
    first = evaluate(tiny_model(), ["Topics", "Pairs"], **given)
    assert [(f["task"], "out of memory" in f["reason"]) for f in first.failed] == [("Topics", True)]
    assert set(first.scores["task"]) == {"Pairs"}
    monkeypatch.setattr(device_scoring, "parts_of", known)
    again = evaluate(tiny_model(), ["Topics", "Pairs"], **given)
    assert not again.failed
    assert again.manifest["scoring"]["by_mteb"] == {"Pairs": "has a step of its own"}
    assert set(again.scores["task"]) == {"Topics", "Pairs"}


def test_texts_by_description_are_those_that_mteb_encodes_in_its_order(tmp_path: Path) -> None:
    for spec in resolve_tasks(TASKS, data_dir=write_tasks(tmp_path, pairs=40, texts=36)):
        by_mteb, ours = spec.load(), spec.load()
        assert DeviceScoring.texts_of(ours.task) == encoded_texts(by_mteb.task)
        assert spec.facts(ours) == spec.facts(by_mteb)

    class Own(AbsTaskRetrieval):
        metadata = ranked_task(False, True).metadata

        def _evaluate_subset(self, *args: Any, **kwargs: Any) -> Any:
            return super()._evaluate_subset(*args, **kwargs)

    own, plain = Own(), ranked_task(False, True)
    own.dataset, own.data_loaded = plain.dataset, True
    assert DeviceScoring.texts_of(own) == encoded_texts(plain)  # with steps of its own: by mteb


def test_a_readout_that_is_the_same_for_all_texts_is_told_from_one_that_differs_late() -> None:
    vectors = np.full((1000, 4), 3.0, np.float32)
    assert scoring.is_constant(vectors)
    assert scoring.is_constant(
        vectors * (1 + 1e-7 * np.arange(1000)[:, None] / 1000).astype(np.float32)
    )
    assert scoring.is_constant(np.zeros((3, 4), np.float32))
    vectors[-1, 2] += 1e-4
    assert not scoring.is_constant(vectors)


def test_readers_are_bounded_by_the_largest_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_scoring.os, "cpu_count", lambda: 16)
    scorer = device_scoring.DeviceScoring(torch.device("cpu"))
    assert [scorer.readers(size) for size in (2**20, 2**30, 2**33)] == [4, 2, 1]


def test_the_share_of_converged_fits_is_that_of_all_fits() -> None:
    result = ScoreResult("a", Readout(), "embed", 0, "scored", scoring="device")
    made = [replace(result, converged=share) for share in (0.0, 0.0, 0.0, 1.0)]
    scorer = device_scoring.DeviceScoring(torch.device("cpu"))
    assert scorer.facts(made)["fits_converged"] == {"a": 0.25}
