"""What a sweep will take, told without loading a weight."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from layerscope import load
from layerscope.studies.shared.models import read_spec
from layerscope.sweeps.estimate import (
    MachineSpeed,
    Shape,
    StepEstimate,
    UnknownShapeError,
    estimate_all,
    seconds_per_token,
    shape_of,
    total_seconds,
)
from layerscope.sweeps.plan import read_plan
from layerscope.sweeps.run import sweep
from layerscope.sweeps.terminal import count, duration, size


def test_shapes_from_configs(home: Path) -> None:
    found, real = shape_of(read_spec(str(home / "step-20"))), load(home / "step-20")
    assert found.parameters == sum(p.numel() for p in real.module.parameters())
    assert (found.blocks, found.width) == (real.n_blocks, real.width)
    assert 0 < seconds_per_token(found, "float32", "cpu", 24, MachineSpeed("cpu")) < 0.1


def test_a_catalogue_model_that_is_not_there_yet() -> None:
    shape = shape_of(read_spec("smollm2-135m"))  # the tests' cache is empty
    assert shape == Shape(134_515_008, 30, 576)
    assert 0 < seconds_per_token(shape, "float32", "cpu", 24, MachineSpeed("cpu")) < 1


def test_a_model_of_which_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UnknownShapeError, match="no such file or folder"):
        shape_of(read_spec("./nowhere"))


def test_nothing_is_done_where_only_the_estimate_is_wanted(home: Path, wanted: dict[str, Any], tmp_path: Path) -> None:
    told: list[list[StepEstimate]] = []
    asked = {**wanted, "profile": {**wanted["profile"], "views": 3, "metrics": ["infonce"]}}
    done = sweep(asked, out=tmp_path / "out", estimate_only=True, on_estimate=told.append)
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
    some = [StepEstimate("a", seconds=10.0), StepEstimate("b", seconds=30.0), StepEstimate("c"), StepEstimate("d", seconds=0.0)]
    assert total_seconds(some, 1) == 40
    assert total_seconds(some, 4) == 30  # no less than the longest
    assert total_seconds([], 2) == 0


def test_numbers_for_people() -> None:
    assert [count(n) for n in (None, 12, 12_000, 134_515_008, 8e9)] == ["–", "12", "12 k", "135 M", "8 G"]
    assert [duration(s) for s in (0.4, 119, 600, 7200, 200_000)] == ["0 s", "119 s", "10 min", "2.0 h", "2.3 days"]
    assert [size(n) for n in (None, 5, 3 * 2**20, 3 * 2**30)] == ["–", "1 MB", "3 MB", "3.0 GB"]


def test_studies_are_estimated_by_arithmetic_where_only_their_models_sizes_are_known() -> None:
    plan = read_plan(
        {
            "facts": {"org/a": {"parameters": 1_000_000, "blocks": 4, "width": 64}},
            "offline": True,
            "defaults": {"max_length": 64, "limit": 100},
            "steps": [
                {"name": "one", "study": "compare", "models": ["org/a", "org/a?dtype=bfloat16", "org/unknown"]},
                {"name": "two", "study": "checkpoints", "models": ["org/a"], "options": {"steps": ["step1", "step2"]}},
            ],
        }
    )
    one, two = estimate_all(plan, {}, machine=MachineSpeed("cpu", {"float32": 1e9, "bfloat16": 2e9}, {64: 1e-3}))
    work = 100 * 64 * (2 * 1_000_000 + 4 * 4 * 64 * 64)
    eigen = 2 * 100 * 5 * 1e-3
    assert one.unknown == ("org/unknown",)
    assert one.seconds == pytest.approx(work / 0.5e9 + work / 1e9 + 2 * (eigen + 15) + 2e6 / 50e6)
    assert one.download == 2_000_000  # the same files twice
    assert two.seconds == pytest.approx(2 * work / 0.5e9 + 2 * (eigen + 15) + 4e6 / 50e6)
    assert two.download == 4_000_000  # revisions are files of their own
    assert one.memory is not None
    assert one.memory > 4_000_000


def test_a_folder_of_checkpoints_is_one_shape(home: Path) -> None:
    shape = shape_of(read_spec(str(home)))
    assert (shape.checkpoints, shape.blocks, shape.width) == (2, 3, 32)
    assert shape.parameters == shape_of(read_spec(str(home / "step-20"))).parameters


def test_the_papers_recipe_can_be_estimated_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("asked the network"))
    machine = MachineSpeed("cuda", {"bfloat16": 4e14, "float32": 5e13}, {256: 1e-5, 512: 6e-5, 1024: 4e-4})
    costs = estimate_all(read_plan("paper"), {}, machine=machine)
    assert not [name for cost in costs for name in cost.unknown]
    by_name = {cost.job: cost for cost in costs}
    assert (by_name["llm2vec"].memory or 0) > 2 * 8_030_261_248
    assert by_name["training"].download == 11 * 2 * 405_334_016
    assert 600 < sum(cost.seconds or 0 for cost in costs) < 86400
