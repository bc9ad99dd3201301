"""Prompts made extreme, as token ids: repeated tokens, random tokens, growing length. Pure, and seeded by the prompt itself.

What a tokenizer adds around a text (a beginning-of-text token, [CLS] and [SEP]) stays where it is and is never drawn. One set
of draws serves all levels of a prompt: what is replaced at p = 0.1 is replaced by the same at p = 0.5, so that levels can be
compared prompt by prompt.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np

Repeat = Literal["one", "each"]


@dataclass(frozen=True)
class Prompt:
    """Token ids of one prompt, which of them are the text's own, and a number that stands for the text."""

    ids: np.ndarray
    own: np.ndarray
    key: int

    @classmethod
    def of(cls, ids: Collection[int], special: Collection[int], key: int) -> Prompt:
        """A prompt from a tokenizer's ids."""
        array = np.asarray(list(ids), dtype=np.int64)
        return cls(array, ~np.isin(array, np.asarray(list(special), dtype=np.int64)), key)

    def __len__(self) -> int:
        return len(self.ids)


def repeated(prompt: Prompt, p: float, seed: int, how: Repeat = "one") -> np.ndarray:
    """Each of the text's tokens replaced with probability p by one drawn from the same text.

    `one`: a single token is drawn for the whole prompt, so that p = 1 leaves one token repeated; `each`: anew each time.
    """
    text = prompt.ids[prompt.own]
    if not len(text):
        return prompt.ids.copy()
    rng = _rng(prompt, seed, 0)
    chances = rng.random(len(prompt))
    drawn = text[rng.integers(len(text), size=1 if how == "one" else len(prompt))]
    return np.where(prompt.own & (chances < p), drawn, prompt.ids)


def randomised(prompt: Prompt, p: float, seed: int, vocabulary: np.ndarray) -> np.ndarray:
    """Each of the text's tokens replaced with probability p by one drawn uniformly from `vocabulary`."""
    rng = _rng(prompt, seed, 1)
    chances = rng.random(len(prompt))
    drawn = vocabulary[rng.integers(len(vocabulary), size=len(prompt))]
    return np.where(prompt.own & (chances < p), drawn, prompt.ids)


def prefix(prompt: Prompt, length: int) -> np.ndarray | None:
    """The prompt cut to `length` tokens, with what the tokenizer added at its end put back; None where it is shorter.

    >>> prefix(Prompt.of([1, 10, 11, 12, 2], special=[1, 2], key=0), 4).tolist()
    [1, 10, 11, 2]
    """
    if len(prompt) < length:
        return None
    behind = len(prompt) - 1 - int(np.flatnonzero(prompt.own)[-1]) if prompt.own.any() else 0
    if length <= behind:
        return None
    return np.concatenate([prompt.ids[: length - behind], prompt.ids[len(prompt) - behind :]])


def plain_vocabulary(size: int, special: Collection[int]) -> np.ndarray:
    """Every token id but the special ones."""
    return np.setdiff1d(np.arange(size, dtype=np.int64), np.asarray(list(special), dtype=np.int64))


def _rng(prompt: Prompt, seed: int, kind: int) -> np.random.Generator:
    return np.random.default_rng([seed, kind, prompt.key & 0xFFFFFFFF, prompt.key >> 32])
