"""A run whose curve has a valley that is the sink, and odd names."""

from __future__ import annotations

from pathlib import Path

import pytest

from layerscope.data import Corpus
from layerscope.profiling import Profile, profile
from tests.tiny import tiny_model

NAME = "<script>alert('[bold]$x_1$')</script>"


@pytest.fixture(scope="session")
def plain_run(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "run"
    model = tiny_model("llama")
    model.identity["name"] = NAME
    corpus = Corpus.of([*texts, "a"], name="<img src=x> [red]data[/]")
    profile(model, corpus, out=folder, max_length=24, views=2, permutations=2, final_norm="raw")
    return folder


@pytest.fixture
def run(plain_run: Path) -> Profile:
    run = Profile.load(plain_run)
    rows = (run.table["metric"] == "prompt_entropy") & (run.table["normalization"] == "raw")
    run.table.loc[rows & (run.table["sink"] == "keep"), "value"] = [3.0, 3.1, 1.25, 3.0]
    run.table.loc[rows & (run.table["sink"] == "drop"), "value"] = [3.0, 3.1, 3.2, 3.0]
    return run
