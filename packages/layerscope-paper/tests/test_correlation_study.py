"""Metrics against scores: layer means on the same tasks, single tasks, what is undefined."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from layerscope.core.readout import Readout
from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.evaluation.run import Evaluation
from layerscope.profiling import Profile
from layerscope_paper.atlas import correlation_tables
from layerscope_paper.correlation import Correlations, Tables, correlate, from_runs, same_tasks
from layerscope_paper.correlation.maths import association
from layerscope_paper.terminal import print_correlations

DEFAULT = Readout()
FEW: dict[str, Any] = {"surrogates": 199, "bootstrap": 100}


def tables(layers: int = 12, tasks: int = 4, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A metric that follows the scores, one that is noise, one that never moves."""
    rng = np.random.default_rng(seed)
    level = np.sin(np.linspace(0, 3, layers)) + 0.8 * np.sin(
        np.linspace(0, 25, layers)
    )  # more than a bend
    scores = [
        {"task": f"t{t}", "layer": k, "score": level[k] + 0.1 * rng.normal() + t}
        for t in range(tasks)
        for k in range(layers)
    ]
    metrics = [{"metric": "follows", "layer": k, "value": -level[k]} for k in range(layers)]
    metrics += [{"metric": "noise", "layer": k, "value": rng.normal()} for k in range(layers)]
    metrics += [{"metric": "flat", "layer": k, "value": 0.1} for k in range(layers)]
    return pd.DataFrame(metrics), pd.DataFrame(scores)


def test_layer_means_and_single_tasks() -> None:
    metrics, scores = tables()
    found = correlate(metrics, scores, **FEW)
    rows = found.layers.set_index(["metric", "measure"])
    assert rows.loc[("follows", "spearman"), "value"] < -0.8
    assert rows.loc[("follows", "dcor"), "p_adjusted"] < 0.05
    assert rows.loc[("noise", "dcor"), "p"] > 0.05
    means = scores.groupby("layer")["score"].mean().to_numpy()
    follows = metrics[metrics["metric"] == "follows"]["value"].to_numpy()
    assert rows.loc[("follows", "dcor"), "value"] == pytest.approx(
        association("dcor", follows, means), abs=1e-12
    )
    assert rows.loc[("follows", "dcor"), ["layers", "tasks"]].tolist() == [12, 4]
    assert set(found.tasks["task"]) == {"t0", "t1", "t2", "t3"}
    one = found.tasks.set_index(["metric", "measure", "task"]).loc[
        ("follows", "kendall", "t2"), "value"
    ]
    own = scores[scores["task"] == "t2"]["score"].to_numpy()
    assert one == pytest.approx(association("kendall", follows, own), abs=1e-12)
    assert (found.layers["null_mean"] < found.layers["null_95"]).all()


def test_without_the_last_layer_stands_beside(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics, scores = tables()
    last = scores["layer"].max()
    metrics.loc[(metrics["metric"] == "noise") & (metrics["layer"] == last), "value"] = (
        50.0  # a jump that both curves share
    )
    scores.loc[scores["layer"] == last, "score"] += 50.0
    found = correlate(metrics, scores, **FEW)
    row = found.layers.set_index(["metric", "measure"]).loc[("noise", "dcor")]
    alone = (
        correlate(metrics[metrics["layer"] < last], scores, **FEW)
        .layers.set_index(["metric", "measure"])
        .loc[("noise", "dcor")]
    )
    assert row["value"] > 0.9 > 0.7 > row["value_without_last"]
    assert row["value_without_last"] == pytest.approx(alone["value"], abs=1e-12)
    assert row["p_without_last"] == pytest.approx(alone["p_adjusted"], abs=1e-12)
    monkeypatch.setenv("COLUMNS", "500")
    print_correlations(found, Tables(metrics, scores, {"model": "m"}))
    changed = f"noise {row['value']:.2f} → {row['value_without_last']:.2f}"
    assert f"without the last layer: {changed}" in capsys.readouterr().out


def test_constant_series_are_counted_and_never_nan() -> None:
    metrics, scores = tables()
    found = correlate(metrics, scores, **FEW)
    assert "flat" not in set(found.layers["metric"])
    assert {(u["metric"], u["reason"]) for u in found.undefined} == {
        ("flat", "the metric is constant")
    }
    assert len(found.undefined) == 5  # the mean and each of four tasks
    assert found.layers.drop(columns=["task"]).notna().all(axis=None)
    text = json.dumps(found.as_dict())
    assert "NaN" not in text


def test_short_series_are_refused_by_name() -> None:
    metrics, scores = tables(layers=4)
    found = correlate(metrics, scores, **FEW)
    assert found.layers.empty
    assert found.undefined[0]["reason"] == "4 points, at least 5 are needed"
    assert found.within().empty


def test_seeded() -> None:
    metrics, scores = tables()
    first = correlate(metrics, scores, **FEW).layers
    pd.testing.assert_frame_equal(first, correlate(metrics, scores, **FEW).layers)
    assert not first["p"].equals(correlate(metrics, scores, seed=1, **FEW).layers["p"])


def test_a_missing_task_does_not_move_the_mean() -> None:
    _, scores = tables(layers=10, tasks=5)
    scores = scores[~((scores["task"] == "t4") & (scores["layer"] == 3))]
    assert set(same_tasks(scores)["task"]) == {"t0", "t1", "t2", "t3"}
    assert same_tasks(scores)["layer"].nunique() == 10
    # a layer with one task only takes no part, and costs no other layer its tasks
    lonely = scores[(scores["layer"] != 7) | (scores["task"] == "t0")]
    assert 7 not in set(same_tasks(lonely)["layer"])
    assert same_tasks(lonely)["task"].nunique() == 4


def test_wrong_input_is_refused() -> None:
    metrics, scores = tables()
    with pytest.raises(UnknownNameError, match="dcor_corrected"):
        correlate(metrics, scores, measures=["dcorr"])
    with pytest.raises(LayerscopeError, match="the table of scores lacks score"):
        correlate(metrics, scores.rename(columns={"score": "value"}))
    with pytest.raises(LayerscopeError, match="at least 99"):
        correlate(metrics, scores, surrogates=10)


def test_the_atlas_gives_its_conventions() -> None:
    found = correlation_tables("Pythia-410m")
    assert found.facts["metrics_on"] == "mteb"
    assert any("different vectors" in note for note in found.notes)
    assert correlation_tables("mamba-370m").facts["metrics_on"] == "wikitext"
    # no final norm: the same vectors
    assert [note.split()[0] for note in correlation_tables("bert-base").notes] == ["curvature"]
    with pytest.raises(LayerscopeError, match="no scores"):
        correlation_tables("Llama3-8B")


def test_within_tasks_is_weaker_than_between_means_on_the_atlas() -> None:
    tables_ = correlation_tables("Pythia-410m")
    found = correlate(tables_.metrics, tables_.scores, measures=["dcor"], **FEW)
    within = found.within().set_index("metric")
    layers = found.layers.set_index("metric")
    assert (within["median"] < layers["value"]).all()
    assert within.loc["entropy_prompt", "tasks"] == 24
    assert layers.loc["dime", "tasks"] == 29


def _run(final_norm: str = "applied", module: str | None = "LlamaRMSNorm", **model: Any) -> Profile:
    layers = range(6)
    rows = [
        {"site": "embed" if k == 0 else f"block.{k - 1}", "layer": k, "depth": k / 5, "metric": metric, "normalization": "raw",
         "sink": sink, "value": float(k if sink == "keep" else -k)}
        for k in layers for metric, sinks in (("prompt_entropy", ("keep", "drop")), ("lidar", ("keep",))) for sink in sinks
    ]  # fmt: skip
    rows += [{**rows[0], "site": "block.0.attn"}]
    identity = {"name": "tiny", "weights_sha256": "a" * 64, "n_blocks": 5, **model}
    manifest = {
        "model": identity,
        "conventions": {"final_norm": final_norm, "final_norm_module": module},
    }
    return Profile(pd.DataFrame(rows), manifest, pd.DataFrame())


def _evaluation(tmp_path: Any, readout: Readout = DEFAULT, **model: Any) -> Evaluation:
    place = readout.columns
    rows = [
        {
            "task": "Pairs",
            "split": "test",
            "subset": subset,
            "layer": k,
            "depth": k / 5,
            "score": k / 10 + shift,
            **place,
        }
        for k in range(6)
        for subset, shift in (("a", 0.0), ("b", 0.2))
    ]
    identity = {"name": "tiny", "weights_sha256": "a" * 64, **model}
    return Evaluation(pd.DataFrame(rows), pd.DataFrame(), {"model": identity}, tmp_path)


def test_runs_of_the_same_model(tmp_path: Any) -> None:
    found = from_runs(_run(), _evaluation(tmp_path))
    assert found.notes == []
    assert found.scores["score"].tolist() == pytest.approx([0.1 + k / 10 for k in range(6)])
    assert len(found.metrics) == 12  # two metrics at six sites; the inner site is left out
    dropped = from_runs(_run(), _evaluation(tmp_path), sink="drop").metrics
    assert dropped[dropped["metric"] == "prompt_entropy"]["value"].tolist() == [
        0,
        -1,
        -2,
        -3,
        -4,
        -5,
    ]
    assert dropped[dropped["metric"] == "lidar"]["value"].tolist() == [0, 1, 2, 3, 4, 5]
    result: Correlations = correlate(found.metrics, found.scores, measures=["spearman"], **FEW)
    assert result.layers["value"].tolist() == [1.0, 1.0]


def test_another_final_norm_is_a_warning_and_another_model_an_error(tmp_path: Any) -> None:
    assert "different vector" in from_runs(_run("raw"), _evaluation(tmp_path)).notes[0]
    assert (
        from_runs(_run("raw", module=None), _evaluation(tmp_path)).notes == []
    )  # no norm to differ by
    with pytest.raises(LayerscopeError, match="differ in weights_sha256"):
        from_runs(_run(), _evaluation(tmp_path, weights_sha256="b" * 64))
    with pytest.raises(UnknownNameError, match="plain/mean/applied/keep/none"):
        from_runs(_run(), _evaluation(tmp_path), readout="plain/mean/raw/keep/none")
    with pytest.raises(UnknownNameError, match="sink"):
        from_runs(_run(), _evaluation(tmp_path), sink="lose")


def test_a_template_with_slashes_is_not_taken_for_the_final_norm(tmp_path: Any) -> None:
    readout = Readout("{text}, and/or that", "last", "raw")
    evaluation = _evaluation(tmp_path, readout)
    tables = from_runs(_run("raw"), evaluation, readout.name)
    assert tables.facts["final_norm"] == {"metrics": "raw", "scores": "raw"}
    assert tables.notes == []
    assert (
        "final_norm=applied, the scores with raw"
        in from_runs(_run(), evaluation, readout.name).notes[0]
    )


def test_runs_and_folders_are_taken_like_the_command_takes_them(tmp_path: Any) -> None:
    run, evaluation = _run(), _evaluation(tmp_path)
    found = from_runs(run, evaluation)
    by_tables = correlate(found.metrics, found.scores, measures=["spearman"], **FEW)
    for given in ((run, evaluation), (evaluation, run)):
        by_runs = correlate(*given, measures=["spearman"], **FEW)  # type: ignore[arg-type]
        pd.testing.assert_frame_equal(by_runs.layers, by_tables.layers)
        assert by_runs.facts["model"] == "tiny"
    dropped = correlate(run, evaluation, sink="drop", measures=["spearman"], **FEW)
    assert dropped.layers.set_index("metric").loc["prompt_entropy", "value"] == -1.0
    with pytest.raises(LayerscopeError, match="of a profile and of an evaluation"):
        correlate(run, run)  # type: ignore[arg-type]
    with pytest.raises(LayerscopeError, match="give one evaluation, not 2"):
        correlate([run, evaluation], evaluation)  # type: ignore[list-item]


def test_p_is_the_larger_of_both_nulls_and_is_corrected_over_metrics() -> None:
    metrics, scores = tables()
    found = correlate(metrics, scores, **FEW)
    assert found.facts["null"] == ["random phase", "permuted increments"]
    np.testing.assert_allclose(
        found.layers["p"], found.layers[["p_phase", "p_increments"]].max(axis=1)
    )
    for _, rows in found.layers.groupby("measure"):
        # two metrics vary: never less than alone, never more than Holm's method would say
        assert (rows["p_adjusted"] >= rows["p"] - 1e-12).all()
        assert rows["p_adjusted"].min() <= min(1.0, 2 * rows["p"].min()) + 0.02
    assert set(found.facts["power"]["spearman"]) == set(found.layers["metric"])
    assert all(0 <= power <= 1 for power in found.facts["power"]["spearman"].values())
