"""What a sweep will take, told without loading a weight."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from layerscope import load
from layerscope.sweeps.estimate import Estimate, total_seconds
from layerscope.sweeps.read import ModelEntry
from layerscope.sweeps.run import sweep
from layerscope.sweeps.shape import Shape, UnknownShapeError, seconds_per_token, shape_of
from layerscope.sweeps.terminal import count, duration, size


def test_shapes_from_configs(home: Path) -> None:
    found, real = shape_of(ModelEntry(str(home / "step-20"))), load(home / "step-20")
    assert found.parameters == sum(p.numel() for p in real.module.parameters())
    assert (found.blocks, found.width) == (real.n_blocks, real.width)
    assert 0 < seconds_per_token(found, ModelEntry("x")) < 0.1


def test_a_catalogue_model_that_is_not_there_yet() -> None:
    shape = shape_of(ModelEntry("smollm2-135m"))  # the tests' cache is empty
    assert shape == Shape(134_515_008, 30, 576)
    assert 0 < seconds_per_token(shape, ModelEntry("x")) < 1


def test_a_model_of_which_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UnknownShapeError, match="no such file or folder"):
        shape_of(ModelEntry("./nowhere"))


def test_nothing_is_done_where_only_the_estimate_is_wanted(home: Path, wanted: dict[str, Any], tmp_path: Path) -> None:
    told: list[list[Estimate]] = []
    asked = {**wanted, "profile": {**wanted["profile"], "views": 3, "metrics": ["infonce"]}}
    done = sweep(asked, out=tmp_path / "out", estimate_only=True, told=told.append)
    assert not (tmp_path / "out").exists()
    assert told == [done.estimates]
    assert set(done.jobs["status"]) == {"waiting"}
    first, second = done.estimates[:2]
    lines = (home / "first.txt").read_text(encoding="utf-8").splitlines()
    assert first.texts == len(lines)
    assert second.texts == 7
    # a token per byte and one more, up to 24, in four passes: near enough, from a mean over all texts
    exact = 4 * sum(min(24, 1 + len(line)) for line in lines)
    assert first.tokens == pytest.approx(exact, rel=0.1)
    assert first.disk == len(lines) * 4 * 4 * 32 * 4
    assert first.seconds is not None
    assert math.isfinite(first.seconds)
    assert all(one.seconds is None and "nowhere" in one.note for one in done.estimates[4:])


def test_the_sum_is_shared_among_workers() -> None:
    some = [Estimate("a", seconds=10.0), Estimate("b", seconds=30.0), Estimate("c"), Estimate("d", seconds=0.0)]
    assert total_seconds(some, 1) == 40
    assert total_seconds(some, 4) == 30  # no less than the longest
    assert total_seconds([], 2) == 0


def test_numbers_for_people() -> None:
    assert [count(n) for n in (None, 12, 12_000, 134_515_008, 8e9)] == ["–", "12", "12 k", "135 M", "8 G"]
    assert [duration(s) for s in (0.4, 119, 600, 7200)] == ["0 s", "119 s", "10 min", "2.0 h"]
    assert [size(n) for n in (None, 5, 3 * 2**20, 3 * 2**30)] == ["–", "1 MB", "3 MB", "3.0 GB"]
