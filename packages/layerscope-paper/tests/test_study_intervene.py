"""The study of edits to the sink activation, on tiny models with a planted sink."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tests.evaluation.support import write_tasks
from tests.tiny import tiny_model

from layerscope.capture import expand_sites
from layerscope.core.statistics import LEAST_SHARE
from layerscope.errors import LayerscopeError
from layerscope.evaluation.job import evaluate
from layerscope.forward import read_states
from layerscope.models import LoadedModel
from layerscope_paper.studies.base import STUDIES
from layerscope_paper.studies.intervene import Intervene, _score_answers, _valley_answers, dip_at
from layerscope_paper.studies.run import study
from layerscope_paper.studies.shared.sink_edit import SinkEdit, find_sink_activation

LAYER, FEATURES, SIZES = 2, (3, 7), (400.0, -250.0)
OPTIONS: dict[str, Any] = {"least": 5.0, "massive": 50.0, "layer": -1}


@pytest.fixture(autouse=True, scope="module")
def with_the_study() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(STUDIES, "_things", {**STUDIES.all(), "intervene": Intervene()})
        yield


def planted(family: str = "llama") -> LoadedModel:
    """A tiny model whose second block makes the first token massive in two features."""
    model = tiny_model(family)

    def plant(_module: Any, _args: Any, output: Any) -> Any:
        states = (output if isinstance(output, torch.Tensor) else output[0]).clone()
        for feature, size in zip(FEATURES, SIZES, strict=True):
            states[:, 0, feature] += size
        return states if isinstance(output, torch.Tensor) else (states, *output[1:])

    model.anatomy.blocks[LAYER - 1].register_forward_hook(plant)
    return model


def all_states(
    model: LoadedModel, rows: list[np.ndarray], batch_size: int | None = None
) -> dict[tuple[int, int], torch.Tensor]:
    """States by row and layer."""
    found: dict[tuple[int, int], torch.Tensor] = {}

    def look(
        numbers: list[int], _batch: Any, site: int, raw: torch.Tensor, _state: torch.Tensor
    ) -> None:
        for place, number in enumerate(numbers):
            found[number, site] = raw[place, : len(rows[number])].clone()

    read_states(model, rows, expand_sites(None, model.anatomy), "raw", look, batch_size)
    return found


def rows_of(model: LoadedModel, texts: list[str]) -> list[np.ndarray]:
    return [np.asarray(ids) for ids in model.tokenize(texts).ids]


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "gpt2", "bert", "mamba"])
def test_the_planted_sink_is_found_and_each_edit_touches_its_entries_alone(
    family: str, texts: list[str]
) -> None:
    model = planted(family)
    rows = rows_of(model, texts)
    sink = find_sink_activation(model, rows, OPTIONS)
    assert sink.layer == LAYER
    assert sink.features == FEATURES
    assert sink.first_share == 1.0
    before = all_states(model, rows)
    for edit in ("remove", "clamp", "replace", "control"):
        with SinkEdit(model, sink, edit) as hooked:
            after = all_states(model, rows)
        assert hooked.edited == len(rows)
        for number in range(len(rows)):
            for layer in range(LAYER):
                assert torch.equal(after[number, layer], before[number, layer])
            old, new = before[number, LAYER], after[number, LAYER]
            touched = len(old) - 1 if edit == "control" else 0
            others = old[1:][:, list(FEATURES)]
            expected = old.clone()
            if edit in ("remove", "control"):
                expected[touched, list(FEATURES)] = 0.0
            elif edit == "replace":
                expected[0, list(FEATURES)] = others.mean(0)
            else:
                expected[0, list(FEATURES)] = others.abs().amax(0) * torch.tensor([1.0, -1.0])
            assert torch.allclose(new, expected, atol=1e-5), edit
            changed = (new != old).nonzero().tolist()
            assert changed == [[touched, feature] for feature in FEATURES]
    again = all_states(model, rows)
    assert all(torch.equal(again[key], before[key]) for key in before), (
        "the edit must end with its context"
    )


@pytest.mark.parametrize("family", ["llama", "bert", "mamba"])
def test_the_matched_control_moves_another_token_by_as_much(family: str, texts: list[str]) -> None:
    model = planted(family)
    rows = rows_of(model, texts)
    sink = find_sink_activation(model, rows, OPTIONS)
    before = all_states(model, rows)
    steps = []
    with SinkEdit(model, sink, "matched", seed=3) as hooked:
        after = all_states(model, rows)
    assert hooked.edited == len(rows)
    for number in range(len(rows)):
        old, new = before[number, LAYER], after[number, LAYER]
        changed = (new != old).any(-1).nonzero().flatten().tolist()
        assert len(changed) == 1
        assert changed != [0], "the sink itself is left as it is"
        step = (new - old)[changed[0]]
        assert step.norm() == pytest.approx(float(old[0, list(FEATURES)].norm()), rel=1e-4), (
            "as long as what `remove` takes out"
        )
        assert step[list(FEATURES)].abs().max() < 1e-3, "in another direction"
        steps.append(step / step.norm())
    assert torch.stack(steps).std(0).max() < 1e-4, "one direction for all texts, as the sink has"
    with SinkEdit(model, sink, "matched", seed=4):
        other = all_states(model, rows)
    assert not torch.equal(other[0, LAYER], after[0, LAYER]), (
        "another seed, another place or direction"
    )


@pytest.mark.parametrize("family", ["llama", "bert", "mamba"])
def test_the_moved_control_keeps_the_token_massive_in_other_features(
    family: str, texts: list[str]
) -> None:
    model = planted(family)
    rows = rows_of(model, texts)
    sink = find_sink_activation(model, rows, OPTIONS)
    before = all_states(model, rows)
    with SinkEdit(model, sink, "moved"):
        after = all_states(model, rows)
    for number in range(len(rows)):
        old, new = before[number, LAYER], after[number, LAYER]
        assert torch.equal(new[1:], old[1:])
        assert (new[0, list(FEATURES)] == 0).all()
        gained = (new[0] - old[0]).abs().argsort(descending=True)[:4].tolist()
        assert set(FEATURES) < set(gained), "two features lose what two others gain"
        assert new[0].norm() == pytest.approx(float(old[0].norm()), rel=0.02)


def test_padding_is_neither_edited_nor_counted(texts: list[str]) -> None:
    model = planted()
    rows = rows_of(model, [texts[1], texts[9]])
    sink = find_sink_activation(model, rows, OPTIONS)
    for edit in ("remove", "replace", "control", "matched", "moved"):
        with SinkEdit(model, sink, edit):
            together, alone = all_states(model, rows), all_states(model, rows, batch_size=1)
        for key, states in alone.items():
            assert torch.allclose(together[key], states, atol=1e-4), (edit, key)


def test_a_sink_in_the_embeddings_is_edited_before_the_first_block(texts: list[str]) -> None:
    model = tiny_model("llama")

    def plant(_module: Any, args: Any, kwargs: Any) -> Any:
        states = args[0].clone()
        states[:, 0, 5] += 500.0
        return (states, *args[1:]), kwargs

    model.anatomy.blocks[0].register_forward_pre_hook(plant, with_kwargs=True)
    rows = rows_of(model, texts[:3])
    sink = find_sink_activation(model, rows, OPTIONS)
    assert (sink.layer, sink.features) == (0, (5,))
    with SinkEdit(model, sink, "remove"):
        states = all_states(model, rows)
    assert all(states[number, 0][0, 5] == 0 for number in range(3))


def test_the_study_describes_the_model_without_its_sink(texts: list[str], tmp_path: Path) -> None:
    model = planted()
    run = study("intervene", model, data=texts, tasks="none", out=tmp_path / "run")
    table = run.table[run.table["kind"] == "value"]
    ratio = table[table["metric"] == "sink_ratio"].pivot(
        index="condition", columns="layer", values="value"
    )
    assert (ratio.loc[["none", "control", "matched", "moved"], LAYER] > 20).all()
    assert (ratio.loc[["remove", "clamp", "replace"], LAYER:] < 5).all(axis=None)
    change = run.table[run.table["kind"] == "difference"]
    early = change[change["layer"] < LAYER]
    assert (early["value"] == 0).all()
    assert not len(change[change["condition"] == "none"])
    there = change[(change["layer"] == LAYER) & (change["sink"] == "keep")].set_index("condition")
    assert (there.loc[["remove", "clamp", "replace"], "ci_low"] > 0).all()
    assert run.manifest["conventions"]["sink"]["features"] == list(FEATURES)
    assert any("layer 2 of 3" in line for line in run.verdict)
    assert run.verdict[0].startswith("In short: ")
    figure = run.plot()
    assert len(figure.axes) == 2


def test_scores_are_taken_under_every_edit_and_never_from_the_common_store(
    texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "layerscope_paper.studies.shared.models.evaluate", partial(evaluate, scoring_workers=0)
    )  # no processes to wait for
    data = write_tasks(tmp_path / "data")
    run = study(
        "intervene",
        planted(),
        data=texts,
        tasks=["Pairs"],
        edits=["remove", "matched"],
        data_dir=str(data),
        items=0,
    )
    scores = run.table[run.table["kind"] == "score"].pivot(
        index="condition", columns="layer", values="value"
    )
    assert (scores.loc["none", : LAYER - 1] == scores.loc["remove", : LAYER - 1]).all()
    assert (scores.loc["none", LAYER:] != scores.loc["remove", LAYER:]).all()
    assert any(line.strip().startswith("Scores, mean of 1 tasks") for line in run.verdict)
    assert any(
        line.startswith("remove against the controls") and "matched by" in line
        for line in run.verdict
    )
    assert len(run.plot().axes) == 3
    assert not (tmp_path / "cache" / "embeddings").exists()


def test_a_model_without_a_sink_is_refused_with_the_way_out(texts: list[str]) -> None:
    with pytest.raises(LayerscopeError, match=r"no sink was found.*least"):
        study("intervene", tiny_model("llama"), data=texts, tasks="none", least=50)
    run = study(
        "intervene",
        tiny_model("llama"),
        data=texts,
        tasks="none",
        layer=1,
        least=1.2,
        edits=["remove"],
    )
    assert run.manifest["conventions"]["sink"]["layer"] == 1
    with pytest.raises(LayerscopeError, match="layers 0 to 3"):
        study("intervene", tiny_model("llama"), data=texts, tasks="none", layer=9)


def test_a_dip_elsewhere_is_not_the_valley_that_was_edited() -> None:
    gone = np.array([4.0, 3.5, 4.0, 4.0, 4.0, 4.0, 3.9])  # an older dip at layer 1 is left
    same = np.array([4.0, 3.5, 4.0, 4.0, 1.0, 1.5, 3.9])
    assert dip_at(gone, 4)[1] < LEAST_SHARE
    assert dip_at(same, 4) == pytest.approx((2.9, 2.9 / 3.9))
    assert _valley_answers(4, {"none", "matched"}, ["remove"], ["matched"]) == [
        "the valley at layer 4 disappears under remove",
        "it stays under the control matched",
    ]


def test_a_fall_counts_for_the_sink_only_where_it_is_larger_than_the_controls() -> None:
    scores = {  # tasks by layers
        "none": [[50, 60], [52, 70], [48, 65], [50, 68]],
        "remove": [[50, 50], [52, 61], [48, 54], [50, 58]],
        "control": [[50, 60], [52, 70.5], [48, 64.5], [50, 68]],
        "matched": [[50, 51], [52, 60], [48, 55], [50, 57.5]],
    }
    by_condition = {name: pd.DataFrame(rows) for name, rows in scores.items()}
    assert _score_answers(by_condition, ["remove"], ["control"]) == [
        "scores of the last layer fall under remove",
        "under remove clearly more than under control",
    ]
    alike = _score_answers(by_condition, ["remove"], ["control", "matched"])[1]
    assert alike == "under remove not clearly more than under matched"
    assert _score_answers(by_condition, ["remove"], []) == [
        "scores of the last layer fall under remove",
        "which an edit of this size may do by itself",
    ]
    still = _score_answers(by_condition, ["control"], ["matched"])
    assert still == ["scores of the last layer do not clearly move under control"]
