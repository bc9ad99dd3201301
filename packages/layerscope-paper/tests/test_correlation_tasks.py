"""Profiles of each task's own texts, ready for `correlate`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.evaluation.support import write_tasks
from tests.tiny import tiny_model

from layerscope import evaluate, profile
from layerscope.errors import LayerscopeError
from layerscope.evaluation.run import Evaluation
from layerscope.models import LoadedModel
from layerscope.profiling import Profile
from layerscope_paper.correlation import from_runs
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
def scored(data: Path, model: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    place = tmp_path_factory.mktemp("scores")
    return evaluate(
        model,
        TASKS,
        data_dir=data,
        out=place / "run",
        store=place / "store",
        scoring_workers=0,
        progress=False,
        max_length=64,
    )


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


def test_profiles_of_tasks_give_each_task_its_own_values(
    scored: Evaluation, profiles: list[Profile]
) -> None:
    tables = from_runs(profiles, scored)
    assert tables.facts["metrics_on"] == "each task's own texts"
    assert tables.notes == []
    assert set(tables.metrics["task"]) == set(TASKS)
    own = tables.metrics[
        (tables.metrics["task"] == "Topics") & (tables.metrics["metric"] == "dataset_entropy")
    ]
    curve = profiles[1].curve("dataset_entropy").set_index("layer")["value"]
    assert own.set_index("layer")["value"].to_dict() == pytest.approx(curve.to_dict())
    assert "no profile of the texts of Topics" in from_runs(profiles[:1], scored).notes[0]


def test_runs_that_do_not_match_are_refused(
    scored: Evaluation, profiles: list[Profile], model: LoadedModel, texts: list[str]
) -> None:
    with pytest.raises(LayerscopeError, match="more than one profile of the texts of Pairs"):
        from_runs([profiles[0], profiles[0]], scored)
    general = profile(model, texts, metrics="dataset_entropy", max_length=64, progress=False)
    with pytest.raises(
        LayerscopeError, match="several profiles are taken only if each is of one task's texts"
    ):
        from_runs([profiles[0], general], scored)
