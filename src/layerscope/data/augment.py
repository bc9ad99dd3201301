"""Noisy copies ("views") of a text: word split, then random character edit, then keyboard-neighbour substitution.

Each step touches 30 % of the words, and in the last two 30 % of a touched word's characters. What comes out depends on
the text, the seed and the number of the view alone: not on the order of the texts, the batch or the machine.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
import string
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from layerscope.errors import DataError, UnknownNameError

AUGMENTERS = ("builtin", "nlpaug")
MAX_VIEWS = 16
DEFAULT_STRENGTH = 0.3
STREAM = "layerscope-augment-1"
"""Names what the random stream is used for; it changes whenever the same seed would give other views."""

_MIN_LETTERS = 4
_MAX_CHARACTERS = 10
_SPACES = re.compile(r"(\s+)")
_KEYS = ("1234567890", "qwertyuiop", "asdfghjkl", "zxcvbnm")


def _keyboard() -> dict[str, str]:
    """Every key's neighbours. Each row sits about half a key to the right of the row above it."""
    near: dict[str, str] = {}
    for row, keys in enumerate(_KEYS):
        for column, key in enumerate(keys):
            places = [(row, column - 1), (row, column + 1), (row - 1, column), (row - 1, column + 1)]
            places += [(row + 1, column - 1), (row + 1, column)]
            near[key] = "".join(_KEYS[r][c] for r, c in places if 0 <= r < len(_KEYS) and 0 <= c < len(_KEYS[r]))
    return near | {key.upper(): near[key].upper() for key in string.ascii_lowercase}


_NEIGHBOURS = _keyboard()


def augment(text: str, *, seed: int, view: int, strength: float = DEFAULT_STRENGTH) -> str:
    """One noisy copy of a text: the same for the same arguments, on every machine.

    `strength` is the share of words, and of characters in a touched word (ten at most), that each step changes. Words of
    four letters and more are split; for the other two steps words are drawn among those too, or among all if there are
    none so long. Whitespace and punctuation stay, and a text that is not blank never becomes blank; one without letters
    or digits comes back as it is.

    >>> augment("Layers in the middle often hold more.", seed=0, view=0)
    'yLae rs in the mid dle ocren h9bj mnofwe.'
    """
    if not 0 <= strength <= 1:
        raise DataError(f"strength is {strength!r}; it must be a share from 0 to 1 (0.3 in the paper).")
    # Only random() is used: of the methods of Random it alone is promised to stay the same between Python versions.
    draw = random.Random(stream_key(text, seed, view, strength)).random
    foreign = "" if text.isascii() else "".join(sorted({c for c in text if c.isalnum() and not c.isascii()}))
    parts = _SPACES.split(text)  # words at even places, the whitespace between them at odd ones
    for place, spots in _chosen_words(parts, _letters, strength, draw, long_only=True):
        parts[place] = _split(parts[place], spots, draw)
    parts = _SPACES.split("".join(parts))  # a word that was split counts as two from here on
    for place, spots in _chosen_words(parts, _letters, strength, draw):
        parts[place] = _edit(parts[place], spots, strength, foreign, draw)
    for place, spots in _chosen_words(parts, _keys, strength, draw):
        parts[place] = _mistype(parts[place], spots, strength, draw)
    return "".join(parts)


def views(text: str, n: int, seed: int, strength: float = DEFAULT_STRENGTH) -> list[str]:
    """The first `n` views of a text, 1 to 16.

    >>> len(views("Layers in the middle often hold more.", 3, seed=0))
    3
    """
    _check_count(n, 1)
    return [augment(text, seed=seed, view=view, strength=strength) for view in range(n)]


def make_views(
    texts: Iterable[str], n_views: int, seed: int, augmenter: str = "builtin", strength: float = DEFAULT_STRENGTH
) -> list[list[str]]:
    """For every text its `n_views` views, 2 to 16.

    `augmenter="nlpaug"` takes the pipeline of the authors' released code with its defaults instead (extra `augment`).

    >>> made = make_views(["Layers in the middle often hold more."], 2, seed=0)
    >>> len(made), len(made[0]), made[0][0] != made[0][1]
    (1, 2, True)
    """
    _check_count(n_views, 2)
    if augmenter not in AUGMENTERS:
        raise UnknownNameError("augmenter", str(augmenter), AUGMENTERS)
    if augmenter == "builtin":
        return [views(text, n_views, seed, strength) for text in texts]
    if strength != DEFAULT_STRENGTH:
        raise DataError(f"strength is {strength!r}, but nlpaug runs with its defaults. Leave it out, or use 'builtin'.")
    from layerscope.data.augment_nlpaug import nlpaug_view

    return [[nlpaug_view(text, seed=seed, view=view) for view in range(n_views)] for text in texts]


def stream_key(text: str, seed: int, view: int, strength: float) -> int:
    """The number that seeds the random stream of one view of one text."""
    content = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    key = f"{STREAM}|{int(seed)}|{int(view)}|{float(strength)!r}|{content}"
    return int.from_bytes(hashlib.sha256(key.encode()).digest())


def _check_count(n: int, least: int) -> None:
    if isinstance(n, bool) or not isinstance(n, int) or not least <= n <= MAX_VIEWS:
        raise DataError(f"the number of views is {n!r}; it must be a whole number from {least} to {MAX_VIEWS}.")


_Draw = Callable[[], float]
_T = TypeVar("_T")


def _letters(word: str) -> Sequence[int]:
    """Where a word has letters or digits. A combining mark is neither, so it stays with the letter before it."""
    return range(len(word)) if word.isalnum() else [i for i, c in enumerate(word) if c.isalnum()]


def _keys(word: str) -> Sequence[int]:
    """Where a word has characters of the QWERTY keyboard."""
    if word.isascii() and word.isalnum():
        return range(len(word))
    return [i for i, c in enumerate(word) if c in _NEIGHBOURS]


def _chosen_words(
    parts: list[str], find: Callable[[str], Sequence[int]], strength: float, draw: _Draw, long_only: bool = False
) -> list[tuple[int, Sequence[int]]]:
    """The words that a step changes: their places, and where in each the characters are that it may change."""
    usable = [(place, spots) for place in range(0, len(parts), 2) if (spots := find(parts[place]))]
    long = [item for item in usable if len(item[1]) >= _MIN_LETTERS]
    if long_only:
        return _sample(long, _share(strength, len(long)), draw)
    # The share is one of all words, the draw is among the long ones, as in nlpaug: "a" and "of" stay readable.
    return _sample(long or usable, _share(strength, len(usable)), draw)


def _share(strength: float, count: int) -> int:
    return math.ceil(strength * count - 1e-9)


def _sample(items: Sequence[_T], count: int, draw: _Draw) -> list[_T]:
    """`count` of the items (all if there are fewer), drawn without replacement."""
    pool = list(items)
    count = min(count, len(pool))
    for i in range(count):
        j = i + int(draw() * (len(pool) - i))
        pool[i], pool[j] = pool[j], pool[i]
    return pool[:count]


def _split(word: str, spots: Sequence[int], draw: _Draw) -> str:
    at = spots[1 + int(draw() * (len(spots) - 1))]
    return f"{word[:at]} {word[at:]}"


def _edit(word: str, spots: Sequence[int], strength: float, foreign: str, draw: _Draw) -> str:
    """Substitute, insert, delete or swap characters. At least one letter or digit is left, so no word vanishes."""
    kind = int(draw() * 4)
    count = min(_share(strength, len(spots)), _MAX_CHARACTERS)
    chars = list(word)
    if kind == 0:
        for i in _sample(spots, count, draw):
            chars[i] = _other(chars[i], foreign, draw) + chars[i]
    elif kind == 1 and len(spots) > 1:
        for i in _sample(spots, min(count, len(spots) - 1), draw):
            chars[i] = ""
    elif kind == 2 and len(spots) > 1:
        for n in _sample(range(len(spots) - 1), count, draw):
            i, j = spots[n], spots[n + 1]
            chars[i], chars[j] = chars[j], chars[i]
    else:
        for i in _sample(spots, count, draw):
            chars[i] = _other(chars[i], foreign, draw)
    edited = "".join(chars)
    if edited == word:  # equal letters were swapped
        i = spots[int(draw() * len(spots))]
        edited = word[:i] + _other(word[i], foreign, draw) + word[i + 1 :]
    return edited


def _other(char: str, foreign: str, draw: _Draw) -> str:
    """Another character of the same kind: beyond ASCII, one that the text has elsewhere."""
    if not char.isascii() and len(foreign) > 1:
        pool = foreign
    elif char.isdigit() and char.isascii():
        pool = string.digits
    else:
        pool = string.ascii_uppercase if char.isupper() else string.ascii_lowercase
    at = int(draw() * len(pool))
    return pool[at] if pool[at] != char else pool[at - 1]


def _mistype(word: str, spots: Sequence[int], strength: float, draw: _Draw) -> str:
    chars = list(word)
    for i in _sample(spots, min(_share(strength, len(spots)), _MAX_CHARACTERS), draw):
        near = _NEIGHBOURS[chars[i]]
        chars[i] = near[int(draw() * len(near))]
    return "".join(chars)
