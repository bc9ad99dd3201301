"""Candidates with known neighbors: groups of texts whose vectors lie close together, hidden in more
or less noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from layerscope.choose.judges.agreement import Neighborhoods, similarities
from layerscope.choose.judges.base import scores_of_items
from layerscope.core.readout import Readout
from layerscope.core.scores import Scores

DEFAULT = Readout()
OTHER = Readout("one-word", "last", "raw", "keep", "corpus")


def planted(
    noise: float, count: int = 120, groups: int = 12, width: int = 16, seed: int = 0
) -> np.ndarray:
    """Vectors (count, width) around the same group centers for every noise."""
    centers = np.random.default_rng(7).normal(size=(groups, width))
    rng = np.random.default_rng([seed, round(1000 * noise)])
    return (centers[np.arange(count) % groups] + noise * rng.normal(size=(count, width))).astype(
        np.float32
    )


@dataclass
class Planted:
    """Layers of two readouts; the lower the noise, the better the layer."""

    noises: tuple[tuple[float, ...], ...]
    readouts: tuple[Readout, ...] = (DEFAULT, OTHER)

    @property
    def layers(self) -> list[int]:
        return list(range(len(self.noises[0])))

    def vectors(self, readout: Readout, view: str = "texts") -> np.ndarray:
        """Views differ from the texts by noise of their own, as large as the layer's."""
        seed = {"texts": 0, "dropped": 1, "first-half": 2, "second-half": 3}[view]
        row = self.noises[[one.template for one in self.readouts].index(readout.template)]
        base = [
            planted(0.3, seed=5) + noise * planted(1.0, seed=11 * seed + i)
            for i, noise in enumerate(row)
        ]
        return np.stack(base).astype(np.float32)


CANDIDATES = Planted(((3.0, 1.0, 2.0), (2.0, 0.1, 0.6)))
"""The best is layer 1 of the second readout; the worst layer 0 of the first."""


def agreement_of(reference: np.ndarray | Tensor) -> Scores:
    """Score every candidate by its agreement with vectors, or with similarities (a tensor)."""
    cosines = similarities(reference) if isinstance(reference, np.ndarray) else reference
    neighborhoods = Neighborhoods.of(cosines)
    items = [
        neighborhoods.agreement(similarities(layer)).cpu().numpy()
        for readout in CANDIDATES.readouts
        for layer in CANDIDATES.vectors(readout)
    ]
    return scores_of_items("agreement", np.stack(items), seed=0)
