"""Metrics on a task's own texts: as a corpus that is profiled, and through `correlate` and
`select`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.evaluation.support import write_tasks
from tests.metrics import reference as ref
from tests.tiny import tiny_model

from layerscope import profile, select
from layerscope.errors import DataError
from layerscope.models import LoadedModel
from layerscope.profiling import Profile
from layerscope_paper.correlation.task_texts import task_corpus

pytestmark = [pytest.mark.usefixtures("few_experiments"), pytest.mark.filterwarnings("ignore")]

TASKS = ["Pairs", "Topics"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def profiles(data: Path, model: LoadedModel) -> list[Profile]:
    metrics = ["dataset_entropy", "prompt_entropy", "effective_rank"]
    return [
        profile(
            model,
            task_corpus(task, data_dir=data),
            metrics=metrics,
            final_norm="applied",
            max_length=64,
            progress=False,
        )
        for task in TASKS
    ]


def test_a_task_is_a_corpus(data: Path) -> None:
    corpus = task_corpus("Topics", data_dir=data)
    assert corpus.name == "Topics"
    assert (corpus.source["kind"], corpus.source["task"]) == ("task", "Topics")
    assert (
        len(corpus.texts) == len(set(corpus.texts)) == 12
    )  # the test split; the training texts are others'
    fewer = task_corpus("Topics", data_dir=data, sample=9, seed=1)
    assert len(fewer) == 9
    assert set(fewer.texts) < set(corpus.texts)
    assert task_corpus("Topics", data_dir=data, sample=9, seed=1).texts == fewer.texts
    both = task_corpus("Pairs", data_dir=data)
    assert len(both) > 12  # sentence1 and sentence2
    with pytest.raises(DataError, match="has 5 different texts; at least 8 are needed"):
        task_corpus("Topics", data_dir=data, sample=5)
    with pytest.raises(DataError, match="names 4 tasks"):
        task_corpus("small", data_dir=data)


def test_a_rule_chooses_for_one_task(profiles: list[Profile]) -> None:
    for run in profiles:
        curve = run.curve("dataset_entropy")
        expected = int(curve["layer"].iloc[int(np.argmin(curve["value"]))])
        assert select(run, rule="lowest_dataset_entropy").layer == expected


def test_dataset_entropy_of_a_task_against_the_reference(
    profiles: list[Profile], data: Path, model: LoadedModel
) -> None:
    import torch

    texts = task_corpus("Topics", data_dir=data).texts
    pooled = []
    for text in texts:
        ids = torch.tensor([model.tokenize([text], 64).ids[0]])
        with torch.no_grad():
            pooled.append(model.module(input_ids=ids).last_hidden_state[0].mean(0).double().numpy())
    last = profiles[1].curve("dataset_entropy")["value"].iloc[-1]
    assert last == pytest.approx(
        ref.dataset_entropy(np.array(pooled), 1.0, "centered-unit"), abs=1e-4
    )
