"""A judge as an object: `improve` goes by its scores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerscope.choose.judges import Scores
from layerscope.core.plugins import PluginError
from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.improving.judging import check_judge
from tests.improving.test_improve import quick, some_texts, write_labels

pytestmark = pytest.mark.usefixtures("stored")


class FirstBlock:
    """A judge that prefers the first block, and the one-word template; without draws."""

    name = "first-block"
    views: tuple[str, ...] = ("dropped",)

    def judge(self, candidates: Any, *, seed: int = 0) -> Scores:
        scores = []
        for item in candidates.candidates:
            assert candidates.vectors(item, "dropped").shape == candidates.vectors(item).shape
            scores.append(float(item.readout.template == "one-word") + (item.layer == 1))
        return Scores(np.array(scores))


class Grid(FirstBlock):
    name = "grid"

    def judge(self, candidates: Any, *, seed: int = 0) -> Scores:
        return Scores(super().judge(candidates).values.reshape(2, -1))


class Failing(FirstBlock):
    name = "failing"

    def judge(self, candidates: Any, *, seed: int = 0) -> Scores:
        raise KeyError("no such thing")


class Blind(FirstBlock):
    name, views = "blind", ("upside-down",)


def test_its_scores_decide(llama: Any, tmp_path: Path) -> None:
    result = quick(llama, some_texts(), judge=FirstBlock())
    assert (result.choice.layer, str(result.choice.readout).split("/")[0]) == (1, "one-word")
    assert result.manifest["judge"] == "first-block"
    assert result.evidence.judge == "the judge first-block"
    assert (result.evidence.before, result.evidence.after) == (0.0, 2.0)
    assert set(result.table["score"]) == {0.0, 1.0, 2.0}
    file = write_labels(tmp_path / "labels.csv", some_texts(), "river")
    result = quick(llama, some_texts(), judge=FirstBlock(), labels=file)
    assert result.evidence.judge == "40 labeled examples and the judge first-block"


@pytest.mark.parametrize(
    ("judge", "error", "words"),
    [
        (Grid(), PluginError, r"'grid' must return Scores with 64 values"),
        (Failing(), PluginError, "the judge 'failing' failed: KeyError: 'no such thing'"),
        (Blind(), UnknownNameError, r"'blind' asks for 'upside-down'.*dropped, first-half"),
    ],
)
def test_a_wrong_judge_is_named(llama: Any, judge: Any, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        quick(llama, some_texts(), judge=judge)


def test_a_judge_is_a_name_or_an_object_with_a_method() -> None:
    assert check_judge(None) == check_judge("none") == "none"
    judge = FirstBlock()
    assert check_judge(judge) is judge
    words = "an object with name, views and a method `judge`, not"
    for other in (7, FirstBlock):
        with pytest.raises(LayerscopeError, match=words):
            check_judge(other)  # type: ignore[arg-type]
    words = r"unknown judge 'minilm-16'. Did you mean 'minilm-l6'\?.*none"
    with pytest.raises(UnknownNameError, match=words):
        check_judge("minilm-16")
