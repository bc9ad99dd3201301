"""Fitting on more texts than are judged: how many, over what, and after an interruption."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import layerscope
from layerscope.choose.judges import Scores
from layerscope.core.readout import Readout
from layerscope.errors import UnknownNameError
from layerscope.improving import fit, reader
from layerscope.improving.fit import texts_to_read
from layerscope.improving.judging import Agreement
from layerscope.improving.reader import draw_sample, texts_per_second
from tests.improving.test_improve import judge, some_texts

__all__ = ["judge"]  # a fixture

TEXTS = some_texts(150)
pytestmark = pytest.mark.usefixtures("stored")


@pytest.fixture
def centered_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge prefers layer 2 under a centered one-word readout."""
    judge = Agreement.judge

    def prefer(self, candidates, *, seed=0):
        scores = judge(self, candidates, seed=seed)
        ahead = np.zeros_like(scores.values)
        for i, readout in enumerate(candidates.readouts):
            wins = readout.name == "one-word/last/raw/keep/corpus"
            ahead[i * len(candidates.layers) + 2] = 2.0 * wins
        return Scores(scores.values + ahead, scores.draws + ahead[:, None])

    monkeypatch.setattr(Agreement, "judge", prefer)


def improve(model, texts, **options):
    settings = {
        "judge": "none",
        "templates": ["one-word"],
        "max_length": 96,
        "progress": False,
        "sample": 40,
        **options,
    }
    return layerscope.improve(model, texts, **settings)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({"center_on": "sample"}, 20),
        ({"center_on": "all"}, 150),
        ({}, 70),  # a quarter of 2000 tokens is 50 more texts of 10
        ({"time": 1.0}, 50),  # at one text in two seconds
        ({"time": 60.0}, 150),
    ],
)
def test_how_many_texts_are_fitted_on(monkeypatch, options, count: int) -> None:
    monkeypatch.setattr(fit, "texts_per_second", lambda passes, texts: {"0": 0.5})
    settings = {"center_on": "auto", "time": None, "trains": False, **options}
    model = SimpleNamespace(n_blocks=4)
    tokens = SimpleNamespace(tokens=lambda templates, texts: {"plain": 10.0})
    request = SimpleNamespace(**settings)
    drawn = draw_sample(TEXTS, size=20, more=130)
    run = SimpleNamespace(request=request, sample=drawn, model=model, reader=tokens)
    part = SimpleNamespace(readout=Readout(), layer=4, encode=None)
    assert texts_to_read(run, SimpleNamespace(spent=2000), [part]) == count


@pytest.mark.parametrize(("center_on", "count"), [("sample", 40), ("all", 150)])
def test_the_mean_is_over_the_texts_that_were_asked_for(
    llama, centered_wins, center_on: str, count: int
) -> None:
    result = improve(llama, [*TEXTS, *TEXTS[:30]], center_on=center_on)
    assert result.choice.readout == "one-word/last/raw/keep/corpus"
    assert result.manifest["texts"]["centered_on"] == {
        "texts": count,
        "of": 150,
        "asked": center_on,
    }
    over = TEXTS if center_on == "all" else result.sampled.texts
    assert len(over) == count
    vectors = result.chosen.encode(list(over))  # before they are scaled
    assert np.abs(vectors.mean(0)).max() < 1e-6 * np.abs(vectors).max()
    after = result.sampled.after
    np.testing.assert_allclose(after, result.chosen.encode(result.sampled.texts), atol=1e-5)
    assert ("all 150 texts" if center_on == "all" else "40 of 150 texts") in result.manifest[
        "conventions"
    ]["centering"]


def test_by_default_as_many_texts_as_cost_a_quarter_of_the_choice(
    llama, centered_wins, capsys
) -> None:
    result = improve(llama, TEXTS, progress=None)
    on = result.manifest["texts"]["centered_on"]
    assert 40 < on["texts"] <= 150
    told = capsys.readouterr().err
    assert f"fitting on {on['texts']} of 150 texts" in told
    again = improve(llama, TEXTS[::-1])
    assert again.manifest["texts"]["centered_on"] == on
    np.testing.assert_allclose(again.sampled.after, result.sampled.after, atol=1e-6)


class Counting:
    """A bar that notes how many units of each stage are left."""

    def __init__(self) -> None:
        self.todo: dict[str, int] = {}

    def begin(self, label: str, total: int, done: int = 0) -> None:
        self.todo[label] = total - done

    def advance(self, units: int) -> None:
        pass


@pytest.mark.usefixtures("centered_wins", "here")
@pytest.mark.parametrize("options", [{"center_on": "all"}, {"time": 1.0}])
def test_a_stopped_fit_reads_nothing_twice_however_fast_the_machine_seems(
    llama, tmp_path: Path, monkeypatch, options
) -> None:
    texts = some_texts(150)
    options |= {"out": tmp_path / "better", "store": tmp_path / "store"}
    speeds = lambda passes, texts: dict.fromkeys(passes, 1e6)  # noqa: E731
    monkeypatch.setattr(fit, "texts_per_second", speeds)
    with monkeypatch.context() as patched:
        patched.setattr(fit.Fitted, "of", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            improve(llama, texts, **options)
    assert not (tmp_path / "better").exists()
    # now it seems slow
    slow = lambda passes, texts: dict.fromkeys(passes, 0.2)  # noqa: E731
    monkeypatch.setattr(fit, "texts_per_second", slow)
    bar = Counting()
    result = improve(llama, texts, progress=bar, **options)
    assert bar.todo["centering|texts"] == 0
    assert result.manifest["texts"]["centered_on"]["texts"] == 150
    assert np.abs(result.chosen.encode(texts).mean(0)).max() < 1e-6
    assert sorted(path.name for path in tmp_path.iterdir() if "better" in path.name) == ["better"]


def test_an_unknown_word_is_refused(llama) -> None:
    with pytest.raises(UnknownNameError, match="texts to center on"):
        improve(llama, TEXTS, center_on="everything")


def test_speeds_are_texts_over_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now, first = [0.0], {"a", "b"}
    monkeypatch.setattr(reader, "perf_counter", lambda: now[0])

    def encode(name: str, seconds: float) -> None:
        now[0] += seconds + 5 * (
            name in first
        )  # the first time it takes longer, and does not count
        first.discard(name)

    encoders = {"a": lambda texts: encode("a", 0.02), "b": lambda texts: encode("b", 0.06)}
    assert texts_per_second(encoders, ["x"] * 10) == pytest.approx({"a": 500, "b": 10 / 0.06})


@pytest.mark.usefixtures("head_wins")
def test_the_time_that_the_encoder_takes_counts(
    llama, judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that reads in no time: what half a minute allows is what the encoder reads in it."""
    monkeypatch.setattr(
        fit,
        "texts_per_second",
        lambda passes, texts: {name: 1 / 3 if name == "encoder" else 1e9 for name in passes},
    )
    result = improve(llama, some_texts(400), judge=judge, time=0.5, sample=200)
    assert set(result.manifest["evidence"]["texts_per_second"]) == {"today", "now", judge.name}
    assert result.manifest["texts"]["centered_on"]["texts"] == pytest.approx(200 + 10, abs=1)
