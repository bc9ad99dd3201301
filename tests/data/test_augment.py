"""Augmented views: repeatable, never blank, and of the paper's strength."""

from __future__ import annotations

import random
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerscope.data import augment, make_views
from layerscope.data.augment import (
    _NEIGHBORS,
    _SPACES,
    _chosen_words,
    _edit,
    _letters,
    _mistype,
    _split,
)
from layerscope.errors import InvalidValueError, UnknownNameError
from layerscope.extras import MissingExtraError

SENTENCE = "several letters make every single word here quite long enough although some words stay short of an"
VOCABULARY = SENTENCE.split()
LONG = " ".join(random.Random(0).choices(VOCABULARY, k=2000))
anything = st.text(st.characters(), max_size=60)  # any code point, lone surrogates as well


@settings(max_examples=150)
@given(anything, st.integers(-5, 2**70), st.integers(0, 15), st.floats(0, 1))
def test_any_text(text: str, seed: int, view: int, strength: float) -> None:
    made = augment(text, seed=seed, view=view, strength=strength)
    assert made == augment(text, seed=seed, view=view, strength=strength)
    assert bool(made.strip()) == bool(text.strip())
    # Punctuation and whitespace stay as they are; spaces may come in, and nothing else.
    kept = [c for c in text if not c.isalnum() and c != " "]
    assert [c for c in made if not c.isalnum() and c != " "] == kept
    assert made.count(" ") >= text.count(" ")
    if not any(c.isalnum() for c in text) or strength == 0:
        assert made == text


@settings(max_examples=50)
@given(st.lists(anything, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_order_does_not_matter(texts: list[str], rng: random.Random) -> None:
    made = dict(zip(texts, make_views(texts, 3, seed=5), strict=True))
    moved = list(texts)
    rng.shuffle(moved)
    assert make_views(moved, 3, seed=5) == [made[text] for text in moved]
    assert make_views(moved[:1], 2, seed=5) == [made[moved[0]][:2]]


def test_the_same_on_every_machine() -> None:
    """These come from one machine; another, or a later Python, must give them too."""
    text = "Layers in the middle often hold more."
    assert augment(text, seed=0, view=0) == "yLae rs in the mid dle ocren h9bj mnofwe."
    assert augment("Größe und Maß: 1234 Äpfel", seed=7, view=3) == "röe und Maß: 1 234 Äleld"
    assert augment("日本語のテキストです", seed=1, view=1) == "日 語スのテ語ストです"


def test_global_streams_are_left_alone() -> None:
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    make_views(["some words to change", "and others"], 2, seed=0)
    make_views(["some words to change", "and others"], 2, seed=0, augmenter="nlpaug")
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


@pytest.mark.parametrize("strength", [0.1, 0.3, 0.6])
def test_share_of_words_touched(strength: float) -> None:
    """Each step alone changes the nominal share of all words (as long as there are enough long
    ones)."""
    parts = _SPACES.split(LONG)
    n_words, draw = len(parts[::2]), random.Random(3).random
    for step in ("split", "edit", "mistype"):
        chosen = _chosen_words(parts, _letters, strength, draw)
        touched = changed = letters = 0
        for place, spots in chosen:
            word = parts[place]
            touched += {
                "split": lambda w, s: _split(w, s, draw).count(" ") == 1,
                "edit": lambda w, s: _edit(w, s, strength, "", draw) != w,
                "mistype": lambda w, s: _mistype(w, s, strength, draw) != w,
            }[step](word, spots)
            if step == "mistype":
                other = _mistype(word, spots, strength, draw)
                changed += sum(a != b for a, b in zip(word, other, strict=True))
                letters += len(word)
        assert touched / n_words == pytest.approx(strength, abs=0.01)
        if step == "mistype":  # rounded up in every word
            assert strength <= changed / letters <= strength + 0.2


def test_whole_pipeline_on_a_long_text() -> None:
    made = augment(LONG, seed=0, view=0)
    splits = made.count(" ") - LONG.count(" ")
    assert splits / sum(len(word) >= 4 for word in LONG.split()) == pytest.approx(0.3, abs=0.01)
    untouched = sum(word in VOCABULARY for word in made.split()) / len(LONG.split())
    assert 0.2 < untouched < 0.4


def test_views_differ() -> None:
    texts = [f"{word} {other} letters" for word in VOCABULARY[:8] for other in VOCABULARY[:4]]
    for made, text in zip(make_views(texts, 16, seed=0), texts, strict=True):
        assert len({text, *made}) >= 16
    assert make_views([LONG], 2, seed=0) != make_views([LONG], 2, seed=1)


def test_scripts() -> None:
    russian = "привет большой мир сегодня"
    for made in make_views([russian], 16, seed=0)[0]:
        assert made != russian
        assert not any(
            c.isascii() and c.isalnum() for c in made
        )  # edits keep to the text's own letters
    assert _mistype("Größe", [0, 1, 4], 1.0, random.Random(0).random)[2:4] == "öß"
    hindi = "नमस्ते दुनिया"
    assert not any(
        f" {mark}" in made for made in make_views([hindi], 16, seed=0)[0] for mark in "ािी्े"
    )


def test_short_texts() -> None:
    assert augment("", seed=0, view=0) == ""
    assert augment(" \n", seed=0, view=0) == " \n"
    assert augment("?!", seed=0, view=0) == "?!"
    for text in ("a", "I", "7", "é", "字", "ok", "a b", "(x)"):
        assert all(made.strip() for made in make_views([text], 16, seed=0)[0])
    assert len(set(make_views(["ok"], 16, seed=0)[0])) > 4


def test_keyboard() -> None:
    assert set(_NEIGHBORS["g"]) == set("fhtyvb")
    assert set(_NEIGHBORS["A"]) == set("QWSZ")
    for key, near in _NEIGHBORS.items():
        assert near
        assert key not in near
        assert all(key in _NEIGHBORS[other] for other in near if key.islower() and other.islower())


def test_speed() -> None:
    """Well under a millisecond for 100 words when the machine is idle; the bound leaves room for a
    busy one."""
    text = " ".join(LONG.split()[:100])
    augment(text, seed=0, view=0)
    times = []
    for view in range(16):
        start = time.perf_counter()
        augment(text, seed=0, view=view)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.003


@pytest.mark.parametrize("n", [1, 0, 17, 2.0, True])
def test_number_of_views(n: object) -> None:
    with pytest.raises(InvalidValueError, match="from 2 to 16"):
        make_views(["a"], n, seed=0)  # type: ignore[arg-type]


def test_bad_arguments() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'nlpaug'"):
        make_views(["a"], 2, seed=0, augmenter="nlp-aug")
    for strength in (-0.1, 1.1, float("nan")):
        with pytest.raises(InvalidValueError, match="strength is"):
            augment("a", seed=0, view=0, strength=strength)


class TestNlpaug:
    TEXTS = (
        "Layers in the middle often hold more than the last.",
        "Another sentence to change.",
        "a",
        " ",
        "",
        "日本",
    )

    def test_repeatable_in_any_order(self) -> None:
        pytest.importorskip("nlpaug")
        made = make_views(self.TEXTS, 3, seed=0, augmenter="nlpaug")
        random.random()
        assert make_views(self.TEXTS[::-1], 3, seed=0, augmenter="nlpaug") == made[::-1]
        assert make_views(self.TEXTS, 3, seed=1, augmenter="nlpaug") != made
        assert len({self.TEXTS[0], *made[0]}) == 4
        for text, copies in zip(self.TEXTS, made, strict=True):
            assert all(
                isinstance(copy, str) and bool(copy.strip()) == bool(text.strip())
                for copy in copies
            )

    @settings(max_examples=30, deadline=None)
    @given(st.text(st.characters(codec="utf-8"), max_size=40))
    def test_any_text(self, text: str) -> None:
        pytest.importorskip("nlpaug")
        assert all(
            bool(made.strip()) == bool(text.strip())
            for made in make_views([text], 2, 0, "nlpaug")[0]
        )

    def test_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from layerscope.data.augment import _nlpaug_steps

        _nlpaug_steps.cache_clear()
        monkeypatch.setitem(sys.modules, "nlpaug.augmenter.char", None)
        with pytest.raises(MissingExtraError, match=r"\[augment\]'"):
            make_views(["a"], 2, seed=0, augmenter="nlpaug")
