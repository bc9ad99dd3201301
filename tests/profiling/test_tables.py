"""The table's own work: resamples are drawn once for all sites, and notes follow the sites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from layerscope.core.columns import PROFILE, names
from layerscope.data import Corpus
from layerscope.metrics import base as intervals_module
from layerscope.models import LoadedModel
from layerscope.profiling import tables as tables_module
from layerscope.profiling.config import make_config
from layerscope.profiling.encode import ProfileTask
from layerscope.profiling.job import run_profile
from layerscope.progress import Silent
from tests.tiny import tiny_model

TEXTS = [f"{'Some words, ' * (i % 5)}and number {i}." for i in range(12)] + ["", "a"]
METRICS = ["prompt_entropy", "dataset_entropy", "curvature", "sink_first"]


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return tiny_model("llama")


def run(model: LoadedModel, folder: Path, **settings: Any) -> Any:
    config = make_config(max_length=24, metrics=METRICS, **settings)
    return run_profile(ProfileTask(model, Corpus.of(TEXTS), config), folder, Silent())[0]


def test_resamples_are_drawn_once_for_each_number_of_prompts(
    model: LoadedModel, tmp_path: Path
) -> None:
    intervals_module._weights.cache_clear()
    table = run(model, tmp_path, seed=3).table
    bootstrapped = table[table["metric"] != "dataset_entropy"]
    counts = bootstrapped["n"].nunique()  # the shortest texts have no entropy and no curvature
    assert counts == 3
    assert intervals_module._weights.cache_info().misses == counts


def test_sites_that_are_large_are_read_one_by_one(
    model: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once: list[int] = []
    own = tables_module.map_concurrently

    def noted(purpose: str, function: Any, items: Any, most: int) -> Any:
        at_once.append(most)
        return own(purpose, function, items, most)

    monkeypatch.setattr(tables_module, "map_concurrently", noted)
    together = run(model, tmp_path).table
    monkeypatch.setattr(tables_module, "_LARGEST_SITE", 1)
    assert run(model, tmp_path).table.equals(together)
    assert at_once == [4, 1]


def test_rows_and_notes_follow_the_sites(model: LoadedModel, tmp_path: Path) -> None:
    found = run(model, tmp_path)
    sites = list(dict.fromkeys(found.table["site"]))
    assert list(found.table.columns) == names(PROFILE)
    first = found.table[found.table["site"] == sites[0]]
    assert list(dict.fromkeys(first["metric"])) == METRICS
    for label, by_site in found.manifest["counts"]["undefined"].items():
        assert label.split(" (")[0] in METRICS
        assert list(by_site) == sites
