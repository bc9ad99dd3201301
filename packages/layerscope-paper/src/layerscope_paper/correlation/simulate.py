"""The null of `correlate` on curves whose truth is known: false positives and power.

python -m layerscope_paper.correlation.simulate [TRIALS]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

from layerscope_paper.correlation import maths


def draw_curve(rng: np.random.Generator, kind: str, n: int) -> np.ndarray:
    """A curve over n layers that has nothing to do with any other of its kind but its shape."""
    depth = np.linspace(0, 1, n)
    place = np.arange(n)
    if kind == "walk":
        return rng.standard_normal(n).cumsum()
    smooth = np.exp(-0.5 * (np.subtract.outer(place, place) / (n / 8)) ** 2) + 1e-6 * np.eye(n)
    smooth = np.linalg.cholesky(smooth) @ rng.standard_normal(n)
    if kind == "smooth":
        return smooth
    dip = np.exp(-0.5 * ((depth - rng.uniform(0.4, 0.6)) / rng.uniform(0.15, 0.25)) ** 2)
    return -rng.uniform(1, 3) * dip + 0.4 * smooth + rng.uniform(1, 3) * (depth == 1)


def simulate(trials: int) -> Iterator[dict[str, object]]:
    """How often unrelated curves are called related at p ≤ 0.05, and related ones (y + 0.3 × an
    unrelated one) are found."""
    for n in (13, 25):
        for kind in ("walk", "smooth", "valley and last layer apart"):
            rng = np.random.default_rng(n)
            found: dict[str, list[list[bool]]] = {"spearman": [], "dcor": []}
            for trial in range(trials):
                x = draw_curve(rng, kind, n)
                y = draw_curve(rng, kind, n)
                both = np.stack([x, y / y.std() + 0.3 * x / x.std()])
                drawn = maths.surrogate_curves(y, 99, trial)
                for measure, beyond in found.items():
                    values = [maths.association(measure, one, y) for one in both]
                    nulls = {k: maths.null_values(measure, both, c) for k, c in drawn.items()}
                    chances = maths.compare_with(measure, values, nulls)
                    beyond.append([chance.p <= 0.05 for chance in chances])
            for measure, beyond in found.items():
                wrong, right = np.mean(beyond, axis=0)
                rates = {"false_positives": float(wrong), "power": float(right)}
                yield {"layers": n, "curves": kind, "measure": measure, "trials": trials, **rates}


if __name__ == "__main__":
    for row in simulate(int(sys.argv[1]) if len(sys.argv) > 1 else 1000):
        print(row, flush=True)
