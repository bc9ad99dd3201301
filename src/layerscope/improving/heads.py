"""Heads among the candidates: every layer's plain reading, mapped so that it agrees with the best prompt and the encoder.

The prompts are needed once, to teach: what they and the encoder say of the texts is the target of a linear map. Afterwards a text
costs one short pass through the blocks below the layer, without a prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from layerscope.core.candidates import ScoredCandidates
from layerscope.core.heads import LEAST_TEXTS, Head, Ridge, make_target, unit
from layerscope.core.readout import HEAD, Readout

READOUT = Readout(centering=HEAD)
"""How a head's layer is read: the plain text, the mean of its final-normed tokens."""


@dataclass(frozen=True)
class Teacher:
    """What heads learn from: the best prompt's readout at its layer and, where one judges, an encoder."""

    readout: Readout
    layer: int
    encoder: str = ""

    @property
    def words(self) -> str:
        """Who teaches, in words."""
        prompt = "" if self.readout.template == "plain" else f"the {self.readout.template} prompt at layer {self.layer}"
        return " and ".join(part for part in (prompt, self.encoder) if part)

    def target(self, prompted: np.ndarray, encoded: np.ndarray | None) -> np.ndarray:
        """What a head should give, from the vectors (texts, D) under the prompt and by the encoder."""
        parts = [] if self.readout.template == "plain" else [prompted]
        return make_target(*parts, *([] if encoded is None else [encoded]))


def find_teacher(judgment: ScoredCandidates, readouts: Sequence[Readout], layers: Sequence[int], encoder: str) -> Teacher | None:
    """The centered prompt that the judge likes best; None where nothing can teach.

    A prompt that is no better than what the user has today teaches nothing: an encoder then teaches alone.
    """
    prompts = np.array([readout.template != "plain" and readout.centering == "corpus" for readout in readouts])
    among = judgment.defined & prompts[:, None]
    today = (list(readouts).index(Readout()), len(layers) - 1)
    if among.any():
        best = judgment.best(among)
        if judgment.gain(best, today).low > 0:
            return Teacher(readouts[best[0]], int(layers[best[1]]), encoder)
    return Teacher(Readout(), int(layers[-1]), encoder) if encoder else None


@dataclass
class Heads:
    """A head at every layer, from its vectors `raw` (layers, texts, D) to the target (texts, K).

    Whatever is said of the texts themselves is said by heads that were not fitted on them.
    """

    teacher: Teacher
    raw: np.ndarray
    target: np.ndarray
    _penalties: dict[int, float] = field(default_factory=dict, repr=False)

    def ridge(self, place: int) -> Ridge:
        """The regression at one of the layers."""
        return Ridge(self.raw[place], self.target)

    def penalty(self, place: int, ridge: Ridge | None = None) -> float:
        """The strength of the penalty there, chosen on texts left out."""
        if place not in self._penalties:
            self._penalties[place] = (ridge or self.ridge(place)).best_penalty()
        return self._penalties[place]

    def similarities(self, place: int) -> np.ndarray | None:
        """Cosines of every two texts by the head fitted on neither; None where all texts have the same vector."""
        if np.ptp(self.raw[place], axis=0).max() <= 1e-6 * max(1e-30, np.abs(self.raw[place]).max()):
            return None
        ridge = self.ridge(place)
        found = ridge.unseen_similarities(self.penalty(place, ridge)).astype(np.float32)
        np.fill_diagonal(found, -np.inf)
        return found

    @cached_property
    def crossed(self) -> np.ndarray:
        """(layers, texts, K): every text's vector by the head fitted on all others."""
        rows = []
        for place in range(len(self.raw)):
            ridge = self.ridge(place)
            rows.append(ridge.unseen(self.penalty(place, ridge)).astype(np.float32))
        return np.stack(rows)

    def apply(self, raw: np.ndarray) -> np.ndarray:
        """Vectors (layers, texts, K) of other texts, from theirs (layers, texts, D), by heads fitted on all of these."""
        return np.stack([self.head(place)(rows).astype(np.float32) for place, rows in enumerate(raw)])

    def head(self, place: int, fitted_on: str = "") -> Head:
        """The head at one of the layers, fitted on all texts."""
        return self.ridge(place).head(self.penalty(place), fitted_on)


def fit_heads(teacher: Teacher | None, raw: np.ndarray, prompted: np.ndarray, encoded: np.ndarray | None) -> Heads | None:
    """Heads at every layer; None where there is nothing to learn from, or too little of it."""
    if teacher is None or raw.shape[1] < LEAST_TEXTS:
        return None
    target = teacher.target(prompted, encoded)
    return Heads(teacher, raw, target) if np.isfinite(target).all() and np.abs(unit(target)).max() > 0 else None


def with_heads(judgment: ScoredCandidates, heads: ScoredCandidates) -> ScoredCandidates:
    """The candidates with a row for the heads below the others."""
    draws = None
    if judgment.draws is not None and heads.draws is not None:
        draws = np.concatenate([judgment.draws, heads.draws])
    return replace(
        judgment, score=np.concatenate([judgment.score, heads.score]), draws=draws,
        readouts=[*judgment.readouts, READOUT.name],
    )  # fmt: skip
