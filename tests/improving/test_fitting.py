"""Fitting on more texts than are judged: how many, over what, and after an interruption."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import layerscope
from layerscope.errors import UnknownNameError
from layerscope.improving import fitting
from layerscope.improving.fitting import texts_to_fit_on
from layerscope.improving.judging import Panel
from layerscope.improving.sample import draw_sample
from layerscope.selection.judges import ScoredCandidates
from tests.improving.test_improve import some_texts

TEXTS = some_texts(150)
pytestmark = pytest.mark.usefixtures("stored")


@pytest.fixture
def centered_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge prefers layer 2 under a centered one-word readout."""
    asked = Panel.judge

    def prefer(self, reader, readouts, *given):
        found = asked(self, reader, readouts, *given)
        ahead = np.zeros_like(found.score)
        for i, readout in enumerate(readouts):
            ahead[i, 2] = 2.0 * (readout.name == "one-word/last/raw/keep/corpus")
        return ScoredCandidates(
            found.score + ahead, found.draws + ahead[..., None], judge=found.judge
        )

    monkeypatch.setattr(Panel, "judge", prefer)


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
    assert texts_to_fit_on("auto", sample, 0, 10, tokens=400) == 60  # the time was given
    assert texts_to_fit_on("auto", sample, 0, 10, tokens=1e6) == 150
    assert (
        texts_to_fit_on("auto", sample, 0, 10, tokens=1000) == 100
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
    over = TEXTS if center_on == "all" else result.sampled["texts"]
    assert len(over) == count
    vectors = result._encode(list(over))  # before they are scaled
    assert np.abs(vectors.mean(0)).max() < 1e-6 * np.abs(vectors).max()
    after = result.sampled["after"]
    np.testing.assert_allclose(after, result._encode(result.sampled["texts"]), atol=1e-5)
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
    assert f"fitting on {on['texts']} of 150 texts: about " in told
    again = improve(llama, TEXTS[::-1])
    assert again.manifest["texts"]["centered_on"] == on
    np.testing.assert_allclose(again.sampled["after"], result.sampled["after"], atol=1e-6)


def test_texts_beyond_the_draw_are_read_in_a_stream(
    llama, centered_wins, tmp_path: Path, monkeypatch
) -> None:
    """Of a file with more texts than are drawn none is held; all are in the mean."""
    monkeypatch.setattr("layerscope.improving.sample.MORE", 1)
    monkeypatch.setattr(fitting, "_BLOCK", 16)
    file = tmp_path / "texts.txt"
    file.write_text("\n".join([*TEXTS, *TEXTS[:10]]))
    result = improve(llama, file, center_on="all")
    assert result.manifest["texts"]["centered_on"]["texts"] == 150
    assert np.abs(result._encode(TEXTS).mean(0)).max() < 1e-6


@pytest.mark.usefixtures("here")
def test_an_interrupted_centering_goes_on(
    llama, centered_wins, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(fitting, "_BLOCK", 16)
    monkeypatch.setattr(fitting, "_SAVE_EVERY", 0.0)
    out, read = tmp_path / "better", []
    own = fitting._SumPass.run

    def run(self, texts, advance):
        if len(read) == 3:
            raise KeyboardInterrupt
        read.append(len(texts))
        own(self, texts, advance)

    monkeypatch.setattr(fitting._SumPass, "run", run)
    with pytest.raises(KeyboardInterrupt):
        improve(llama, TEXTS, center_on="all", out=out)
    assert not out.exists()
    assert [path.name for path in (tmp_path / ".better.improving").iterdir()] == ["centering.npz"]
    monkeypatch.setattr(
        fitting._SumPass,
        "run",
        lambda self, texts, advance: (read.append(len(texts)), own(self, texts, advance)),
    )
    result = improve(llama, TEXTS, center_on="all", out=out)
    assert sum(read) == 110  # none was read twice
    assert np.abs(result._encode(TEXTS).mean(0)).max() < 1e-6
    assert sorted(path.name for path in tmp_path.iterdir() if "better" in path.name) == ["better"]


def test_an_unknown_word_is_refused(llama) -> None:
    with pytest.raises(UnknownNameError, match="texts to center on"):
        improve(llama, TEXTS, center_on="everything")
