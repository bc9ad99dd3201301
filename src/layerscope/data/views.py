"""Noisy copies ("views") of a text: word split, then random character edit, then keyboard-neighbor
substitution.

Each step touches 30 % of the words, and in the last two 30 % of a touched word's characters. The
result depends on the text, the seed and the number of the view alone: not on the order of the
texts, the batch or the machine.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
import string
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from layerscope.core.plugins import Registry
from layerscope.data.workers import WorkerPool, cores_here
from layerscope.errors import InvalidValueError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["AUGMENTERS", "Augmenter", "ViewSettings", "make_views", "stream_key"]

MAX_VIEWS = 16
DEFAULT_STRENGTH = 0.3
STREAM = "layerscope-augment-1"
"""The name of the random stream; it changes whenever the same seed would give other views."""

_MIN_LETTERS = 4
_MAX_CHARACTERS = 10
_SPACES = re.compile(r"(\s+)")
_KEYS = ("1234567890", "qwertyuiop", "asdfghjkl", "zxcvbnm")
_WORDS_IN_CACHE = 2**14  # most words of a text come again in its other views

Draw = Callable[[], float]
"""Returns a random number from 0 to 1."""
Place = tuple[int, Sequence[int]]
"""The place of a word in a text, and the places of its characters that may change."""
T = TypeVar("T")


def _keyboard() -> dict[str, str]:
    """Return every key's neighbors. Each row is about half a key to the right of the one above."""
    neighbors: dict[str, str] = {}
    offsets = ((0, -1), (0, 1), (-1, 0), (-1, 1), (1, -1), (1, 0))
    for row, keys in enumerate(_KEYS):
        for column, key in enumerate(keys):
            places = [(row + down, column + right) for down, right in offsets]
            neighbors[key] = "".join(
                _KEYS[r][c] for r, c in places if 0 <= r < len(_KEYS) and 0 <= c < len(_KEYS[r])
            )
    return neighbors | {key.upper(): neighbors[key].upper() for key in string.ascii_lowercase}


NEIGHBORS = _keyboard()


def augment(text: str, *, seed: int, view: int, strength: float = DEFAULT_STRENGTH) -> str:
    """Return one noisy copy of a text: the same for the same arguments, on every machine.

    `strength` is the share of words, and of characters in a touched word (ten at most), that each
    step changes. Words of four letters and more are split; the other two steps draw among those
    too, or among all words if there are none so long. Whitespace and punctuation stay, and a text
    that is not blank never becomes blank; one without letters or digits comes back as it is.

    >>> augment("Layers in the middle often hold more.", seed=0, view=0)
    'yLae rs in the mid dle ocren h9bj mnofwe.'
    """
    if not 0 <= strength <= 1:
        raise InvalidValueError(f"strength is {strength!r}; it must be a share from 0 to 1.")
    # Only random() is used: of the methods of Random it alone is promised to stay the same between
    # Python versions.
    draw = random.Random(stream_key(text, seed, view, strength)).random
    pieces = list(_split_words(text))
    foreign = _foreign_letters(text)
    long_words = _long(_usable(pieces, _letters))
    for place, spots in _sample(long_words, _share(strength, len(long_words)), draw):
        pieces[place] = _split(pieces[place], spots, draw)
    pieces = _SPACES.split("".join(pieces))  # a word that was split counts as two from here on
    for place, spots in _choose_words(pieces, _letters, strength, draw):
        pieces[place] = _edit(pieces[place], spots, strength, foreign, draw)
    for place, spots in _choose_words(pieces, _keys, strength, draw):
        pieces[place] = _mistype(pieces[place], spots, strength, draw)
    return "".join(pieces)


@dataclass(frozen=True)
class Augmenter:
    """A way to make views: `make(text, seed=…, view=…)` returns one. Another package adds one
    through an entry point of the group `layerscope.augmenters`."""

    name: str
    make: Callable[..., str]


BUILTIN = Augmenter("builtin", augment)
AUGMENTERS: Registry[Augmenter] = Registry(
    "augmenter",
    "layerscope.augmenters",
    name=lambda augmenter: augmenter.name,
    check=lambda thing: isinstance(thing, Augmenter),
)
AUGMENTERS.add(BUILTIN)


def make_views(
    texts: Iterable[str], n_views: int, seed: int, augmenter: str = BUILTIN.name
) -> list[list[str]]:
    """Return the `n_views` views of every text, 2 to 16.

    >>> made = make_views(["Layers in the middle often hold more."], 2, seed=0)
    >>> len(made), len(made[0]), made[0][0] != made[0][1]
    (1, 2, True)
    """
    if isinstance(n_views, bool) or not isinstance(n_views, int) or not 2 <= n_views <= MAX_VIEWS:
        raise InvalidValueError(
            f"the number of views is {n_views!r}; it must be a whole number from 2 to {MAX_VIEWS}."
        )
    make = AUGMENTERS.get(augmenter).make
    return [[make(text, seed=seed, view=view) for view in range(n_views)] for text in texts]


def stream_key(text: str, seed: int, view: int, strength: float = DEFAULT_STRENGTH) -> int:
    """Return the number that seeds the random stream of one view of one text."""
    content = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    key = f"{STREAM}|{int(seed)}|{int(view)}|{float(strength)!r}|{content}"
    return int.from_bytes(hashlib.sha256(key.encode()).digest())


@lru_cache(maxsize=4)  # the views of a text are made one after the other
def _split_words(text: str) -> Sequence[str]:
    """Return the words of a text at even places, and the whitespace between them at odd ones."""
    return _SPACES.split(text)


@lru_cache(maxsize=4)
def _foreign_letters(text: str) -> str:
    """Return the letters and digits of a text beyond ASCII."""
    return "".join(sorted({c for c in text if c.isalnum() and not c.isascii()}))


@lru_cache(maxsize=_WORDS_IN_CACHE)
def _letters(word: str) -> Sequence[int]:
    """Return the places of a word's letters and digits. A combining mark is neither, so it stays
    with the letter before it."""
    return [i for i, c in enumerate(word) if c.isalnum()]


@lru_cache(maxsize=_WORDS_IN_CACHE)
def _keys(word: str) -> Sequence[int]:
    """Return the places of a word's characters that the QWERTY keyboard has."""
    return [i for i, c in enumerate(word) if c in NEIGHBORS]


def _usable(pieces: Sequence[str], find: Callable[[str], Sequence[int]]) -> list[Place]:
    """Return the words that have characters to change."""
    return [(place, spots) for place in range(0, len(pieces), 2) if (spots := find(pieces[place]))]


def _long(words: Sequence[Place]) -> list[Place]:
    return [word for word in words if len(word[1]) >= _MIN_LETTERS]


def _choose_words(
    pieces: Sequence[str], find: Callable[[str], Sequence[int]], strength: float, draw: Draw
) -> list[Place]:
    """Draw the words that a step changes."""
    usable = _usable(pieces, find)
    # The share is one of all words, the draw is among the long ones, as in nlpaug: "a" and "of"
    # stay readable.
    return _sample(_long(usable) or usable, _share(strength, len(usable)), draw)


def _share(strength: float, count: int) -> int:
    return math.ceil(strength * count - 1e-9)


def _sample(items: Sequence[T], count: int, draw: Draw) -> list[T]:
    """Draw `count` of the items (all if there are fewer) without replacement."""
    pool = list(items)
    size = len(pool)
    for i in range(min(count, size)):
        j = i + int(draw() * (size - i))
        pool[i], pool[j] = pool[j], pool[i]
    return pool[:count]


def _split(word: str, spots: Sequence[int], draw: Draw) -> str:
    at = spots[1 + int(draw() * (len(spots) - 1))]
    return f"{word[:at]} {word[at:]}"


def _edit(word: str, spots: Sequence[int], strength: float, foreign: str, draw: Draw) -> str:
    """Substitute, insert, delete or swap characters. At least one letter or digit is left, so no
    word vanishes."""
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


def _other(char: str, foreign: str, draw: Draw) -> str:
    """Draw another character of the same kind: beyond ASCII, one that the text has elsewhere."""
    if not char.isascii() and len(foreign) > 1:
        pool = foreign
    elif char.isdigit() and char.isascii():
        pool = string.digits
    else:
        pool = string.ascii_uppercase if char.isupper() else string.ascii_lowercase
    at = int(draw() * len(pool))
    return pool[at] if pool[at] != char else pool[at - 1]


def _mistype(word: str, spots: Sequence[int], strength: float, draw: Draw) -> str:
    chars = list(word)
    for i in _sample(spots, min(_share(strength, len(spots)), _MAX_CHARACTERS), draw):
        near = NEIGHBORS[chars[i]]
        chars[i] = near[int(draw() * len(near))]
    return "".join(chars)


# Views by several processes

_TEXTS_PER_REQUEST = 4
_MAX_WORKERS = 16


@dataclass(frozen=True)
class ViewSettings:
    """Augmented views: the number of views of each item, their seed and their augmenter.

    With a fast tokenizer, serialized, workers return their token ids, at most `max_length` each: a
    GPU would wait for one process that tokenizes all views.
    """

    count: int
    seed: int = 0
    augmenter: str = BUILTIN.name
    tokenizer: str | None = None
    max_length: int | None = None


def answer_views(
    settings: ViewSettings, texts: list[str]
) -> list[list[str]] | tuple[list[int], bytes]:
    """Return the views of texts, or the token counts of all views and their ids. Workers call it.

    It does without numpy, whose import would delay the first views of every worker.
    """
    views_of_texts = make_views(texts, settings.count, settings.seed, settings.augmenter)
    if settings.tokenizer is None:
        return views_of_texts
    flat = [view for views in views_of_texts for view in views]
    rows = token_ids(settings.tokenizer, flat, settings.max_length)
    return [len(row) for row in rows], array("i", chain.from_iterable(rows)).tobytes()


def token_ids(serialized: str, texts: list[str], max_length: int | None) -> list[list[int]]:
    """Return the token ids of texts by a serialized fast tokenizer, cut from the right."""
    encodings = _tokenizer(serialized, max_length).encode_batch_fast(texts)
    return [encoding.ids for encoding in encodings]


@lru_cache(maxsize=1)
def _tokenizer(serialized: str, max_length: int | None) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(serialized)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if max_length is not None:
        tokenizer.enable_truncation(max_length)
    return tokenizer


class ViewPool(AbstractContextManager["ViewPool"]):
    """Makes the views that `make_views` gives, in `workers` child processes."""

    def __init__(self, settings: ViewSettings, workers: int | None = None) -> None:
        if workers is None:
            workers = min(_MAX_WORKERS, cores_here() - 2)  # the GPU's host has work too
        if settings.augmenter != BUILTIN.name:
            workers = 0
        self.pool = WorkerPool(answer_views, settings, workers)

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        self.pool.close()

    def set_tokenizer(self, serialized: str | None, max_length: int | None) -> None:
        """Give the workers a tokenizer, before anything is made."""
        self.pool.setup = replace(self.pool.setup, tokenizer=serialized, max_length=max_length)

    def make(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the views of every text, in order. For pools without a tokenizer."""
        return [views for answer in self._answers(texts) for views in answer]

    def make_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the token ids of all views, text by text. For pools with a tokenizer."""
        import numpy as np

        rows = []
        for sizes, flat in self._answers(texts):
            rows += np.split(np.frombuffer(flat, dtype=np.intc), np.cumsum(sizes)[:-1])
        return rows

    def _answers(self, texts: Sequence[str]) -> Iterator[Any]:
        # several requests for every worker: a GPU waits for the last of them
        size = max(1, min(_TEXTS_PER_REQUEST, len(texts) // (4 * max(1, self.pool.count))))
        return self.pool.map(list(texts[i : i + size]) for i in range(0, len(texts), size))
