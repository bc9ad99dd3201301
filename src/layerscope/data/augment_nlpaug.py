"""Views through nlpaug, with the three augmenters and the defaults of the paper's released code.

nlpaug touches at most ten words of a text in each step, however long it is; the built-in augmenter has no such limit.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any

import numpy as np

from layerscope.data.augment import DEFAULT_STRENGTH, stream_key
from layerscope.errors import MissingExtraError


def nlpaug_view(text: str, *, seed: int, view: int) -> str:
    """One view of one text: the same whatever was drawn before, and without a trace in the global random streams."""
    steps = _steps()
    key = stream_key(text, seed, view, DEFAULT_STRENGTH)
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
def _steps() -> tuple[Any, ...]:
    try:
        import nlpaug.augmenter.char as characters
        import nlpaug.augmenter.word as words
    except ImportError as error:
        raise MissingExtraError("the nlpaug augmenter", "augment") from error
    return words.SplitAug(), characters.RandomCharAug(), characters.KeyboardAug()
