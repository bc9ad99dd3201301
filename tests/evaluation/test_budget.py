"""A store that cannot hold all readouts: the run says so before anything is encoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from layerscope import evaluate
from layerscope.errors import LayerscopeError
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
        match=r"390 KB more are needed, its limit is 332 KB, .*Raise store_size=",
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
