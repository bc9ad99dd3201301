"""Symmetric matrices of the kinds that Gram matrices of states are of, and of kinds that upset
eigen-solvers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def kinds(n: int, seed: int = 0) -> Iterator[tuple[str, np.ndarray]]:
    """Named (n, n) matrices, float64."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2 * n))
    yield "random", x @ x.T
    shifted = x + 50 * rng.normal(size=2 * n)
    yield "anisotropic", shifted @ shifted.T
    sink = x * np.where(np.arange(n) == 0, 1000, 1)[:, None]
    yield "sink", sink @ sink.T
    decaying = x / np.arange(1, 2 * n + 1)
    yield "decaying", decaying @ decaying.T
    few = x[:, : max(1, n // 4)]
    yield "rank deficient", few @ few.T
    directions = x / np.linalg.norm(x, axis=1, keepdims=True)
    yield "cosines", directions @ directions.T
    yield "indefinite", x[:, :n] + x[:, :n].T
    yield "identity", np.eye(n)
    yield "ones", np.ones((n, n))
    yield "diagonal", np.diag(rng.normal(size=n))
    yield "tridiagonal", 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
    yield "blocks", np.kron(np.eye(n), np.ones((2, 2)))[:n, :n]
    yield "huge", 1e36 / n * (x @ x.T)
    yield "tiny", 1e-30 * (x @ x.T)
