"""Where a head holds: other texts, speeds, and the time that its teachers take."""

from __future__ import annotations

import numpy as np
import pytest

from layerscope.data.corpus import Corpus
from layerscope.improving import fitting, holding
from layerscope.improving.sample import Reader
from layerscope.improving.terminal import as_text
from tests.improving.test_fitting import centered_wins
from tests.improving.test_heads import TEXTS, improve
from tests.improving.test_improve import judge, some_texts

__all__ = ["centered_wins", "judge"]  # fixtures
pytestmark = pytest.mark.usefixtures("stored")


def test_speeds_are_texts_over_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now, first = [0.0], {"a", "b"}
    monkeypatch.setattr(holding, "perf_counter", lambda: now[0])

    def encode(name: str, seconds: float) -> None:
        now[0] += seconds + 5 * (
            name in first
        )  # the first time it takes longer, and does not count
        first.discard(name)

    encoders = {"a": lambda texts: encode("a", 0.02), "b": lambda texts: encode("b", 0.06)}
    assert holding.texts_per_second(encoders, ["x"] * 10) == pytest.approx(
        {"a": 500, "b": 10 / 0.06}
    )


def test_sentences_of_a_corpus_that_is_not_here_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding.CORPORA, "is_cached", lambda name: False)
    assert holding.generic_sentences() == []


def test_the_first_sentence_of_every_text_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "The quick brown fox jumps over dogs."
    texts = [
        f"{said} And more.",
        f"{said} Or less.",
        "Too short. What follows is of no interest here at all.",
        "word " * 60,
    ]
    monkeypatch.setattr(holding.CORPORA, "is_cached", lambda name: True)
    monkeypatch.setattr(holding, "load_corpus", lambda name, offline: Corpus.of(texts, "lee"))
    assert holding.generic_sentences() == [said]


@pytest.mark.usefixtures("head_wins")
def test_a_head_says_how_it_does_elsewhere_and_how_fast_it_is(
    llama, judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = some_texts(60, seed=9)
    monkeypatch.setattr(holding, "generic_sentences", lambda: others)
    result = improve(llama, TEXTS, judge=judge, center_on="sample")
    assert not any("fetch lee" in note for note in result.warnings)
    evidence = result.manifest["evidence"]
    assert set(evidence["texts_per_second"]) == {"today", "now", judge.name}
    assert (
        evidence["speedup"]
        == evidence["texts_per_second"]["now"] / evidence["texts_per_second"]["today"]
    )
    found = evidence["elsewhere"]
    assert (found["corpus"], found["texts"]) == ("lee", 60)
    # the same by hand: neighbors among the other texts by the judge, and by the model that was made
    reference = holding.Neighborhoods.of(
        holding.similarities(
            holding.encoder_of(judge, holding.Readout())(others)[0]["mean/applied"][0]
        )
    )
    after = float(reference.agreement(holding.similarities(result.encode(others))).mean())
    assert found["after"] == pytest.approx(after, abs=1e-5)
    assert f"→ {found['after']:.3f} on 60 sentences of news (lee)" in as_text(result)


@pytest.mark.usefixtures("head_wins")
def test_without_an_encoder_nothing_is_said_of_other_texts(llama) -> None:
    evidence = improve(llama, TEXTS, center_on="sample").manifest["evidence"]
    assert evidence["elsewhere"] is None
    assert set(evidence["texts_per_second"]) == {"today", "now"}


@pytest.mark.usefixtures("head_wins")
def test_the_time_that_the_encoder_takes_counts(
    llama, judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that reads in no time: what half a minute allows is what the encoder reads in it."""
    monkeypatch.setattr(Reader, "seconds_per_token", lambda self, name, texts: 1e-9)
    monkeypatch.setattr("layerscope.improving.making.encoder_seconds", lambda panel, texts: 3.0)
    result = improve(llama, some_texts(400), judge=judge, time=0.5)
    assert result.manifest["texts"]["centered_on"]["texts"] == pytest.approx(200 + 10, abs=1)
    assert any(
        "`layerscope fetch lee`" in note for note in result.warnings
    )  # other texts are not there


@pytest.mark.usefixtures("centered_wins", "here")
def test_a_centering_that_was_stopped_goes_on_however_fast_the_machine_seems(
    llama, tmp_path, monkeypatch
) -> None:
    texts = some_texts(150)
    monkeypatch.setattr(fitting, "_BLOCK", 16)
    monkeypatch.setattr(fitting, "_SAVE_EVERY", 0.0)
    read: list[int] = []
    own = fitting._SumPass.run

    def run(self, some, advance):
        if len(read) == 2:
            raise KeyboardInterrupt
        read.append(len(some))
        own(self, some, advance)

    options = {"sample": 40, "time": 1.0, "out": tmp_path / "better"}
    monkeypatch.setattr(fitting._SumPass, "run", run)
    monkeypatch.setattr(Reader, "seconds_per_token", lambda self, name, texts: 1e-6)
    with pytest.raises(KeyboardInterrupt):
        improve(llama, texts, **options)
    monkeypatch.setattr(
        fitting._SumPass,
        "run",
        lambda self, some, advance: (read.append(len(some)), own(self, some, advance)),
    )
    monkeypatch.setattr(
        Reader, "seconds_per_token", lambda self, name, texts: 2e-2
    )  # now it seems slow
    result = improve(llama, texts, **options)
    assert sum(read) == 110  # none was read twice
    assert result.manifest["texts"]["centered_on"]["texts"] == 150
    assert np.abs(result._encode(texts).mean(0)).max() < 1e-6
