"""A sample of a stream: which texts, whatever their order, and what a second pass leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest

from layerscope.data.corpus import TextStream, draw_texts
from layerscope.errors import DataError

TEXTS = [f"text number {i}" for i in range(300)]


def test_the_draw_depends_on_the_texts_and_the_seed_alone() -> None:
    drawn = draw_texts(TEXTS, 50, seed=3)
    again = draw_texts([*reversed(TEXTS), *TEXTS[:70]], 50, seed=3)
    assert drawn.texts == again.texts
    assert len(set(drawn.texts)) == 50
    assert (drawn.read, drawn.distinct) == (300, 300)
    assert (again.read, again.distinct) == (370, 300)
    assert drawn.texts != draw_texts(TEXTS, 50, seed=4).texts
    assert draw_texts(TEXTS, 20, seed=3).texts == drawn.texts[:20]
    assert draw_texts(TEXTS, 1000, seed=3).texts[:50] == drawn.texts


def test_the_fingerprint_tells_texts_and_copies_apart() -> None:
    one = draw_texts(TEXTS, 5).fingerprint
    assert one == draw_texts(TEXTS[::-1], 9, seed=2).fingerprint
    assert one != draw_texts(TEXTS[1:], 5).fingerprint
    assert one != draw_texts([*TEXTS, TEXTS[0]], 5).fingerprint


def test_a_file_is_read_anew_and_a_generator_is_held(tmp_path: Path) -> None:
    file = tmp_path / "texts.csv"
    file.write_text(
        "id,text\n" + "".join(f"{i},{text}\n" for i, text in enumerate([*TEXTS, "", " "]))
    )
    stream = TextStream(file, column="text")
    assert list(stream) == list(stream) == TEXTS
    assert stream.name == "texts.csv"
    assert stream.dropped == {"empty": 1, "whitespace": 1}
    once = TextStream(text for text in TEXTS)
    assert list(once) == list(once) == TEXTS


def test_a_stream_without_a_usable_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "blank.txt"
    file.write_text("\n \n")
    with pytest.raises(DataError, match=r"no usable text: 2 read \(1 empty, 1 whitespace\)"):
        list(TextStream(file))
