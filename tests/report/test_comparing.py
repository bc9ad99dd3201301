"""Runs beside each other: one table, one figure, and what makes them hard to compare."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import layerscope
from layerscope.errors import LayerscopeError
from tests.report.synthetic import (
    READOUTS,
    synthetic_evaluation,
    synthetic_improvement,
    synthetic_probe,
    synthetic_run,
)


def test_profiles_are_side_by_side(tmp_path: Path) -> None:
    one, other = synthetic_run("one"), synthetic_run("other", valley=False).save(tmp_path / "other")
    both = layerscope.compare(one, tmp_path / "other")
    wide = both.wide("prompt_entropy")
    assert list(wide.columns) == ["one", "other"]
    assert wide.index.tolist() == list(range(7))
    np.testing.assert_allclose(wide["one"], one.curve("prompt_entropy")["value"])
    np.testing.assert_allclose(wide["other"], other.curve("prompt_entropy")["value"])
    assert ("prompt_entropy (sink dropped)", "one") in both.wide().columns
    assert len(both.plot(["prompt_entropy"]).axes) == 1
    assert "one" in both._repr_html_()


def test_models_of_different_depth_meet_at_the_depths_of_the_first() -> None:
    small, large = (
        synthetic_run("small", blocks=6, valley=False),
        synthetic_run("large", blocks=12, valley=False),
    )
    wide = layerscope.compare(small, large).wide("curvature")
    np.testing.assert_allclose(wide.index, np.arange(7) / 6)
    np.testing.assert_allclose(
        wide["large"], large.curve("curvature")["value"][::2]
    )  # every second layer is at such a depth


def test_conventions_that_differ_are_named() -> None:
    mixed = layerscope.compare(synthetic_run("a"), synthetic_run("b", final_norm="raw"))
    assert any("final norm" in note for note in mixed.notes)
    assert not any(
        "final norm" in note
        for note in layerscope.compare(synthetic_run("a"), synthetic_run("b")).notes
    )


def test_two_runs_of_one_model_are_told_apart(tmp_path: Path) -> None:
    runs = [synthetic_run().save(tmp_path / name) for name in ("first", "second")]
    assert layerscope.compare(*runs).labels == ["small (first)", "small (second)"]
    assert layerscope.compare(*runs, labels=["x", "y"]).wide("curvature").columns.tolist() == [
        "x",
        "y",
    ]


def test_evaluations_and_probes() -> None:
    scores = [
        synthetic_evaluation(name, "llama", 6, ["STSBenchmark"], READOUTS[:1])
        for name in ("a", "b")
    ]
    wide = layerscope.compare(*scores).wide("STSBenchmark")
    assert wide["a"].between(0, 100).all()
    assert wide["a"].max() > 1  # in points
    assert list(
        layerscope.compare(synthetic_probe("a"), synthetic_probe("b"))
        .wide()
        .columns.get_level_values("run")
    )[:2] == [
        "a",
        "b",
    ]


@pytest.mark.parametrize(
    ("runs", "why"),
    [
        ([synthetic_run()], "at least two"),
        ([synthetic_run(), synthetic_probe()], "of one kind"),
        ([synthetic_improvement(), synthetic_improvement()], "given: improve"),
    ],
)
def test_what_cannot_be_compared_is_refused(runs: list, why: str) -> None:
    with pytest.raises(LayerscopeError, match=why):
        layerscope.compare(*runs)


def test_unknown_names_are_refused() -> None:
    runs = synthetic_run("a"), synthetic_run("b")
    with pytest.raises(LayerscopeError, match="curvatur"):
        layerscope.compare(*runs, metrics=["curvatur"])
    with pytest.raises(LayerscopeError, match="one label per run"):
        layerscope.compare(*runs, labels=["a"])
    with pytest.raises(LayerscopeError, match="series"):
        layerscope.compare(*runs).wide("nothing")


def test_a_run_draws_another_beside_itself(tmp_path: Path) -> None:
    one, other = synthetic_run("one"), synthetic_run("other").save(tmp_path / "other")
    for drawn in (
        one.plot(other, metrics=["curvature"]),
        one.plot(tmp_path / "other", metrics=["curvature"]),
    ):
        (axis,) = drawn.axes
        assert len({line.get_color() for line in axis.lines}) == 2
    with pytest.raises(LayerscopeError, match="takes runs"):
        one.plot(3)


def test_wide_tables() -> None:
    run = synthetic_run()
    wide = run.wide(["curvature", "prompt_entropy"])
    assert wide.columns.tolist()[0] == "curvature"
    assert "prompt_entropy (sink dropped)" in wide
    np.testing.assert_allclose(wide["curvature"], run.curve("curvature")["value"])
    with pytest.raises(LayerscopeError, match="curvatur"):
        run.wide(["curvatur"])
    probe = synthetic_probe()
    assert probe.wide().columns.tolist() == probe.probes
    scored = synthetic_evaluation("a", "llama", 6, ["STSBenchmark", "Topics"], READOUTS)
    assert scored.wide(READOUTS[0]).columns.tolist() == ["STSBenchmark", "Topics"]
    assert scored.wide().shape == (7, 2 * len(READOUTS))
