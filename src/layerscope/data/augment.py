"""Noisy copies ("views") of a text: word split, then random character edit, then keyboard-neighbor
substitution.

Each step touches 30 % of the words, and in the last two 30 % of a touched word's characters. What
comes out depends on the text, the seed and the number of the view alone: not on the order of the
texts, the batch or the machine.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
import string
from array import array
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from layerscope.data.workers import WorkerPool, cores_here
from layerscope.errors import InvalidValueError, UnknownNameError
from layerscope.extras import missing

if TYPE_CHECKING:
    import numpy as np

__all__ = ["make_views"]

AUGMENTERS = ("builtin", "nlpaug")
MAX_VIEWS = 16
DEFAULT_STRENGTH = 0.3
STREAM = "layerscope-augment-1"
"""Names what the random stream is used for; it changes whenever the same seed would give other
views."""

_MIN_LETTERS = 4
_MAX_CHARACTERS = 10
_SPACES = re.compile(r"(\s+)")
_KEYS = ("1234567890", "qwertyuiop", "asdfghjkl", "zxcvbnm")


def _keyboard() -> dict[str, str]:
    """Every key's neighbors. Each row sits about half a key to the right of the row above it."""
    near: dict[str, str] = {}
    for row, keys in enumerate(_KEYS):
        for column, key in enumerate(keys):
            places = [
                (row, column - 1),
                (row, column + 1),
                (row - 1, column),
                (row - 1, column + 1),
            ]
            places += [(row + 1, column - 1), (row + 1, column)]
            near[key] = "".join(
                _KEYS[r][c] for r, c in places if 0 <= r < len(_KEYS) and 0 <= c < len(_KEYS[r])
            )
    return near | {key.upper(): near[key].upper() for key in string.ascii_lowercase}


_NEIGHBORS = _keyboard()


def augment(text: str, *, seed: int, view: int, strength: float = DEFAULT_STRENGTH) -> str:
    """One noisy copy of a text: the same for the same arguments, on every machine.

    `strength` is the share of words, and of characters in a touched word (ten at most), that each
    step changes. Words of four letters and more are split; for the other two steps words are drawn
    among those too, or among all if there are none so long. Whitespace and punctuation stay, and a
    text that is not blank never becomes blank; one without letters or digits comes back as it is.

    >>> augment("Layers in the middle often hold more.", seed=0, view=0)
    'yLae rs in the mid dle ocren h9bj mnofwe.'
    """
    if not 0 <= strength <= 1:
        raise InvalidValueError(f"strength is {strength!r}; it must be a share from 0 to 1.")
    # Only random() is used: of the methods of Random it alone is promised to stay the same between
    # Python versions.
    draw = random.Random(stream_key(text, seed, view, strength)).random
    foreign, words, long = _looked_at(text)
    parts = list(words)
    for place, spots in _sample(long, _share(strength, len(long)), draw):
        parts[place] = _split(parts[place], spots, draw)
    parts = _SPACES.split("".join(parts))  # a word that was split counts as two from here on
    for place, spots in _chosen_words(parts, _letters, strength, draw):
        parts[place] = _edit(parts[place], spots, strength, foreign, draw)
    for place, spots in _chosen_words(parts, _keys, strength, draw):
        parts[place] = _mistype(parts[place], spots, strength, draw)
    return "".join(parts)


def make_views(
    texts: Iterable[str],
    n_views: int,
    seed: int,
    augmenter: str = "builtin",
) -> list[list[str]]:
    """For every text its `n_views` views, 2 to 16.

    `augmenter="nlpaug"` takes the pipeline of the authors' released code with its defaults instead
    (extra `augment`).

    >>> made = make_views(["Layers in the middle often hold more."], 2, seed=0)
    >>> len(made), len(made[0]), made[0][0] != made[0][1]
    (1, 2, True)
    """
    if isinstance(n_views, bool) or not isinstance(n_views, int) or not 2 <= n_views <= MAX_VIEWS:
        raise InvalidValueError(
            f"the number of views is {n_views!r}; it must be a whole number from 2 to {MAX_VIEWS}."
        )
    if augmenter not in AUGMENTERS:
        raise UnknownNameError("augmenter", str(augmenter), AUGMENTERS)
    make = augment if augmenter == "builtin" else nlpaug_view
    return [[make(text, seed=seed, view=view) for view in range(n_views)] for text in texts]


def stream_key(text: str, seed: int, view: int, strength: float = DEFAULT_STRENGTH) -> int:
    """The number that seeds the random stream of one view of one text."""
    content = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    key = f"{STREAM}|{int(seed)}|{int(view)}|{float(strength)!r}|{content}"
    return int.from_bytes(hashlib.sha256(key.encode()).digest())


_Draw = Callable[[], float]
_T = TypeVar("_T")
_WORDS_KEPT = 2**14  # most words of a text come again in its other views


@lru_cache(maxsize=4)  # the views of a text are made one after the other
def _looked_at(text: str) -> tuple[str, Sequence[str], Sequence[tuple[int, Sequence[int]]]]:
    """What is the same for all views of a text.

    Its letters beyond ASCII; its words at even places, with the whitespace between them at odd
    ones; the places of its long words, and where in each the letters are.
    """
    foreign = (
        ""
        if text.isascii()
        else "".join(sorted({c for c in text if c.isalnum() and not c.isascii()}))
    )
    parts = _SPACES.split(text)
    return foreign, parts, _long(_usable(parts, _letters))


@lru_cache(maxsize=_WORDS_KEPT)
def _letters(word: str) -> Sequence[int]:
    """Where a word has letters or digits. A combining mark is neither, so it stays with the letter
    before it."""
    return range(len(word)) if word.isalnum() else [i for i, c in enumerate(word) if c.isalnum()]


@lru_cache(maxsize=_WORDS_KEPT)
def _keys(word: str) -> Sequence[int]:
    """Where a word has characters of the QWERTY keyboard."""
    if word.isascii() and word.isalnum():
        return range(len(word))
    return [i for i, c in enumerate(word) if c in _NEIGHBORS]


def _usable(
    parts: Sequence[str], find: Callable[[str], Sequence[int]]
) -> list[tuple[int, Sequence[int]]]:
    """The places of words that have characters to change, and where in each they are."""
    return [(place, spots) for place in range(0, len(parts), 2) if (spots := find(parts[place]))]


def _long(usable: Sequence[tuple[int, Sequence[int]]]) -> list[tuple[int, Sequence[int]]]:
    return [item for item in usable if len(item[1]) >= _MIN_LETTERS]


def _chosen_words(
    parts: Sequence[str], find: Callable[[str], Sequence[int]], strength: float, draw: _Draw
) -> list[tuple[int, Sequence[int]]]:
    """The words that a step changes: their places, and where in each the characters are that it may
    change."""
    usable = _usable(parts, find)
    # The share is one of all words, the draw is among the long ones, as in nlpaug: "a" and "of"
    # stay readable.
    return _sample(_long(usable) or usable, _share(strength, len(usable)), draw)


@lru_cache(maxsize=1024)
def _share(strength: float, count: int) -> int:
    return math.ceil(strength * count - 1e-9)


def _sample(items: Sequence[_T], count: int, draw: _Draw) -> list[_T]:
    """`count` of the items (all if there are fewer), drawn without replacement."""
    pool = list(items)
    size = len(pool)
    for i in range(min(count, size)):
        j = i + int(draw() * (size - i))
        pool[i], pool[j] = pool[j], pool[i]
    return pool[:count]


def _split(word: str, spots: Sequence[int], draw: _Draw) -> str:
    at = spots[1 + int(draw() * (len(spots) - 1))]
    return f"{word[:at]} {word[at:]}"


def _edit(word: str, spots: Sequence[int], strength: float, foreign: str, draw: _Draw) -> str:
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
        near = _NEIGHBORS[chars[i]]
        chars[i] = near[int(draw() * len(near))]
    return "".join(chars)


def nlpaug_view(text: str, *, seed: int, view: int) -> str:
    """One view by the three augmenters of nlpaug that the paper's released code uses, with their
    defaults.

    The same whatever was drawn before, and without a trace in the global random streams. nlpaug
    touches at most ten words of a text in each step, however long it is; the built-in augmenter has
    no such limit.
    """
    import numpy as np

    steps = _nlpaug_steps()
    key = stream_key(text, seed, view)
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        # nlpaug draws from the global streams of both; numpy takes 32 bits.
        random.seed(key)
        np.random.seed(key % 2**32)
        made = text
        for step in steps:
            changed = step.augment(made)  # a list of one, or an empty one for an empty text
            if changed and changed[0].strip():
                made = changed[0]
        return made
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


@lru_cache(maxsize=1)
def _nlpaug_steps() -> tuple[Any, ...]:
    try:
        import nlpaug.augmenter.char as characters
        import nlpaug.augmenter.word as words
    except ImportError as error:
        raise missing("nlpaug") from error
    return words.SplitAug(), characters.RandomCharAug(), characters.KeyboardAug()


_MOST_TEXTS = 4  # per request
_MOST_WORKERS = 16


@dataclass(frozen=True)
class ViewRequest:
    """What is wanted of texts: `count` views each; with a fast `tokenizer` (serialized), their
    token ids up to `max_length`."""

    count: int
    seed: int
    augmenter: str = "builtin"
    tokenizer: str | None = None
    max_length: int | None = None

    @cached_property
    def _tokenizer(self) -> Any:
        return open_tokenizer(self.tokenizer or "", self.max_length)

    def views(self, texts: list[str]) -> list[list[str]]:
        """The views of some texts."""
        return make_views(texts, self.count, self.seed, self.augmenter)

    def ids(self, texts: list[str]) -> list[list[int]]:
        """The token ids of the views, view by view."""
        return token_ids(self._tokenizer, [view for views in self.views(texts) for view in views])


def answer_views(request: ViewRequest, texts: list[str]) -> Any:
    """What a worker does: the views of some texts, or their token counts and all their ids.

    Without numpy: importing it in every worker would delay the first views, for which a GPU waits.
    """
    if request.tokenizer is None:
        return request.views(texts)
    rows = request.ids(texts)
    return [len(row) for row in rows], array(
        "i", [token for row in rows for token in row]
    ).tobytes()


class ViewPool(AbstractContextManager["ViewPool"]):
    """Makes views of texts in `workers` child processes; with fewer than two, or if they fail, in
    this one. A context.

    With a tokenizer, `make_ids` gives the views' token ids. What comes out is what `make_views`
    gives.
    """

    def __init__(self, request: ViewRequest, workers: int | None = None) -> None:
        count = (
            min(_MOST_WORKERS, cores_here() - 2) if workers is None else workers
        )  # the GPU's host has work too
        # a tokenizer's own threads would only get in the way of the other workers
        quiet = {"TOKENIZERS_PARALLELISM": "false"}
        self.pool = WorkerPool(
            answer_views,
            request,
            count if request.augmenter == "builtin" else 0,
            quiet,
        )
        self.pool.get_ready()

    @property
    def request(self) -> ViewRequest:
        """What is made of each text."""
        return self.pool.setup

    def set_tokenizer(self, tokenizer: str | None, max_length: int | None) -> None:
        """Give the pool its tokenizer, before any views are asked for."""
        limit = max_length if tokenizer is not None else None
        self.pool.setup = replace(self.request, tokenizer=tokenizer, max_length=limit)

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        self.pool.close()

    def make(self, texts: Sequence[str]) -> list[list[str]]:
        """For every text its views, in order. For pools without a tokenizer."""
        return [views for made in self.pool.map(self._parts(texts)) for views in made]

    def make_ids(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The token ids of every text's views, view by view. For pools with a tokenizer."""
        import numpy as np

        answers = self.pool.map(self._parts(texts))
        return [
            ids
            for sizes, flat in answers
            for ids in np.split(np.frombuffer(flat, dtype=np.int32), np.cumsum(sizes)[:-1])
        ]

    def _parts(self, texts: Sequence[str]) -> list[list[str]]:
        """Requests, several for every worker: a GPU waits for the last of them."""
        size = max(1, min(_MOST_TEXTS, len(texts) // (4 * max(1, self.pool.count))))
        return [list(texts[i : i + size]) for i in range(0, len(texts), size)]


def open_tokenizer(serialized: str, max_length: int | None) -> Any:
    """A fast tokenizer that cuts from the right."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(serialized)
    tokenizer.no_padding()
    if max_length is None:
        tokenizer.no_truncation()
    else:
        tokenizer.enable_truncation(max_length)
    return tokenizer


def token_ids(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """Token ids of texts with the special tokens the tokenizer adds."""
    # without offsets, which are not needed, where the tokenizer can leave them out
    encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
    return [encoding.ids for encoding in encode(texts)]
