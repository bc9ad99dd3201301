"""A judge as an object: `improve` goes by its scores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import layerscope
from layerscope.choose.judges import Scores
from layerscope.core.plugins import PluginError
from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.improving.judging import check_judge
from tests.tiny import tiny_model


class FirstBlock:
    """Likes the first block, read under a template; without draws, so that it is taken at its
    word."""

    name = "first-block"
    views: tuple[str, ...] = ("dropped",)

    def judge(self, candidates: Any, *, seed: int = 0) -> Scores:
        for readout in candidates.readouts:
            assert candidates.vectors(readout, "dropped").shape == candidates.vectors(readout).shape
        score = np.array(
            [
                [(r.template == "one-word") + (k == 1) for k in candidates.layers]
                for r in candidates.readouts
            ]
        )
        return Scores(score.ravel().astype(float))


class Grid(FirstBlock):
    name = "grid"

    def judge(self, candidates: Any, *, seed: int = 0) -> Scores:
        return Scores(super().judge(candidates).values.reshape(len(candidates.readouts), -1))


class Failing(FirstBlock):
    name = "failing"

    def judge(self, candidates: Any, *, seed: int = 0) -> Scores:
        raise KeyError("no such thing")


class Blind(FirstBlock):
    name, views = "blind", ("upside-down",)


WORDS = ("river", "stone", "cloud", "paper", "light", "grass", "metal", "music", "bread", "glass")
TEXTS = [" ".join(np.random.default_rng(i).choice(WORDS, 6)) for i in range(40)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one test has read, the others need not read again."""
    return tmp_path_factory.mktemp("store")


@pytest.fixture
def quick(store: Path) -> Callable[..., layerscope.Improved]:
    settings = {"max_length": 64, "templates": ["one-word"], "progress": False, "store": store}
    return lambda judge, **options: layerscope.improve(
        tiny_model("llama"), TEXTS, judge=judge, **settings, **options
    )


def test_its_scores_decide(quick: Callable[..., layerscope.Improved]) -> None:
    result = quick(FirstBlock())
    assert (result.choice.layer, str(result.choice.readout).split("/")[0]) == (1, "one-word")
    assert result.manifest["judge"] == "first-block"
    assert result.manifest["evidence"]["judge"] == "the judge first-block"
    assert (result.manifest["evidence"]["before"], result.manifest["evidence"]["after"]) == (
        0.0,
        2.0,
    )
    assert set(result.table["score"]) == {
        0.0,
        1.0,
        2.0,
    }  # every candidate has the score that it gave


def test_beside_labels_it_counts_as_an_encoder_does(
    quick: Callable[..., layerscope.Improved], tmp_path: Path
) -> None:
    file = tmp_path / "labels.csv"
    file.write_text(
        "text,label\n" + "\n".join(f"{text},{'river' in text}" for text in TEXTS) + "\n",
        encoding="utf-8",
    )
    result = quick(FirstBlock(), labels=file)
    assert result.manifest["evidence"]["judge"] == "40 labeled examples and the judge first-block"


@pytest.mark.parametrize(
    ("judge", "says"),
    [
        (
            Grid(),
            r"'grid' must return Scores with 64 values",
        ),
        (Failing(), "the judge 'failing' failed: KeyError: 'no such thing'"),
    ],
)
def test_one_that_cannot_judge_is_named(
    quick: Callable[..., layerscope.Improved], judge: Any, says: str
) -> None:
    with pytest.raises(PluginError, match=says):
        quick(judge)


def test_a_view_that_nobody_makes_is_named(quick: Callable[..., layerscope.Improved]) -> None:
    with pytest.raises(
        UnknownNameError,
        match=r"the judge 'blind' asks for 'upside-down'.*dropped, first-half, second-half",
    ):
        quick(Blind())


def test_what_is_no_judge_is_named() -> None:
    assert check_judge(None) == check_judge("none") == "none"
    made = FirstBlock()
    assert check_judge(made) is made
    for other in (7, FirstBlock):
        with pytest.raises(
            LayerscopeError, match="an object with name, views and a method `judge`, not"
        ):
            check_judge(other)  # type: ignore[arg-type]


def test_an_unknown_name_lists_models() -> None:
    with pytest.raises(
        UnknownNameError, match=r"unknown judge 'minilm-16'. Did you mean 'minilm-l6'\?.*none"
    ):
        check_judge("minilm-16")
