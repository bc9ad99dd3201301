"""How sure an accuracy is, and a difference between two layers on the same items."""

from __future__ import annotations

import math

import numpy as np

Z = 1.959963984540054  # 95 %


def wilson(hits: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share (Wilson 1927); it stays inside 0 to 1 and is right for shares near them.

    >>> tuple(round(x, 3) for x in wilson(8, 10))
    (0.49, 0.943)
    """
    if n == 0:
        return math.nan, math.nan
    share = hits / n
    middle = (share + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * math.sqrt(share * (1 - share) / n + Z**2 / (4 * n**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def resampled(correct: np.ndarray, seed: int = 0, resamples: int = 1000) -> np.ndarray:
    """Accuracies (resamples, layers) of layers (layers, n) on the same draws of items with repetition."""
    n = correct.shape[1]
    rng = np.random.default_rng([seed, n])
    # how often each item is drawn is all that matters: one product instead of a gather per draw
    counts = rng.multinomial(n, np.full(n, 1 / n), size=resamples).astype(np.float32)
    return (counts @ correct.T.astype(np.float32)).astype(np.float64) / n


def paired_gains(correct: np.ndarray, reference: int, drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Accuracy minus the reference layer's on the same items, with 95 % bounds from the draws."""
    gain = correct.mean(axis=1) - correct[reference].mean()
    low, high = np.quantile(drawn - drawn[:, [reference]], [0.025, 0.975], axis=0)
    return gain, low, high


def tied_with_best(correct: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Whether each layer cannot be told from the best one on these items."""
    best = int(correct.mean(axis=1).argmax())
    return np.quantile(drawn[:, [best]] - drawn, 0.025, axis=0) <= 0
