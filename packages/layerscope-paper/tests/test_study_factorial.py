"""What of a gain belongs to the readout, what to the layer, and what to both: on scores whose
answer is known, and from tasks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.evaluation.support import write_tasks
from tests.tiny import tiny_model

import layerscope
from layerscope.core.heads import Ridge, make_target
from layerscope.errors import DataError, InvalidValueError
from layerscope.evaluation.tasks import resolve_tasks
from layerscope_paper.studies import factorial
from layerscope_paper.studies.factorial import (
    READOUTS,
    apply_readout,
    inner_gains,
    mixed_model,
    read_task,
    split_gains,
    summarize,
)
from layerscope_paper.studies.run import StudyRun, study

pytestmark = pytest.mark.usefixtures("few_experiments")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("tasks"), pairs=60, texts=120)


@pytest.fixture(scope="module")
def whole(data: Path) -> StudyRun:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(factorial, "LEAST_TEXTS", 10)
        given = {
            "tasks": "Pairs,TwitterSemEval2015,Ranking",
            "data_dir": str(data),
            "items": 20,
            "fit": 200,
        }
        return study("factorial", tiny_model("llama"), max_length=64, seed=1, **given)


def cube(readout: float, layer: float, both: float) -> np.ndarray:
    """Five tasks: one readout, one layer, and the two together gain so much over the baseline (the first
    readout, the last layer)."""
    made = np.zeros((5, len(READOUTS), 6)) + np.arange(5.0)[:, None, None]
    made[:, 3] += readout
    made[:, :, 2] += layer
    made[:, 3, 2] += both
    return made


def rows_of(cubes: dict[str, np.ndarray]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "kind": "score",
            "model": name,
            "task": f"t{t}",
            "reading": READOUTS[r],
            "layer": k,
            "depth": k / 5,
            "value": value,
        }
        for name, made in cubes.items()
        for (t, r, k), value in np.ndenumerate(made)
    )


@pytest.mark.parametrize(
    ("readout", "layer", "both"), [(4.0, 2.0, 1.0), (4.0, 2.0, -1.0), (5.0, 0.5, 0.0)]
)
def test_the_parts_of_a_gain(readout: float, layer: float, both: float) -> None:
    found = split_gains(cube(readout, layer, both))
    np.testing.assert_allclose(found, [[readout, layer, both, readout + layer + both]] * 5)


def test_a_task_does_not_choose_for_itself() -> None:
    scores = cube(0.0, 0.0, 0.0)
    scores[0, 5, 1] += 30  # one task alone, by luck
    assert split_gains(scores)[0, 3] == 0
    assert split_gains(scores, np.array([3.0, 0, 0, 0, 2.0]))[0, 3] == 0
    curves = scores[:, 0]
    curves[:, 3] += 2
    np.testing.assert_allclose(inner_gains(curves), 2.0)


def test_shares_and_the_mixed_model_recover_planted_gains() -> None:
    rng = np.random.default_rng(0)
    made = {
        name: 50 + cube(6.0, 2.0, 0.0) + rng.normal(0, 0.1, (5, len(READOUTS), 6)) for name in "abc"
    }
    table, verdict = summarize(rows_of(made), 0)
    shares = table[table["kind"] == "share"].set_index("reading")["value"]
    assert shares["readout"] == pytest.approx(75, abs=2)
    assert shares["layer"] == pytest.approx(25, abs=2)
    assert verdict[0].startswith(
        "In short: the readout alone brings +6.0 points, the layer alone +2.0, of +8.0 in all; "
    )
    assert verdict[0].endswith("mean 3, centered 3, weighted 3, last 3, echo 3, prompt 3, head 3.")
    inner = table[(table["kind"] == "inner") & table["model"].isna()].set_index("reading")
    assert (inner["ci_low"] > 1.5).all()
    mixed = table[table["kind"] == "mixed"].set_index("reading")
    assert mixed.loc["readout[T.last]", "value"] == pytest.approx(6, abs=0.3)
    assert mixed.loc["depth[T.middle]", "value"] == pytest.approx(
        1, abs=0.3
    )  # one of its two layers gains two
    assert mixed_model(rows_of({"a": made["a"]})) == []


@pytest.mark.parametrize("name", ["Pairs", "Topics", "Sets", "TwitterSemEval2015"])
def test_no_text_is_both_scored_and_fitted_on(
    data: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(factorial, "LEAST_TEXTS", 5)
    (spec,) = resolve_tasks(name, data_dir=str(data), sample=20)
    _, _, texts, fit = read_task(spec, 50, 0)
    assert not {text.casefold() for text in texts} & {text.casefold() for text in fit}
    assert 5 <= len(fit) == len(set(fit)) <= 50


def test_every_layer_is_scored_under_every_readout_by_mteb(data: Path, whole: StudyRun) -> None:
    scores = whole.table[whole.table["kind"] == "score"]
    tasks = list(dict.fromkeys(scores["task"]))
    assert tasks == ["Pairs", "TwitterSemEval2015"]
    (note,) = whole.manifest["warnings"]
    assert note.startswith("Ranking has ")
    assert len(scores) == len(tasks) * len(READOUTS) * 4
    prompts = scores[(scores["reading"] == "prompt") & (scores["layer"] == 0)]
    assert prompts["value"].isna().all()  # a prompt's last token is the same for all texts there
    settings = {
        "data_dir": data,
        "sample": 20,
        "seed": 1,
        "max_length": 64,
        "readouts": ["default"],
        "scoring_workers": 0,
        "progress": False,
    }
    own = layerscope.evaluate(tiny_model("llama"), ["Pairs"], **settings).scores.set_index("layer")[
        "score"
    ]
    mine = scores[(scores["reading"] == "mean") & (scores["task"] == "Pairs")].set_index("layer")[
        "value"
    ]
    np.testing.assert_allclose(mine, 100 * own[mine.index], atol=1e-3)
    assert whole.verdict[0].startswith("In short: the ")
    assert len(whole.plot().axes) == 1


def test_readouts_are_fitted_on_unscored_texts_alone() -> None:
    rng = np.random.default_rng(0)
    vectors = {
        name: rng.normal(size=(3, 50, 6)).astype(np.float32)
        for name in ("mean", "weighted", "last", "echo", "prompt")
    }
    changed = {name: rows.copy() for name, rows in vectors.items()}
    for rows in changed.values():
        rows[:, 1:20] += 3  # what other scored texts are does not matter
    for readout in READOUTS:
        one, other = (apply_readout(readout, given, 20, 0.9)[:, 0] for given in (vectors, changed))
        np.testing.assert_allclose(one, other, err_msg=readout)
    target = make_target(vectors["prompt"][2, 20:])
    wanted = Ridge(vectors["mean"][1, 20:], target).head()(vectors["mean"][1, :20])
    np.testing.assert_allclose(apply_readout("head", vectors, 20, 0.9)[1], wanted)


def test_what_cannot_be_compared_is_refused(data: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"two tasks or more, and can use 0\. Topics has \d+ texts that are not scored",
    ):
        study("factorial", tiny_model("llama"), tasks="Topics", data_dir=str(data), items=20)
    with pytest.raises(InvalidValueError, match="template=plain is a readout already"):
        study(
            "factorial", tiny_model("llama"), tasks="Topics", data_dir=str(data), template="plain"
        )
