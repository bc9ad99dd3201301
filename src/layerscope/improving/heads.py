"""Heads among the candidates: every layer's plain reading, mapped so that it agrees with the best
prompt.

The prompt is needed once, to teach: what it says of the texts is the target of a linear map.
Afterwards a text costs one short pass through the blocks below the layer, without a prompt. An
encoder that judges teaches the head that is exported as well, but not the heads that it judges: it
would favor its own pupils.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from layerscope.core.candidates import ScoredCandidates
from layerscope.core.heads import LEAST_TEXTS, Ridge, make_target, unit
from layerscope.core.readout import HEAD, Readout

READOUT = Readout(centering=HEAD)
"""How a head's layer is read: the plain text, the mean of its final-normed tokens."""

TOGETHER, MORE_PROMPTS, MOST_NUMBERS = ("one-word", "topic", "intent"), 2, 10**8
"""Two of these prompts teach a student beside the best, unless texts × width is more
(`benchmarks/results/heads.md`)."""


@dataclass(frozen=True)
class Teacher:
    """What heads learn from: the best prompt's readout at its layer; the one that is exported, from
    the encoder too."""

    readout: Readout
    layer: int
    encoder: str = ""

    @property
    def together(self) -> list[Readout]:
        """Its readout, and that of two more prompts if it is read at the last token, where they ask
        for a word as well."""
        more = [
            replace(self.readout, template=name)
            for name in TOGETHER
            if name != self.readout.template
        ]
        return [self.readout, *(more[:MORE_PROMPTS] if self.readout.pooling == "last" else [])]

    def describe(self, prompts: Sequence[Readout] = ()) -> str:
        """Who teaches, in words: these prompts, or the best alone."""
        names = [f"the {one.template} prompt" for one in prompts or [self.readout]]
        return (
            ", ".join(names)
            + f" at layer {self.layer}"
            + (f" and {self.encoder}" if self.encoder else "")
        )


def find_teacher(
    judgment: ScoredCandidates, readouts: Sequence[Readout], layers: Sequence[int], encoder: str
) -> Teacher | None:
    """The centered prompt that the judge likes best; None where none is better than what the user
    has today."""
    prompts = np.array(
        [readout.template != "plain" and readout.centering == "corpus" for readout in readouts]
    )
    among = judgment.defined & prompts[:, None]
    today = (list(readouts).index(Readout()), len(layers) - 1)
    if not among.any():
        return None
    best = judgment.best(among)
    return (
        Teacher(readouts[best[0]], int(layers[best[1]]), encoder)
        if judgment.gain(best, today).low > 0
        else None
    )


@dataclass
class Heads:
    """A head at every layer, from its vectors `raw` (layers, texts, D) to the target (texts, K).

    Whatever is said of the texts themselves is said by heads that were not fitted on them.
    """

    teacher: Teacher
    raw: np.ndarray
    target: np.ndarray

    def _fit(self, place: int) -> Ridge:
        return Ridge(self.raw[place], self.target)

    def similarities(self, place: int) -> np.ndarray | None:
        """Cosines of every two texts by the head fitted on neither; None where all texts have the
        same vector."""
        if all_equal(self.raw[place]):
            return None
        found = self._fit(place).unseen_similarities()
        np.fill_diagonal(found, -np.inf)
        return found

    @cached_property
    def crossed(self) -> np.ndarray:
        """(layers, texts, K): every text's vector by the head fitted on all others."""
        return np.stack(
            [
                np.full(self.target.shape, np.nan) if all_equal(rows) else self._fit(place).unseen()
                for place, rows in enumerate(self.raw)
            ]
        ).astype(np.float32)

    def apply(self, raw: np.ndarray) -> np.ndarray:
        """Vectors (layers, texts, K) of other texts, from theirs (layers, texts, D), by heads
        fitted on all of these."""
        return np.stack(
            [self._fit(place).head()(rows).astype(np.float32) for place, rows in enumerate(raw)]
        )


def all_equal(rows: np.ndarray) -> bool:
    """Whether all texts have the same vector."""
    return bool(np.ptp(rows, axis=0).max() <= 1e-6 * max(1e-30, np.abs(rows).max()))


def fit_heads(teacher: Teacher | None, raw: np.ndarray, prompted: np.ndarray) -> Heads | None:
    """Heads at every layer; None where there is nothing to learn from, or too little of it."""
    if teacher is None or raw.shape[1] < LEAST_TEXTS:
        return None
    target = make_target(prompted)
    if not np.isfinite(target).all() or not np.abs(unit(target)).max() > 0:
        return None
    return Heads(teacher, raw, target)


def with_heads(judgment: ScoredCandidates, heads: ScoredCandidates) -> ScoredCandidates:
    """The candidates with a row for the heads below the others."""
    draws = None
    if judgment.draws is not None and heads.draws is not None:
        draws = np.concatenate([judgment.draws, heads.draws])
    return replace(
        judgment, score=np.concatenate([judgment.score, heads.score]), draws=draws,
        readouts=[*judgment.readouts, READOUT.name],
    )  # fmt: skip
