"""Made-up examples and vectors in which one layer of one readout carries the labels."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from layerscope.choose.labels import Labeled, build
from layerscope.core.readout import Readout, all_readouts

READOUTS = [readout for readout in all_readouts(["plain"]) if readout.pooling in ("mean", "last")]
LAYERS = tuple(range(9))


def write_csv(
    path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]], delimiter: str = ","
) -> Path:
    """A table on disk."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, delimiter=delimiter)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def classes(count: int, kinds: int = 3) -> Labeled:
    """Texts with classes in turn."""
    return build(
        "classification", [((f"text number {i}",), f"class {i % kinds}") for i in range(count)]
    )


def scored_pairs(count: int, seed: int = 0) -> Labeled:
    """Pairs with random scores."""
    scores = np.random.default_rng(seed).uniform(0, 5, count)
    return build("scores", [((f"one {i}", f"two {i}"), float(scores[i])) for i in range(count)])


def judged_pairs(count: int) -> Labeled:
    """Pairs of which every other one belongs together."""
    return build("pairs", [((f"one {i}", f"two {i}"), i % 2) for i in range(count)])


def planted(
    labeled: Labeled, readout: Readout | None, layer: int = 4, strength: float = 3.0, seed: int = 0
) -> Callable[[Readout], np.ndarray]:
    """Vectors (layers, texts, 24): noise, except that one layer of one readout (and a little of its
    neighbors) knows the labels.

    Classes lie along their own axes; the two texts of a pair share as much of a vector as their
    score says.
    """

    def read(asked: Readout) -> np.ndarray:
        rng = np.random.default_rng([seed, READOUTS.index(asked)])
        vectors = rng.normal(size=(len(LAYERS), len(labeled.texts), 24)).astype(np.float32)
        if asked != readout:
            return vectors
        place = {text: i for i, text in enumerate(labeled.texts)}
        for near, share in ((layer, 1.0), (layer - 1, 0.5), (layer + 1, 0.5)):
            for i, target in enumerate(labeled.targets):
                if labeled.kind == "classification":
                    vectors[near, place[labeled.sides[0][i]], int(target)] += strength * share
                else:
                    alike = float(target) / float(labeled.targets.max())
                    first, second = (place[side[i]] for side in labeled.sides)
                    vectors[near, second] += strength * share * alike * vectors[near, first]
        return vectors

    return read
