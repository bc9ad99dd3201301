"""Filters of texts: the paper's for WikiText, and the test for texts that are hardly words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from layerscope.errors import UnknownNameError

TEXT_FILTERS = ("none", "paper", "released")
PAPER_MIN_WORDS = 30
RELEASED_MIN_CHARACTERS = 10

_WORD = re.compile(r"(?<![^\s(\"'„“«¿¡-])[^\W\d_]{2,20}(?![^\s.,;:!?)\"'”»…’।،؛؟-])")
# Thai to Burmese, Khmer, Japanese, Chinese
_UNSPACED = re.compile("[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
_MARKS = ("Mn", "Mc", "Me", "Cf")  # vowel signs and joiners: parts of words, though no letters


def lack_words(texts: Sequence[str]) -> bool:
    """Return whether most texts are hardly made of words: codes, formulas or sequences, of which a
    part does not mean the same.

    >>> texts = ["CC(=O)O.OCC>>CC(=O)OCC", "My card?", "这张卡什么时候到", "मेरा कार्ड अभी तक नहीं आया।"]
    >>> [lack_words([text] * 3) for text in texts]
    [True, False, False, False]
    """
    count = 0
    for text in texts:
        start = text[:300]
        if not start.isascii():
            start = "".join(c for c in start if unicodedata.category(c) not in _MARKS)
        if not _UNSPACED.search(start):
            in_words = sum(map(len, _WORD.findall(start)))
            count += 3 * in_words < len("".join(start.split()))
    return count > len(texts) / 2


def is_heading(text: str) -> bool:
    """Return whether a text is a WikiText heading: as many equals signs on both sides.

    >>> is_heading(" = = Early life = = \\n"), is_heading("a = b")
    (True, False)
    """
    line = text.strip()
    if len(line) < 2 or line[0] != "=" or line[-1] != "=" or "\n" in line:
        return False
    marks_before = line[: len(line) - len(line.lstrip("= "))]
    marks_after = line[len(line.rstrip("= ")) :]
    is_text = len(marks_before) < len(line)
    return is_text and marks_before.count("=") == marks_after.count("=")


def check_text_filter(name: str) -> str:
    """Return the name of a text filter; an unknown one is an error."""
    if name not in TEXT_FILTERS:
        raise UnknownNameError("text filter", str(name), TEXT_FILTERS)
    return name


def drop_reason(text: str, name: str) -> str | None:
    """Return the reason for which a filter leaves a text out, or None.

    `paper` drops headings and texts of fewer than 30 words; `released`, as in the authors' code,
    drops headings and texts of fewer than 10 characters; `none` drops nothing.

    >>> [drop_reason(text, "released") for text in (" = Title = ", "short", "long enough to keep")]
    ['heading', 'short', None]
    """
    if name == "none":
        return None
    if is_heading(text):
        return "heading"
    if name == "paper":
        return "short" if len(text.split()) < PAPER_MIN_WORDS else None
    return "short" if len(text) < RELEASED_MIN_CHARACTERS else None
