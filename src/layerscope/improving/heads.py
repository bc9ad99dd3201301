"""Heads among the candidates: every layer's plain reading, mapped so that it agrees with the best
prompt.

The prompt is needed once, to teach: what it says of the texts is the target of a linear map.
Afterwards a text costs one short pass through the blocks below the layer, without a prompt. An
encoder that judges teaches the head that is exported as well, but not the heads that it judges: it
would favor its own pupils.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from layerscope.core.candidates import ScoredCandidates
from layerscope.core.heads import (
    LEAST_TEXTS,
    PENALTY,
    General,
    Head,
    Ridge,
    make_target,
    make_targets,
    unit,
)
from layerscope.core.readout import HEAD, Readout
from layerscope.core.statistics import student_interval
from layerscope.errors import DataError
from layerscope.improving.general import WEIGHTS
from layerscope.selection.judges.agreement import Neighborhoods, similarities

READOUT = Readout(centering=HEAD)
"""How a head's layer is read: the plain text, the mean of its final-normed tokens."""

TOGETHER, MORE_PROMPTS, MOST_NUMBERS = ("one-word", "topic", "intent"), 2, 10**8
"""Two of these prompts teach a student beside the best, unless texts × width is more
(`benchmarks/results/heads.md`)."""


@dataclass(frozen=True)
class GeneralWeight:
    """What a general text counts in a head, and the agreement on texts not fitted on, without
    general texts and with them.

    `after` is the largest of the weights', on the texts that chose the weight.
    """

    weight: float
    before: float
    after: float


def choose_weight(
    vectors: np.ndarray,
    teachers: Sequence[np.ndarray],
    general: np.ndarray,
    taught: Sequence[np.ndarray],
    judged: int | None = None,
) -> tuple[Head, GeneralWeight]:
    """The head from a user's texts and general ones, by vectors (texts, D) and what teachers say of
    each.

    What a general text counts is what makes the `judged` first texts of the user, when they are
    left out, agree most with their teachers; nothing, where that is not shown to be better, unless
    these are too few for a head of their own.
    """
    own = make_target(*teachers)
    reference = Neighborhoods.of(similarities(own[:judged]))

    def tried(
        target: np.ndarray, general: General | None = None, weight: float = 0.0
    ) -> tuple[Head, np.ndarray]:
        ridge = Ridge(
            vectors, target, PENALTY, general, weight
        )  # larger than all vectors: not kept for the next weight
        cosines = torch.as_tensor(ridge.unseen_similarities(first=judged)).to(
            reference.ranks.device
        )
        agreement = reference.agreement(cosines.fill_diagonal_(-torch.inf)).cpu()
        return ridge.head(), np.asarray(agreement, dtype=np.float64)

    (best, before), few = (
        tried(own),
        len(own[:judged]) < LEAST_TEXTS,
    )  # those judged: as for the heads that are judged
    found = GeneralWeight(0.0, float(before.mean()), -1.0 if few else float(before.mean()))
    target, other = make_targets(teachers, taught)
    products = General.of(general, other)
    for weight in WEIGHTS:
        head, after = tried(target, products, weight)
        if after.mean() > found.after and (few or student_interval(after - before).low > 0):
            best, found = head, GeneralWeight(weight, found.before, float(after.mean()))
    return best, found


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

    Whatever is said of the texts themselves is said by heads that were not fitted on them. Of
    general texts `general` gives the vectors (texts, D) at a place, `taught` is their target, and
    each counts `weight`.
    """

    teacher: Teacher
    raw: np.ndarray
    target: np.ndarray
    general: Callable[[int], np.ndarray] | None = None
    taught: np.ndarray | None = None
    weight: float = 0.0

    def _fit(self, place: int) -> Ridge:
        if self.general is None or self.taught is None:
            return Ridge(self.raw[place], self.target)
        return Ridge(
            self.raw[place],
            self.target,
            general=General.of(self.general(place), self.taught),
            weight=self.weight,
        )

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


def fit_heads(
    teacher: Teacher | None, raw: np.ndarray, prompted: np.ndarray, general: Callable[[int], np.ndarray] | None = None,
    taught: np.ndarray | None = None,
) -> Heads | None:  # fmt: skip
    """Heads at every layer; None where there is nothing to learn from, or too little of it.

    `general` gives the vectors of general texts at a place, and `taught` is what the prompt says of
    them.
    """
    if teacher is None or (raw.shape[1] < LEAST_TEXTS and general is None):
        return None
    target = make_target(prompted)
    if not np.isfinite(target).all() or not np.abs(unit(target)).max() > 0:
        return None
    if general is not None and taught is not None:
        place = len(raw) // 3  # where heads do well
        if not np.isfinite(taught).all() or all_equal(taught) or all_equal(general(place)):
            raise DataError(
                "the general texts teach nothing: all have the same vector, or none. Leave out general=."
            )
        weight = choose_weight(raw[place], [prompted], general(place), [taught])[1].weight
        if weight:
            target, taught = make_targets([prompted], [taught])
            return Heads(teacher, raw, target, general, taught, weight)
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
