"""What the labelled examples say about every layer under every readout, before anything is chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from layerscope.core.readout import Readout
from layerscope.selection.labels.measures import Items, Measure, make_measure
from layerscope.selection.labels.read import Labelled

VectorSource = Callable[[Readout], np.ndarray]
"""From a readout to vectors (layers, texts, D), the texts in the order of `Labelled.texts`."""


@dataclass(frozen=True)
class Evidence:
    """Contributions (readouts, layers, n) of every example; NaN where a layer is undefined under a readout.

    `groups` are the examples' classes, where they have any: resampling keeps their sizes. `rounds` (rounds, readouts, layers, n)
    and `accuracy` (readouts, layers) are those of `Items`.
    """

    readouts: tuple[Readout, ...]
    layers: tuple[int, ...]
    judged: np.ndarray
    measure: Measure
    groups: np.ndarray | None = None
    rounds: np.ndarray | None = None
    accuracy: np.ndarray | None = None

    @property
    def defined(self) -> np.ndarray:
        """(readouts, layers): where there is anything to score."""
        return np.isfinite(self.judged).all(-1)

    @property
    def reference(self) -> tuple[int, int]:
        """Where the default readout's last layer is."""
        return self.readouts.index(Readout()) if Readout() in self.readouts else 0, len(self.layers) - 1


def gather(
    labelled: Labelled,
    readouts: Sequence[Readout],
    layers: Sequence[int],
    vectors: VectorSource,
    *,
    folds: int = 5,
    seed: int = 0,
    unit: bool = False,
    advance: Callable[[int], None] = lambda n: None,
) -> Evidence:
    """Contributions under every readout; those that a probe cannot tell apart are computed once."""
    measure = make_measure(labelled, folds, seed)
    computed: dict[Readout, Items] = {}
    for readout in readouts:
        same = stands_for(readout, labelled, unit)
        if same not in computed:
            computed[same] = measure.items(vectors(same))
        advance(1)
    return assemble(labelled, measure, {readout: computed[stands_for(readout, labelled, unit)] for readout in readouts}, layers)


def stands_for(readout: Readout, labelled: Labelled, unit: bool) -> Readout:
    """The readout that is computed in its place: a probe does not see centering, unless it comes before scaling to length 1."""
    return replace(readout, centering="none") if labelled.kind == "classification" and not unit else readout


def assemble(labelled: Labelled, measure: Measure, found: Mapping[Readout, Items], layers: Sequence[int]) -> Evidence:
    """Contributions under several readouts, put together in the readouts' order."""
    every = list(found.values())
    rounds = [one.rounds for one in every if one.rounds is not None]
    right = [one.accuracy.mean(-1) for one in every if one.accuracy is not None]
    return Evidence(
        tuple(found),
        tuple(layers),
        np.stack([one.judged for one in every]),
        measure,
        None if labelled.kind == "scores" else labelled.targets,
        np.stack(rounds, axis=1) if rounds else None,
        np.stack(right) if right else None,
    )
