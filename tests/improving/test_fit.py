"""Fitting on more texts than are judged: how many, over what, and after an interruption."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import layerscope
from layerscope.choose.judges import Scores
from layerscope.errors import UnknownNameError
from layerscope.improving import fit, speed
from layerscope.improving.fit import texts_to_fit_on
from layerscope.improving.judging import Judges
from layerscope.improving.sample import Reader, draw_sample
from tests.improving.test_improve import judge, some_texts

__all__ = ["judge"]  # a fixture

TEXTS = some_texts(150)
pytestmark = pytest.mark.usefixtures("stored")


@pytest.fixture
def centered_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge prefers layer 2 under a centered one-word readout."""
    score = Judges.score

    def prefer(self, candidates, *settings):
        (scores,) = score(self, candidates, *settings)
        ahead = np.zeros_like(scores.values)
        for i, readout in enumerate(candidates.readouts):
            wins = readout.name == "one-word/last/raw/keep/corpus"
            ahead[i * len(candidates.layers) + 2] = 2.0 * wins
        return (Scores(scores.values + ahead, scores.draws + ahead[:, None]),)

    monkeypatch.setattr(Judges, "score", prefer)


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


def test_how_many_texts_depends_on_the_texts_alone() -> None:
    sample = draw_sample(TEXTS, size=20)
    assert (len(sample.texts), sample.total, len(sample.more)) == (20, 150, 80)
    assert texts_to_fit_on("sample", sample, 1e6, 10) == 20
    assert texts_to_fit_on("all", sample, 0, 10) == 150
    assert (
        texts_to_fit_on("auto", sample, 2000, 10) == 70
    )  # a quarter of the choice's tokens: 50 more texts of 10
    assert texts_to_fit_on("auto", sample, 1e6, 10) == 100  # as many as were drawn
    small = draw_sample(TEXTS[:30], size=20)
    assert texts_to_fit_on("auto", small, 1e6, 10) == 30  # all of them
    assert texts_to_fit_on("auto", small, 0, 10) == 20
    assert texts_to_fit_on("auto", sample, 0, 10, allowed=400) == 60  # the time was given
    assert texts_to_fit_on("auto", sample, 0, 10, allowed=1e6) == 150
    assert (
        texts_to_fit_on("auto", sample, 0, 10, allowed=1000) == 100
    )  # of those that were drawn at random


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


def test_texts_beyond_the_draw_are_read_in_a_stream(
    llama, centered_wins, tmp_path: Path, monkeypatch
) -> None:
    """Of a file with more texts than are drawn none is held; all are in the mean."""
    monkeypatch.setattr("layerscope.improving.sample.MORE", 1)
    file = tmp_path / "texts.txt"
    file.write_text("\n".join([*TEXTS, *TEXTS[:10]]))
    result = improve(llama, file, center_on="all")
    assert result.manifest["texts"]["centered_on"]["texts"] == 150
    assert np.abs(result.chosen.encode(TEXTS).mean(0)).max() < 1e-6


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
    monkeypatch.setattr(Reader, "seconds_per_token", lambda self, name, texts: 1e-6)
    with monkeypatch.context() as patched:
        patched.setattr(fit.Fitted, "of", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            improve(llama, texts, **options)
    assert not (tmp_path / "better").exists()
    # now it seems slow
    monkeypatch.setattr(Reader, "seconds_per_token", lambda self, name, texts: 2e-2)
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
    monkeypatch.setattr(speed, "perf_counter", lambda: now[0])

    def encode(name: str, seconds: float) -> None:
        now[0] += seconds + 5 * (
            name in first
        )  # the first time it takes longer, and does not count
        first.discard(name)

    encoders = {"a": lambda texts: encode("a", 0.02), "b": lambda texts: encode("b", 0.06)}
    assert speed.texts_per_second(encoders, ["x"] * 10) == pytest.approx({"a": 500, "b": 10 / 0.06})


@pytest.mark.usefixtures("head_wins")
def test_the_time_that_the_encoder_takes_counts(
    llama, judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that reads in no time: what half a minute allows is what the encoder reads in it."""
    monkeypatch.setattr(Reader, "seconds_per_token", lambda self, name, texts: 1e-9)
    monkeypatch.setattr("layerscope.improving.fit.encoder_seconds", lambda panel, texts: 3.0)
    result = improve(llama, some_texts(400), judge=judge, time=0.5, sample=200)
    assert set(result.manifest["evidence"]["texts_per_second"]) == {"today", "now", judge.name}
    assert result.manifest["texts"]["centered_on"]["texts"] == pytest.approx(200 + 10, abs=1)
