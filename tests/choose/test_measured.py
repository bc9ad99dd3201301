"""The choice from measured scores, on constructed evaluations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from layerscope.choose.bounds import block_limits
from layerscope.choose.measured import measure
from layerscope.choose.rule import Rule
from layerscope.choose.select import select
from layerscope.evaluation.items import ItemScores
from layerscope.store import checked
from tests.choose.support import READOUT, evaluation


def test_a_clear_winner() -> None:
    choice = select(evaluation({"a": [0.2, 0.5, 0.8, 0.6], "b": [0.3, 0.4, 0.7, 0.5]}, half=0.005))
    assert choice.rule == "measured"
    assert (choice.layer, choice.site, choice.readout) == (2, "block.1", "/".join(READOUT))
    assert choice.expected_gain == pytest.approx(20.0, abs=0.5)
    assert choice.tied == (2,)
    assert choice.risk_of_loss is not None
    assert choice.risk_of_loss < 0.01
    assert choice.blocks_saved == 1
    assert choice.after - choice.before == pytest.approx(20.0)


def test_noise_is_not_promised_as_a_gain() -> None:
    # twenty layers that differ by less than their intervals: the best of them is luck
    rng = np.random.default_rng(1)
    scores = [*(0.5 + 0.005 * rng.standard_normal(20)), 0.5]
    made = evaluation({"a": scores}, half=0.03)
    found = measure(made)
    assert found.scores.tied().sum() >= 20
    choice = select(made)
    assert choice.abstained
    assert choice.layer == 20
    assert "the last layer is kept" in choice.reason


def test_layers_without_a_score_on_some_task_are_left_out() -> None:
    made = evaluation({"a": [0.2, 0.9, 0.6, 0.5], "b": [0.2, 0.9, 0.6, 0.5]}, half=0.001)
    made.gains.loc[(made.gains["task"] == "b") & (made.gains["layer"] == 1), "score"] = np.nan
    choice = select(made)
    assert choice.layer == 2
    assert any("left out" in warning for warning in choice.warnings)


def test_a_bound_takes_an_earlier_layer() -> None:
    made = evaluation({"a": [0.2, 0.60, 0.605, 0.61, 0.5]}, half=0.0001)
    assert select(made).layer == 3
    assert select(made, tolerance=0.6).layer == 2
    assert select(made, tolerance=2.0).layer == 1
    tight = select(made, max_blocks=0.25, tolerance=0.1)
    assert tight.layer == 1
    assert any("max_blocks=" in warning for warning in tight.warnings)


def stored(folder: Path, scores: dict[int, np.ndarray]) -> None:
    """Results as an evaluation leaves them: one JSON and one array file per layer."""
    place = folder / "results" / "a"
    place.mkdir(parents=True)
    names = dict(
        zip(("template", "pooling", "final_norm", "sink", "centering"), READOUT, strict=True)
    )
    for layer, values in scores.items():
        told = {
            "task": "a",
            "layer": layer,
            **names,
            "scores": [{"split": "test", "subset": "default", "score": float(values.mean())}],
        }
        checked.write_json(place / f"k{layer}.json", told)
        ItemScores("mean", values).save(place / f"k{layer}.test.default.safetensors")


def test_stored_items_pair_the_layers(tmp_path: Path) -> None:
    # both layers share the items' difficulty, so a small steady difference is sure although each
    # score is not
    rng = np.random.default_rng(0)
    hard = rng.random(300)
    items = {0: hard, 1: hard + 0.02, 2: hard}
    items = {k: np.asarray(v, dtype=np.float32).astype(float) for k, v in items.items()}
    stored(tmp_path, items)
    made = evaluation({"a": [float(items[k].mean()) for k in range(3)]}, half=0.05, path=tmp_path)
    paired = select(made)
    assert (paired.layer, paired.tied) == (1, (1,))
    assert paired.expected_gain == pytest.approx(2.0, abs=1.0)
    assert paired.ci_low is not None
    assert paired.ci_high is not None
    assert paired.ci_high - paired.ci_low < 0.1
    assert not any("not stored" in warning for warning in paired.warnings)
    unpaired = select(evaluation({"a": [float(items[k].mean()) for k in range(3)]}, half=0.05))
    assert any("not stored" in warning for warning in unpaired.warnings)
    assert unpaired.abstained


def test_a_lead_of_which_nothing_is_known_moves_nothing() -> None:
    made = evaluation({"a": [0.2, 0.5, 0.61, 0.6]}, half=np.nan)
    choice = select(made)
    assert (choice.layer, choice.abstained, choice.expected_gain) == (3, True, 0.0)
    assert "not known" in choice.reason
    assert any("not known" in warning for warning in choice.warnings)


def test_without_items_several_tasks_tell_how_certain_a_lead_is() -> None:
    rng = np.random.default_rng(0)
    sure = {f"t{i}": [0.3, 0.5, 0.7 + 0.01 * rng.standard_normal(), 0.6] for i in range(8)}
    choice = select(evaluation(sure, half=np.nan))
    assert (choice.layer, choice.abstained) == (2, False)
    assert choice.ci_low is not None
    assert choice.ci_low > 5
    assert any("from task to task" in warning for warning in choice.warnings)
    luck = {f"t{i}": [0.3, 0.5, 0.61 + 0.1 * (-1) ** i, 0.6] for i in range(8)}
    assert select(evaluation(luck, half=np.nan)).abstained


def test_a_last_layer_is_as_uncertain_as_the_others() -> None:
    found = measure(evaluation({"a": [0.2, 0.5, 0.61, 0.6]}, half=0.02))
    assert found.scores.draws is not None
    assert found.scores.draws.std(axis=1).min() > 0.5  # points


def test_under_a_bound_ties_are_those_of_the_scores_that_choose() -> None:
    measured = measure(evaluation({"a": [0.2, 0.51, 0.525, 0.53, 0.2]}, half=0.03))
    assert select(
        evaluation({"a": [0.2, 0.51, 0.525, 0.53, 0.2]}, half=0.03), max_blocks=1.0
    ).layer in (1, 2)
    rule = Rule.of(measured.candidates, measured.scores, 4, block_limits(1.0, None, 4))
    # layer 1 ties with what was measured; in these scores it is far behind
    assert rule.choose(np.array([20.0, 30.0, 52.0, 53.0, 20.0])[:, None])[0] == 2
