"""The study of scores by layer: what a metric's lowest value chooses."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pandas as pd
import pytest
from tests.evaluation.support import write_tasks
from tests.tiny import _LLAMA, hf, tiny_model, tiny_tokenizer

from layerscope.evaluation.job import evaluate
from layerscope.report.page import write_report
from layerscope_paper.correlation import correlate
from layerscope_paper.studies.run import StudyRun, study
from layerscope_paper.studies.scores import choose_by_lowest

pytestmark = pytest.mark.usefixtures("few_experiments")


def test_the_lowest_value_chooses_per_task_among_scored_layers() -> None:
    scores = pd.DataFrame(
        {"task": ["a"] * 3 + ["b"] * 3, "layer": [0, 1, 2] * 2, "score": [10.0, 30, 20, 50, 40, 45]}
    )

    def curve(values: list[float]) -> pd.DataFrame:
        return pd.DataFrame({"metric": "dime", "layer": range(4), "value": values})

    chosen = choose_by_lowest(curve([3.0, 1, 2, 0]), scores, ["dime"])
    # layer 3 has no score, so layer 1 is the lowest
    assert chosen[["task", "layer", "gain"]].values.tolist() == [["a", 1, 10.0], ["b", 1, -5.0]]
    assert choose_by_lowest(curve([0.0, 0, 1, 1]).assign(task="a"), scores, ["dime"])[
        "layer"
    ].tolist() == [0]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> StudyRun:
    """Two models on two small tasks; one has enough layers for a correlation."""
    from layerscope.models import wrap

    place = tmp_path_factory.mktemp("scores")
    data = write_tasks(place / "tasks")
    deep = wrap(
        hf.LlamaModel(hf.LlamaConfig(**{**_LLAMA, "num_hidden_layers": 6})).eval(),
        tiny_tokenizer(),
        "deep",
    )
    texts = [
        f"text number {i} about {['rain', 'bread', 'rock'][i % 3]} and more" for i in range(12)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAYERSCOPE_CACHE", str(place / "cache"))
        patch.setattr(
            "layerscope_paper.studies.shared.models.evaluate", partial(evaluate, scoring_workers=0)
        )  # no processes to wait for
        patch.setattr(
            "layerscope_paper.studies.scores.correlate",
            partial(correlate, surrogates=99, bootstrap=100),
        )
        return study(
            "scores", deep, tiny_model("bert"), data=texts, out=place / "run", max_length=48, final_norm="applied",
            tasks="Pairs,Topics", data_dir=str(data), task_texts=20, metrics="prompt_entropy,dataset_entropy,infonce",
            rules="infonce,dataset_entropy",
        )  # fmt: skip


@pytest.mark.usefixtures("figure_files")
def test_it_is_shown_on_a_page_in_words_and_in_a_picture(whole: StudyRun, tmp_path: Path) -> None:
    assert write_report([whole], tmp_path / "page.html").stat().st_size > 500


@pytest.mark.filterwarnings("ignore")
def test_the_table_has_scores_correlations_and_choices(whole: StudyRun) -> None:
    table = whole.table
    assert set(table["kind"]) == {"value", "score", "correlation", "choice"}
    scores = table[(table["kind"] == "score") & (table["model"] == "deep")]
    assert set(scores["task"]) == {"Pairs", "Topics"}
    assert sorted(scores["layer"].unique()) == list(range(7))
    rows = table[(table["kind"] == "correlation") & (table["model"] == "deep")]
    assert set(rows["measure"]) == {"dcor", "spearman", "kendall"}
    assert set(rows["metric"]) == {"prompt_entropy", "dataset_entropy", "infonce"}
    assert rows["p_adjusted"].between(0, 1).all()
    choices = table[(table["kind"] == "choice") & (table["model"] == "deep")]
    assert set(choices["metric"]) == {"infonce", "dataset_entropy"}
    for choice in choices.itertuples():  # the gain is that of the layer it names, over the last
        mine = scores[scores["task"] == choice.task].set_index("layer")["value"]
        assert choice.value == pytest.approx(mine[choice.layer] - mine[6])


@pytest.mark.filterwarnings("ignore")
def test_each_task_chooses_on_its_own_texts(whole: StudyRun) -> None:
    from layerscope.profiling import Profile

    assert whole.path is not None
    assert whole.manifest["conventions"]["metrics_on"] == "each task's own texts"
    choices = whole.table[(whole.table["kind"] == "choice") & (whole.table["model"] == "deep")]
    for task in ("Pairs", "Topics"):
        run = Profile.load(next((whole.path / "parts").rglob(f"deep-tasks/{task}/deep")))
        curve = run.curve("dataset_entropy").set_index("layer")["value"]
        chosen = choices[(choices["task"] == task) & (choices["metric"] == "dataset_entropy")][
            "layer"
        ].iloc[0]
        assert chosen == int(curve.idxmin())
        assert run.manifest["corpus"]["task"] == task


@pytest.mark.filterwarnings("ignore")
def test_the_verdict_says_what_it_depends_on(whole: StudyRun) -> None:
    text = "\n".join(whole.verdict)
    assert whole.verdict[0].startswith("In short: an inner layer has the best mean score in ")
    assert "(clearly in 0)" in whole.verdict[0], "too few tasks for more"
    assert "chosen on the same tasks" in text
    assert "It depends on the null" in text
    assert "In the mean over single tasks" in text
    assert "Over models nothing can be said" in text  # two families
    assert whole.plot() is not None
