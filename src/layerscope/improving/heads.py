"""Heads among the candidates: linear maps of a layer's plain reading that imitate the best prompt.

The prompt is needed once, to teach: its vectors of the texts are the target of a linear map.
Afterwards a text costs one short pass through the blocks below the layer, without a prompt. An
encoder that judges teaches the head that is exported as well, but not the heads that it judges: it
would favor its own pupils.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from layerscope.core.heads import LEAST_TEXTS, Ridge, make_target, unit
from layerscope.core.readout import HEAD, Readout
from layerscope.core.scores import Scores

READOUT = Readout(centering=HEAD)
"""The readout below a head: the plain text, the mean of its final-normed tokens."""

TOGETHER = ("one-word", "topic", "intent")
MORE_PROMPTS = 2
MOST_NUMBERS = 10**8
"""Two of the prompts `TOGETHER` teach a student beside the best one, unless texts × width is more
(`benchmarks/results/heads.md`)."""


@dataclass(frozen=True)
class Teacher:
    """The best prompt's readout at its layer, from which heads learn.

    The exported head learns from the `encoder` too, where one judges.
    """

    readout: Readout
    layer: int
    encoder: str = ""

    @property
    def together(self) -> list[Readout]:
        """Return its readout, and two further prompts if it is read at the last token."""
        if self.readout.pooling != "last":
            return [self.readout]
        names = [name for name in TOGETHER if name != self.readout.template]
        further = [replace(self.readout, template=name) for name in names[:MORE_PROMPTS]]
        return [self.readout, *further]

    def describe(self, prompts: Sequence[Readout] = ()) -> str:
        """Return the teachers in words: these prompts, or the best alone."""
        names = [f"the {prompt.template} prompt" for prompt in prompts or [self.readout]]
        words = f"{', '.join(names)} at layer {self.layer}"
        return f"{words} and {self.encoder}" if self.encoder else words


def find_teacher(
    scores: Scores, readouts: Sequence[Readout], layers: Sequence[int], encoder: str
) -> Teacher | None:
    """Return the centered prompt with the best score; None if none beats today's reading."""
    count = len(layers)
    is_prompt = [
        readout.template != "plain" and readout.centering == "corpus" for readout in readouts
    ]
    allowed = scores.defined & np.repeat(is_prompt, count)
    if not allowed.any():
        return None
    best = scores.best(allowed)
    today = (list(readouts).index(Readout()) + 1) * count - 1
    if not scores.gain(best, today).low > 0:
        return None
    return Teacher(readouts[best // count], layers[best % count], encoder)


@dataclass(frozen=True)
class Heads:
    """A head at every layer, from its vectors `raw` (layers, texts, D) to the target (texts, K).

    Vectors and similarities of the texts themselves are from heads that were not fitted on them.
    """

    teacher: Teacher
    raw: np.ndarray
    target: np.ndarray

    def similarities(self, place: int) -> np.ndarray | None:
        """Return cosines of every two texts by the head fitted on neither.

        None where all texts have the same vector.
        """
        if _are_equal(self.raw[place]):
            return None
        cosines = Ridge(self.raw[place], self.target).unseen_similarities()
        np.fill_diagonal(cosines, -np.inf)
        return cosines

    @cached_property
    def crossed(self) -> np.ndarray:
        """Return every text's vector (layers, texts, K) by the head fitted on all others."""
        vectors = [
            np.full(self.target.shape, np.nan)
            if _are_equal(rows)
            else Ridge(rows, self.target).unseen()
            for rows in self.raw
        ]
        return np.stack(vectors).astype(np.float32)

    def apply(self, raw: np.ndarray) -> np.ndarray:
        """Return vectors (layers, n, K) of other texts, from theirs (layers, n, D)."""
        heads = [Ridge(rows, self.target).head() for rows in self.raw]
        return np.stack([head(rows) for head, rows in zip(heads, raw, strict=True)]).astype(
            np.float32
        )


def fit_heads(teacher: Teacher | None, raw: np.ndarray, prompted: np.ndarray) -> Heads | None:
    """Return heads at every layer; None where there is nothing to learn from, or too little."""
    if teacher is None or raw.shape[1] < LEAST_TEXTS:
        return None
    target = make_target(prompted)
    if not np.isfinite(target).all() or not np.abs(unit(target)).max() > 0:
        return None
    return Heads(teacher, raw, target)


def _are_equal(rows: np.ndarray) -> bool:
    """Return whether all texts have the same vector."""
    return bool(np.ptp(rows, axis=0).max() <= 1e-6 * max(1e-30, np.abs(rows).max()))
