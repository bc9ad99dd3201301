"""Measuring how cost grows: the points, one of them measured, and a budget that is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import scaling
from cost_model import Line, Point

TINY = Point(prompts=6, tokens=9, width=64, blocks=2, device="cpu")


def test_axes_vary_one_size() -> None:
    assert (
        set(scaling.CUDA_AXES)
        == set(scaling.CPU_AXES)
        == set(scaling.short(scaling.CUDA_AXES, "cuda"))
    )
    for axes, middle in ((scaling.CUDA_AXES, scaling.GPU), (scaling.CPU_AXES, scaling.CPU)):
        for axis in ("prompts", "views", "blocks", "width"):
            points = axes[axis]
            assert middle in points
            assert points == sorted(points, key=lambda p: getattr(p, axis))
            assert len({getattr(p, axis) for p in points}) == len(points)
            assert all(
                scaling.replace(p, **{axis: getattr(middle, axis)}) == middle for p in points
            )
    assert {p.prompts * p.tokens for p in scaling.CUDA_AXES["tokens"]} == {2**18}


@pytest.fixture(scope="module")
def models() -> scaling.Models:
    return scaling.Models()


def test_a_model_of_a_points_shape(models: scaling.Models) -> None:
    model = models.get(TINY)
    assert (model.n_blocks, model.width, model.max_length) == (2, 64, 8192)
    assert [len(ids) for ids in model.tokenize(scaling.gpu.make_texts(3, 9), 9).ids] == [9, 9, 9]
    assert models.get(scaling.replace(TINY, prompts=99)) is model
    assert models.get(scaling.replace(TINY, blocks=1)).n_blocks == 1


def test_measures_a_point(models: scaling.Models) -> None:
    line = scaling.measure(models, scaling.replace(TINY, disk=True))
    assert Point.of(line) == scaling.replace(TINY, disk=True)
    assert line["profile_s"] > line["bare_s"] > 0
    assert line["runs"] == 3
    assert line["write_gb_s"] > 0
    json.dumps(line)


def fake(seconds: dict[Point, float], now: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring a point takes that long, on a clock of its own."""

    def measure(models: Any, p: Point) -> Line:
        if p not in seconds:
            raise RuntimeError("CUDA out of memory")
        now[0] += seconds[p] * 2
        whole = {"profile_s": seconds[p], "bare_s": seconds[p], "first_s": seconds[p], "runs": 1}
        return {**scaling.asdict(p), **whole}

    monkeypatch.setattr(scaling, "measure", measure)
    monkeypatch.setattr(scaling, "Models", lambda: None)
    monkeypatch.setattr(scaling.time, "perf_counter", lambda: now[0])


def test_names_what_the_time_did_not_suffice_for(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [scaling.replace(TINY, prompts=10**n) for n in (1, 2, 3)]
    fake({points[0]: 1.0, points[1]: 10.0, points[2]: 100.0}, [0.0], monkeypatch)
    axes = {"prompts": points, "blocks": [points[0]]}
    lines = list(scaling.along(axes, ["prompts", "blocks"], 150.0))
    assert [line.get("profile_s") for line in lines] == [1.0, 10.0, None, 1.0]
    assert lines[2]["skipped"] == [scaling.asdict(points[2])]
    assert lines[2]["why"] == "over 150 s"
    assert lines[3]["axis"] == "blocks"
    assert all("profile_s" in line for line in scaling.along(axes, ["prompts", "blocks"], 1000.0))


def test_goes_on_after_a_point_that_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    points = [scaling.replace(TINY, width=n) for n in (64, 128)]
    fake({points[0]: 1.0}, [0.0], monkeypatch)
    lines = list(scaling.along({"width": points, "views": [points[0]]}, ["width", "views"], 1e9))
    assert [line["axis"] for line in lines] == ["width", "width", "views"]
    assert lines[1]["why"] == "RuntimeError: CUDA out of memory"
    assert "out of memory" in capsys.readouterr().err


def test_lines_are_written_as_they_come(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "made" / "results.jsonl"

    def along(*given: Any) -> Any:
        yield {"axis": "width", "profile_s": 1.0}
        assert len(file.read_text(encoding="utf-8").splitlines()) == 2
        raise KeyboardInterrupt

    monkeypatch.setattr(scaling, "along", along)
    with pytest.raises(KeyboardInterrupt):
        scaling.main(["--short", "--device", "cpu", "--json", str(file)])
    assert "machine" in json.loads(file.read_text(encoding="utf-8").splitlines()[0])
