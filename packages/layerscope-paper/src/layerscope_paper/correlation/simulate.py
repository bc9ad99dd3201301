"""The null of `correlate` on curves whose truth is known: false positives and power.

python -m layerscope_paper.correlation.simulate [TRIALS]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

from layerscope_paper.correlation import maths


def draw_curve(rng: np.random.Generator, kind: str, n: int) -> np.ndarray:
    """Draw a curve over n layers that shares its shape alone with others of its kind."""
    depth = np.linspace(0, 1, n)
    layers = np.arange(n)
    if kind == "walk":
        return rng.standard_normal(n).cumsum()
    distances = np.subtract.outer(layers, layers) / (n / 8)
    covariance = np.exp(-0.5 * distances**2) + 1e-6 * np.eye(n)
    smooth = np.linalg.cholesky(covariance) @ rng.standard_normal(n)
    if kind == "smooth":
        return smooth
    dip = np.exp(-0.5 * ((depth - rng.uniform(0.4, 0.6)) / rng.uniform(0.15, 0.25)) ** 2)
    return -rng.uniform(1, 3) * dip + 0.4 * smooth + rng.uniform(1, 3) * (depth == 1)


def simulate(trials: int) -> Iterator[dict[str, object]]:
    """Yield the share of unrelated curves with p ≤ 0.05, and of related ones, by kind of curve.

    A related curve is y + 0.3 × an unrelated one.
    """
    for n in (13, 25):
        for kind in ("walk", "smooth", "valley and last layer apart"):
            rng = np.random.default_rng(n)
            detections: dict[str, list[list[bool]]] = {"spearman": [], "dcor": []}
            for trial in range(trials):
                x = draw_curve(rng, kind, n)
                y = draw_curve(rng, kind, n)
                curves = np.stack([x, y / y.std() + 0.3 * x / x.std()])
                drawn = maths.surrogate_curves(y, 99, trial)
                for measure, trial_results in detections.items():
                    values = [maths.association(measure, curve, y) for curve in curves]
                    nulls = {k: maths.null_values(measure, curves, c) for k, c in drawn.items()}
                    chances = maths.compare_with(measure, values, nulls)
                    trial_results.append([chance.p <= 0.05 for chance in chances])
            for measure, trial_results in detections.items():
                unrelated, related = np.mean(trial_results, axis=0)
                rates = {"false_positives": float(unrelated), "power": float(related)}
                yield {"layers": n, "curves": kind, "measure": measure, "trials": trials, **rates}


if __name__ == "__main__":
    for row in simulate(int(sys.argv[1]) if len(sys.argv) > 1 else 1000):
        print(row, flush=True)
