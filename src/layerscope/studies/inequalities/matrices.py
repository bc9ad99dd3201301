"""Random matrices of several kinds, and the quantities the statements are about, written apart from `layerscope.metrics`."""

from __future__ import annotations

import numpy as np

from layerscope.studies.inequalities.base import Case, Rng

KINDS = ("gaussian", "power law", "low rank", "one huge row", "near-duplicate rows", "orthonormal", "two by two", "sparse")


def draw_matrix(kind: str, rng: Rng) -> Case:
    """{"z": a matrix of 2 to 24 rows and columns}."""
    n, d = (2, 2) if kind == "two by two" else (int(x) for x in rng.integers(2, 25, size=2))
    z = rng.normal(size=(n, d))
    if kind == "power law":
        u, _, v = np.linalg.svd(z, full_matrices=False)
        z = (u * np.arange(1, min(n, d) + 1) ** -rng.uniform(0.2, 3.0)) @ v
    elif kind == "low rank":
        r = int(rng.integers(1, min(n, d) + 1))
        z = rng.normal(size=(n, r)) @ rng.normal(size=(r, d))
    elif kind == "one huge row":
        z[0] *= 10 ** rng.uniform(1, 3)
    elif kind == "near-duplicate rows":
        z = z[:1] + 10 ** rng.uniform(-5, -1) * z
    elif kind == "orthonormal":
        u, _, v = np.linalg.svd(z, full_matrices=False)
        z = u @ v
    elif kind == "sparse":
        z *= rng.random((n, d)) < 0.2
        z[0, 0] += 1.0  # never all zero
    return {"z": z}


def nudge_matrix(case: Case, rng: Rng, step: float) -> Case:
    """The matrix, a little changed."""
    z = case["z"]
    return {**case, "z": z + step * np.linalg.norm(z) / np.sqrt(z.size) * rng.normal(size=z.shape)}


def draw_spectrum(kind: str, rng: Rng) -> np.ndarray:
    """The eigenvalue shares p of a matrix of a kind."""
    return shares(draw_matrix(kind, rng)["z"])


def shares(z: np.ndarray) -> np.ndarray:
    """p_i = λ_i(Z Zᵀ) / tr, descending."""
    squares = np.linalg.svd(z, compute_uv=False) ** 2
    return np.asarray(squares / squares.sum())


def renyi(p: np.ndarray, alpha: float) -> float:
    """S_α of shares, in nats."""
    p = p[p > 0]
    if alpha == 1:
        return float(-(p * np.log(p)).sum())
    if alpha == np.inf:
        return float(-np.log(p.max()))
    top = p.max()  # taken out, so that large α does not underflow
    return float((np.log(((p / top) ** alpha).sum()) + alpha * np.log(top)) / (1 - alpha))


def effective_rank(z: np.ndarray) -> float:
    """exp of the entropy of σ_i / Σσ (Roy & Vetterli 2007)."""
    sigma = np.linalg.svd(z, compute_uv=False)
    return float(np.exp(renyi(sigma / sigma.sum(), 1.0)))


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows of length 1."""
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True))
