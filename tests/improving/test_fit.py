"""Fitting on more texts than are judged: how many, over what, and after an interruption."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import layerscope
from layerscope.choose.judges import Scores
from layerscope.errors import UnknownNameError
from layerscope.improving import candidates, fit
from layerscope.improving.candidates import seconds_per_text
from layerscope.improving.fit import texts_to_read
from layerscope.improving.judging import Agreement
from layerscope.improving.request import draw_sample
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
        best = ("one-word/last/raw/keep/corpus", 2)
        wins = [(item.readout_name, item.layer) == best for item in candidates.candidates]
        ahead = 2.0 * np.array(wins)
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


@pytest.mark.parametrize(("time", "count"), [(1.0, 50), (60.0, 150)])
def test_the_minutes_of_a_training_limit_its_texts(monkeypatch, time: float, count: int) -> None:
    monkeypatch.setattr(fit, "seconds_per_text", lambda encoder, texts: 2)
    request = SimpleNamespace(center_on="auto", train={}, time=time)
    run = SimpleNamespace(request=request, sample=draw_sample(TEXTS, size=20, further=130))
    assert texts_to_read(run, [SimpleNamespace(encode=None)]) == count


@pytest.mark.parametrize(("center_on", "count"), [("sample", 40), ("all", 150)])
def test_the_mean_is_over_the_texts_that_were_asked_for(
    llama, centered_wins, center_on: str, count: int
) -> None:
    result = improve(llama, [*TEXTS, *TEXTS[:30]], center_on=center_on)
    assert result.choice.readout == "one-word/last/raw/keep/corpus"
    over = TEXTS if center_on == "all" else result.sampled.texts
    assert len(over) == count
    vectors = result.chosen.encode(list(over))  # before they are scaled
    assert np.abs(vectors.mean(0)).max() < 1e-6 * np.abs(vectors).max()
    after = result.sampled.after
    np.testing.assert_allclose(after, result.chosen.encode(result.sampled.texts), atol=1e-5)
    assert ("all 150 texts" if center_on == "all" else "40 of 150 texts") in result.manifest[
        "conventions"
    ]["centering"]


def test_by_default_half_as_many_texts_again(llama, centered_wins, capsys) -> None:
    result = improve(llama, TEXTS, progress=None)
    words = "60 of 150 texts (drawn at random) of texts"
    assert result.manifest["texts"]["fitted_on"] == words
    assert "fitting on 60 of 150 texts" in capsys.readouterr().err
    again = improve(llama, TEXTS[::-1])
    np.testing.assert_allclose(again.sampled.after, result.sampled.after, atol=1e-6)


def test_an_unknown_word_is_refused(llama) -> None:
    with pytest.raises(UnknownNameError, match="texts to center on"):
        improve(llama, TEXTS, center_on="everything")


def test_the_first_call_of_an_encoder_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(candidates, "perf_counter", lambda: clock[0])

    def encode(texts: list[str]) -> None:
        clock[0] += 5 if len(texts) == 2 else 0.02

    assert seconds_per_text(encode, ["x"] * 4) == pytest.approx(0.005)
