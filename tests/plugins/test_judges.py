"""A judge from another package: one class and an entry point, and `improve` goes by its scores."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import layerscope
from layerscope.core.plugins import PluginError
from layerscope.errors import LayerscopeError, UnknownNameError
from layerscope.improving.judging import find_judge
from layerscope.selection.judges import JUDGES, ScoredCandidates
from layerscope.selection.judges.rank import RankMe
from tests.cli.support import run_main
from tests.tiny import tiny_model

MODULE = '''
import numpy as np

from layerscope.selection.judges import ScoredCandidates


class FirstBlock:
    """Likes the first block, read under a template; without draws, so that it is taken at its word."""

    name, summary, views = "first-block", "the first block", ("dropped",)

    def judge(self, candidates, *, seed=0):
        for readout in candidates.readouts:
            assert candidates.vectors(readout, "dropped").shape == candidates.vectors(readout).shape
        score = np.array([[(r.template == "one-word") + (k == 1) for k in candidates.layers] for r in candidates.readouts])
        return ScoredCandidates(score.astype(float))


class Transposed(FirstBlock):
    name = "transposed"

    def judge(self, candidates, *, seed=0):
        return ScoredCandidates(super().judge(candidates).score.T)


class Failing(FirstBlock):
    name = "failing"

    def judge(self, candidates, *, seed=0):
        raise KeyError("no such thing")


class Blind(FirstBlock):
    name, views = "blind", ("upside-down",)
'''
POINTS = "[layerscope.judges]\nall = outside_judge\nbroken-judge = outside_judge:Nothing\n"
WORDS = ("river", "stone", "cloud", "paper", "light", "grass", "metal", "music", "bread", "glass")
TEXTS = [" ".join(np.random.default_rng(i).choice(WORDS, 6)) for i in range(40)]


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package that declares judges as entry points; the registry looks again."""
    info = tmp_path / "site" / "outside_judge-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: outside-judge\nVersion: 1.0\n", encoding="utf-8"
    )
    (info / "entry_points.txt").write_text(POINTS, encoding="utf-8")
    (tmp_path / "site" / "outside_judge.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    JUDGES.load()
    for name in ("_things", "_sources", "_broken"):
        monkeypatch.setattr(JUDGES, name, dict(getattr(JUDGES, name)))
    monkeypatch.setattr(JUDGES, "_loaded", False)
    yield
    sys.modules.pop("outside_judge", None)


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


@pytest.mark.usefixtures("outside")
def test_its_scores_decide(quick: Callable[..., layerscope.Improved]) -> None:
    result = quick("first-block")
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


@pytest.mark.usefixtures("outside", "here")
def test_on_the_command_line(
    model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    settings = ("--templates", "one-word", "--max-length", "64", "--judge", "first-block", "--json")
    out = tmp_path / "better"
    ended = run_main(
        monkeypatch,
        capsys,
        "improve",
        model_folder,
        "--data",
        tmp_path / "texts.txt",
        "--out",
        out,
        *settings,
    )
    assert ended.code == 0, ended
    told = json.loads(ended.out)
    assert told["judge"] == "first-block"
    assert told["choice"]["layer"] == 1


@pytest.mark.usefixtures("outside")
def test_beside_labels_it_counts_as_an_encoder_does(
    quick: Callable[..., layerscope.Improved], tmp_path: Path
) -> None:
    file = tmp_path / "labels.csv"
    file.write_text(
        "text,label\n" + "\n".join(f"{text},{'river' in text}" for text in TEXTS) + "\n",
        encoding="utf-8",
    )
    result = quick("first-block", labels=file)
    assert result.manifest["evidence"]["judge"] == "40 labeled examples and the judge first-block"


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize(
    ("judge", "says"),
    [
        (
            "transposed",
            r"'transposed' must return ScoredCandidates with a score per readout and layer, of shape \(16, 4\)",
        ),
        ("failing", "the judge 'failing' failed: KeyError: 'no such thing'"),
        ("broken-judge", "the judge 'broken-judge' of outside-judge 1.0 cannot be used"),
    ],
)
def test_one_that_cannot_judge_is_named(
    quick: Callable[..., layerscope.Improved], judge: str, says: str
) -> None:
    with pytest.raises(PluginError, match=says):
        quick(judge)


@pytest.mark.usefixtures("outside")
def test_a_view_that_nobody_makes_is_named(quick: Callable[..., layerscope.Improved]) -> None:
    with pytest.raises(
        UnknownNameError,
        match=r"the judge 'blind' asks for 'upside-down'.*dropped, first-half, second-half",
    ):
        quick("blind")


@pytest.mark.parametrize("judge", ["rankme", RankMe(), RankMe])
def test_a_built_in_judge_by_name_or_as_an_object(
    quick: Callable[..., layerscope.Improved], judge: Any
) -> None:
    result = quick(judge)
    assert result.manifest["judge"] == "rankme"
    assert result.table["score"].iloc[0] == result.table["score"].max() > 1  # an effective rank


def test_names_that_are_other_words_for_the_usual_judges() -> None:
    assert (
        find_judge("self-consistency", False)
        == find_judge("labels", True)
        == find_judge(None, False)
        == "none"
    )
    with pytest.raises(LayerscopeError, match="'labels' needs labeled examples"):
        find_judge("labels", False)
    with pytest.raises(LayerscopeError, match="'agreement' needs an encoder"):
        find_judge("agreement", False)
    with pytest.raises(
        LayerscopeError, match="an object with name, summary, views and a method `judge`, not 7"
    ):
        find_judge(7, False)  # type: ignore[arg-type]


def test_an_unknown_name_lists_judges_and_models() -> None:
    with pytest.raises(
        UnknownNameError,
        match=r"unknown judge 'rankmee'. Did you mean 'rankme'\?.*minilm-l6.*none.*rankme",
    ):
        find_judge("rankmee", False)


class NeedsMore:
    name, summary, views = "needs-more", "", ()

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def judge(self, candidates: Any, *, seed: int = 0) -> ScoredCandidates:
        return ScoredCandidates(np.zeros((len(candidates.readouts), len(candidates.layers))))


def test_one_that_must_be_given_something_is_given_as_an_object(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    JUDGES.load()
    monkeypatch.setitem(JUDGES._things, "needs-more", NeedsMore)
    with pytest.raises(
        LayerscopeError, match=r"needs scale and cannot be asked by name alone.*judge=NeedsMore"
    ):
        find_judge("needs-more", False)
    made = NeedsMore(2.0)
    assert find_judge(made, False) is made
