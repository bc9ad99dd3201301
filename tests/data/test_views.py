"""Augmented views: repeatable, never blank, of the paper's strength, and the same from other
processes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layerscope.data import augment, make_views
from layerscope.data.views import NEIGHBORS, ViewPool, ViewSettings
from layerscope.errors import InvalidValueError, UnknownNameError

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
    others = [c for c in text if not c.isalnum() and c != " "]
    assert [c for c in made if not c.isalnum() and c != " "] == others
    assert made.count(" ") >= text.count(" ")
    if not any(c.isalnum() for c in text) or strength == 0:
        assert made == text


def test_the_same_on_every_machine() -> None:
    """These come from one machine; another, or a later Python, must give them too."""
    text = "Layers in the middle often hold more."
    assert augment(text, seed=0, view=0) == "yLae rs in the mid dle ocren h9bj mnofwe."
    assert augment("Größe und Maß: 1234 Äpfel", seed=7, view=3) == "röe und Maß: 1 234 Äleld"
    assert augment("日本語のテキストです", seed=1, view=1) == "日 語スのテ語ストです"


def test_the_strength_on_a_long_text() -> None:
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
        assert not any(c.isascii() and c.isalnum() for c in made)  # the text's own letters alone
    hindi = "नमस्ते दुनिया"
    assert not any(
        f" {mark}" in made for made in make_views([hindi], 16, seed=0)[0] for mark in "ािी्े"
    )


def test_short_texts() -> None:
    for text in ("", " \n", "?!"):
        assert augment(text, seed=0, view=0) == text
    for text in ("a", "I", "7", "é", "字", "ok", "a b", "(x)"):
        assert all(made.strip() for made in make_views([text], 16, seed=0)[0])
    assert len(set(make_views(["ok"], 16, seed=0)[0])) > 4


def test_keyboard() -> None:
    assert set(NEIGHBORS["g"]) == set("fhtyvb")
    assert set(NEIGHBORS["A"]) == set("QWSZ")
    for key, near in NEIGHBORS.items():
        assert near
        assert key not in near
        assert all(key in NEIGHBORS[other] for other in near if key.islower() and other.islower())


@pytest.mark.parametrize("n", [1, 0, 17, 2.0, True])
def test_number_of_views(n: object) -> None:
    with pytest.raises(InvalidValueError, match="from 2 to 16"):
        make_views(["a"], n, seed=0)  # type: ignore[arg-type]


def test_bad_arguments() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'builtin'"):
        make_views(["a"], 2, seed=0, augmenter="built-in")
    for strength in (-0.1, 1.1, float("nan")):
        with pytest.raises(InvalidValueError, match="strength is"):
            augment("a", seed=0, view=0, strength=strength)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pool_gives_the_same_views_in_the_same_order(workers: int) -> None:
    texts = [f"Layers in the middle, number {i}, hold more — naïve \ud800." for i in range(11)]
    with ViewPool(ViewSettings(3, 5), workers) as pool:
        assert pool.make(texts) == make_views(texts, 3, seed=5)
        assert pool.make(texts[:1]) == make_views(texts[:1], 3, seed=5)
        assert pool.make([]) == []
