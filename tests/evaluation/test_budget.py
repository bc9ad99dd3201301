"""A store that cannot hold all readouts: the run says so before anything is encoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from layerscope import evaluate
from layerscope.core.readout import all_readouts
from layerscope.errors import LayerscopeError
from layerscope_gpu.mteb_tasks.scorer import DeviceScoring
from tests.evaluation.support import watch, write_tasks
from tests.tiny import tiny_model

NEEDED = 120 * 26 * 32 * 4  # texts, kinds (12 + 12 + 2), features, bytes at one layer


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Any]:
    data = write_tasks(tmp_path / "data", pairs=120, texts=120)
    return {
        "out": tmp_path / "run",
        "data_dir": data,
        "store": tmp_path / "store",
        "layers": [-1],
        "scoring_workers": 0,
    }


def test_a_grid_that_does_not_fit_is_refused_before_anything_is_encoded(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = watch(monkeypatch)
    with pytest.raises(
        LayerscopeError,
        match=rf"{len(all_readouts())} readouts of 120 texts take 390 KB.*332 KB\. Raise store_size=",
    ):
        evaluate(tiny_model(), ["Pairs"], readouts="all", store_size=int(0.85 * NEEDED), **given)
    assert len(seen) == 0
    part = evaluate(
        tiny_model(),
        ["Pairs"],
        readouts="all",
        store_size=int(0.85 * NEEDED),
        sample=20,
        **{**given, "out": None},
    )
    assert part.manifest["tasks"]["Pairs"]["items"] == 20


def test_more_room_later_goes_on(given: dict[str, Any]) -> None:
    given = {**given, "readouts": ["plain/mean", "echo/max"]}
    with pytest.raises(LayerscopeError, match="Raise store_size="):
        evaluate(tiny_model(), ["Pairs"], store_size=10_000, **given)
    assert len(evaluate(tiny_model(), ["Pairs"], store_size=NEEDED, **given).scores) == 2


@pytest.mark.parametrize("scoring", ["mteb", "device"])
def test_what_does_not_fit_at_once_is_encoded_and_scored_in_turns(
    given: dict[str, Any],
    scoring: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = {**given, "layers": None, "readouts": ["plain/mean", "plain/last"], "scoring": scoring}
    tasks = (
        ["Pairs", "Sets", "Ranking"] if scoring == "device" else ["Pairs"]
    )  # mteb takes its time
    whole = evaluate(tiny_model(), tasks, **{**given, "out": None})
    store = sum(path.stat().st_size for path in given["store"].rglob("*") if path.is_file())
    text = 2 * 32 * 4  # bytes of a text at one layer
    in_turns = evaluate(
        tiny_model(),
        tasks,
        store_size=2 * 120 * text,
        **{**given, "store": given["out"].parent / "other"},
    )
    assert "turns of at most" in caplog.text
    assert any("turns of at most" in warning for warning in in_turns.manifest["warnings"])
    assert not (given["out"] / "vectors").exists()
    keys = ["task", "pooling", "layer"]
    both = whole.scores.merge(in_turns.scores, on=keys, suffixes=("", "_turns"))
    assert len(both) == len(whole.scores) == len(in_turns.scores)
    assert (both["score"] - both["score_turns"]).abs().max() < 1e-6
    assert store > 2 * 120 * text
    seen = watch(monkeypatch)
    assert len(evaluate(tiny_model(), tasks, store_size=2 * 120 * text, **given).scores) == len(
        whole.scores
    )
    assert len(seen) == 0  # it was complete


def test_a_run_in_turns_goes_on_where_it_stopped(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {
        **given,
        "layers": None,
        "readouts": ["plain/mean"],
        "store_size": 130 * 32 * 4,
        "scoring": "device",
    }
    stopped: list[int] = []
    own = DeviceScoring.run

    def stops(self: DeviceScoring, *arguments: Any) -> Any:
        stopped.append(1)
        if len(stopped) == 3:
            raise KeyboardInterrupt
        return own(self, *arguments)

    monkeypatch.setattr(DeviceScoring, "run", stops)
    with pytest.raises(KeyboardInterrupt):
        evaluate(tiny_model(), ["Pairs"], **given)
    monkeypatch.setattr(DeviceScoring, "run", own)
    seen = watch(monkeypatch)
    run = evaluate(tiny_model(), ["Pairs"], **given)
    layers = run.scores["layer"].nunique()
    assert len(run.scores) == layers == tiny_model().n_blocks + 1
    assert len(seen) == 120 * (
        layers - 3
    )  # a turn per layer: two were scored, the third was encoded
