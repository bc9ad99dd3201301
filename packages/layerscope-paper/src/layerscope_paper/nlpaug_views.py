"""Views of texts by the three augmenters of nlpaug that the paper's released code uses, with their
defaults."""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any

import numpy as np

from layerscope.data.views import AUGMENTERS, Augmenter, stream_key
from layerscope.extras import MissingExtraError


def nlpaug_view(text: str, *, seed: int, view: int) -> str:
    """Return one view of a text.

    It does not depend on earlier draws, and does not change the global random streams.
    nlpaug touches at most ten words of a text in each step, however long it is; the built-in
    augmenter has no such limit.
    """
    steps = _steps()
    key = stream_key(text, seed, view)
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    try:
        # nlpaug draws from the global streams of both; numpy takes 32 bits.
        random.seed(key)
        np.random.seed(key % 2**32)
        result = text
        for step in steps:
            changed = step.augment(result)  # a list of one, or an empty one for an empty text
            if changed and changed[0].strip():
                result = changed[0]
        return result
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


NLPAUG = AUGMENTERS.add(Augmenter("nlpaug", nlpaug_view))
