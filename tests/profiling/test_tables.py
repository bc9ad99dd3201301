"""The table's own work: resamples are drawn once for all sites, sites share the order of prompts,
notes follow the sites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from layerscope.core.columns import PROFILE, names
from layerscope.data import Corpus
from layerscope.metrics import intervals as intervals_module
from layerscope.metrics.dataset_entropy import DatasetEntropy
from layerscope.models import LoadedModel
from layerscope.profiling import tables as tables_module
from layerscope.profiling.config import make_config
from layerscope.profiling.encode import MemoryStore
from layerscope.profiling.job import Job
from layerscope.profiling.tables import TableBuilder
from layerscope.progress import Silent
from layerscope.store import ShardStore
from tests.tiny import tiny_model

TEXTS = [f"{'Some words, ' * (i % 5)}and number {i}." for i in range(12)] + ["", "a"]
METRICS = ["prompt_entropy", "dataset_entropy", "curvature", "sink_first"]


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return tiny_model("llama")


@pytest.fixture
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = TableBuilder.__init__

    def init(self: TableBuilder, *given: Any) -> None:
        begin(self, *given)
        self.device = torch.device("cpu")

    monkeypatch.setattr(TableBuilder, "__init__", init)
    monkeypatch.setattr(TableBuilder, "_sites_together", lambda self, prompts: 3)


def run(model: LoadedModel, folder: Path | None = None, **settings: Any) -> Any:
    job = Job(model, Corpus.of(TEXTS), make_config(max_length=24, metrics=METRICS, **settings))
    return job.run(MemoryStore() if folder is None else ShardStore(folder), Silent())


@pytest.mark.usefixtures("as_on_gpu")
def test_resamples_are_drawn_once_for_each_number_of_prompts(model: LoadedModel) -> None:
    intervals_module._weights.cache_clear()
    table = run(model, seed=3).table
    bootstrapped = table[table["metric"] != "dataset_entropy"]
    counts = bootstrapped["n"].nunique()  # the shortest texts have no entropy and no curvature
    assert counts == 3
    assert intervals_module._weights.cache_info().misses == counts


def test_the_order_of_prompts_is_found_once(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    values = tables_module.PromptValues

    class Counted(values):  # type: ignore[misc, valid-type]
        def _sorted(self) -> Any:
            made.append(1)
            return super()._sorted()

    monkeypatch.setattr(tables_module, "PromptValues", Counted)
    run(model, tmp_path)
    assert len(made) == 2  # with the sink token and without


@pytest.mark.usefixtures("as_on_gpu")
def test_means_are_taken_beside_the_gpus_work(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def noted(owner: type, name: str) -> None:
        what = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given: (done.append(name), what(*given))[1])

    noted(DatasetEntropy, "prepare")
    noted(TableBuilder, "_means")
    noted(DatasetEntropy, "estimate")
    run(model)
    # of every few sites: the GPU is given its work, the means are taken, and only then somebody
    # waits for the GPU
    order = [name for i, name in enumerate(done) if i == 0 or name != done[i - 1]]
    assert order[:4] == ["prepare", "_means", "estimate", "prepare"]


@pytest.mark.usefixtures("as_on_gpu")
def test_how_many_sites_wait_together_changes_nothing(
    model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = run(model)
    monkeypatch.setattr(tables_module, "_NUMBERS_HELD", 1)
    alone = run(model)
    for column in ("value", "ci_low", "ci_high"):
        np.testing.assert_allclose(alone.table[column], together.table[column], rtol=1e-12)


def test_rows_and_notes_follow_the_sites(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables_module, "_BOUND_SLACK", -1e9)  # everything is out of bounds
    found = run(model, tmp_path)
    sites = list(dict.fromkeys(found.table["site"]))
    assert list(found.table.columns) == names(PROFILE)
    told = [
        text.split(" at ")[1].split(" is ")[0]
        for text in found.manifest["warnings"]
        if "outside its bounds" in text
    ]
    assert list(dict.fromkeys(told)) == sites
    first = found.table[found.table["site"] == sites[0]]
    assert list(dict.fromkeys(first["metric"])) == METRICS
    for label, by_site in found.manifest["counts"]["undefined"].items():
        assert label.split(" (")[0] in METRICS
        assert list(by_site) == sites
