"""The choice from measured scores, on constructed evaluations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from layerscope.choose.candidates import block_limits
from layerscope.choose.decide import Rule
from layerscope.choose.select import measure, select
from layerscope.core.readout import Readout
from layerscope.errors import LayerscopeError
from layerscope.evaluation.results import ItemScores
from layerscope.evaluation.run import Evaluation
from tests.choose.support import evaluation, profile, valley_curve


def test_a_clear_winner() -> None:
    choice = select(evaluation({"a": [0.2, 0.5, 0.8, 0.6], "b": [0.3, 0.4, 0.7, 0.5]}, half=0.005))
    assert (choice.rule, choice.layer, choice.site) == ("measured", 2, "block.1")
    assert choice.readout == Readout().name
    assert choice.expected_gain == pytest.approx(20.0, abs=0.5)
    assert choice.tied == (2,)
    assert choice.risk_of_loss < 0.01
    assert choice.after - choice.before == pytest.approx(20.0)


def test_noise_is_not_promised_as_a_gain() -> None:
    # twenty layers that differ by less than their intervals: the best of them is luck
    rng = np.random.default_rng(1)
    run = evaluation({"a": [*(0.5 + 0.005 * rng.standard_normal(20)), 0.5]}, half=0.03)
    assert run.scores.set_index("layer")["score"].idxmax() != 20
    assert measure(run)[1].tied().sum() >= 20
    choice = select(run)
    assert choice.abstained
    assert choice.layer == 20
    assert "the last layer is kept" in choice.reason


def test_layers_without_a_score_on_some_task_are_left_out() -> None:
    run = evaluation({"a": [0.2, 0.9, 0.6, 0.5], "b": [0.2, 0.9, 0.6, 0.5]}, half=0.001)
    run.gains.loc[(run.gains["task"] == "b") & (run.gains["layer"] == 1), "score"] = np.nan
    choice = select(run)
    assert choice.layer == 2
    assert any("left out" in warning for warning in choice.warnings)
    run.gains["score"] = np.nan
    with pytest.raises(LayerscopeError, match="no scores"):
        select(run)


def test_tasks_weigh_the_same_whatever_their_subsets() -> None:
    run = evaluation({"a": [0.2, 0.9, 0.5], "b": [0.2, 0.3, 0.8]}, half=0.001)
    rows = run.gains[run.gains["task"] == "a"]
    parts = [run.gains, rows.assign(subset="x"), rows.assign(subset="y")]
    table = pd.concat(parts, ignore_index=True)
    assert table.groupby("layer")["score"].mean().idxmax() == 1
    assert select(Evaluation(table, table, run.manifest, Path("nowhere"))).layer == 2


def test_a_bound_takes_an_earlier_layer() -> None:
    run = evaluation({"a": [0.2, 0.60, 0.605, 0.61, 0.5]}, half=0.0001)
    assert [select(run, tolerance=points).layer for points in (None, 0.6, 2.0)] == [3, 2, 1]
    bounded = select(run, max_blocks=0.25, tolerance=0.1)
    assert bounded.layer == 1
    assert any("max_blocks=" in warning for warning in bounded.warnings)


def test_stored_items_pair_the_layers() -> None:
    # both layers share the items' difficulty, so a small steady difference is sure although each
    # score is not
    hard = np.random.default_rng(0).random(300)
    items = {0: hard, 1: hard + 0.02, 2: hard}
    unpaired = evaluation({"a": [float(items[k].mean()) for k in range(3)]}, half=0.05)
    table = {(Readout().name, k): ItemScores("mean", values) for k, values in items.items()}
    choice = select(replace(unpaired, _items={("a", "test", "default"): table}))
    assert (choice.layer, choice.tied) == (1, (1,))
    assert choice.expected_gain == pytest.approx(2.0, abs=1.0)
    assert choice.ci_high - choice.ci_low < 0.1
    assert not any("not stored" in warning for warning in choice.warnings)


def test_a_lead_of_which_nothing_is_known_moves_nothing() -> None:
    choice = select(evaluation({"a": [0.2, 0.5, 0.61, 0.6]}, half=np.nan))
    assert (choice.layer, choice.abstained, choice.expected_gain) == (3, True, 0.0)
    assert "not known" in choice.reason
    assert any("not known" in warning for warning in choice.warnings)


def test_without_items_several_tasks_tell_how_certain_a_lead_is() -> None:
    rng = np.random.default_rng(0)
    sure = {f"t{i}": [0.3, 0.5, 0.7 + 0.01 * rng.standard_normal(), 0.6] for i in range(8)}
    choice = select(evaluation(sure, half=np.nan))
    assert (choice.layer, choice.abstained) == (2, False)
    assert choice.ci_low > 5
    assert any("differ between tasks" in warning for warning in choice.warnings)
    luck = {f"t{i}": [0.3, 0.5, 0.61 + 0.1 * (-1) ** i, 0.6] for i in range(8)}
    assert select(evaluation(luck, half=np.nan)).abstained


def test_under_a_bound_ties_are_those_of_the_scores_that_choose() -> None:
    run = evaluation({"a": [0.2, 0.51, 0.525, 0.53, 0.2]}, half=0.03)
    assert select(run, max_blocks=1.0).layer in (1, 2)
    candidates, scores, _ = measure(run)
    rule = Rule.of(candidates, scores, 4, block_limits(1.0, None, 4))
    # layer 1 ties with what was measured; in these scores it is far behind
    assert rule.choose(np.array([20.0, 30.0, 52.0, 53.0, 20.0])[:, None])[0] == 2


def test_the_same_model_with_another_adapter_is_another_model() -> None:
    run = profile({"prompt_entropy": valley_curve()}, adapters=[{"sha256": "one"}])
    scores = evaluation({"a": [0.5] * 21})
    scores.manifest["model"]["adapters"] = [{"sha256": "two"}]
    with pytest.raises(LayerscopeError, match="adapters"):
        select(run, scores)
    scores.manifest["model"]["adapters"] = [{"sha256": "one"}]
    assert select(run, scores).rule == "measured"
