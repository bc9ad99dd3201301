"""Prompt entropies of every prefix of a prompt, computed together.

If the rows do not change as the prefix grows, the prefixes' Gram matrices are the leading blocks of
one matrix G. With K = G / tr G, the
entropy of the first n rows needs Σ λ log λ of a leading block. On [0, 1], x log x ≈ c x + Σ_k w_k
log(1 + x / t_k) (`entropy_sum`), so that sum is a sum of log det(K_n + t_k) over 22 fixed t_k, and
one Cholesky factor of K + t_k has the determinant of every n on its diagonal. All N entropies cost
22 factorizations, about 7 N³, instead of N sets of eigenvalues, about N⁴ / 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from layerscope.metrics import matrix_entropy, prepare_rows
from layerscope.metrics.vectors import RowPreparation

_FEWEST = 48  # fewer prefixes than this are solved one by one as fast

# The fit of x log x: log t_k = highest − step · k · (1 + grading · k), with larger steps where less
# accuracy is needed
_HIGHEST = 2.0
_STEP = 0.85
_GRADING = 0.02
_FLOOR = 1e-4  # the fit's error is a share of x + floor: eigenvalues near zero are many
# Blocks with less than this share of the trace are computed again on a larger scale, far above the
# fit's floor.
_SMALL = 1 / 64


def entropies_of_prefixes(states: Tensor, lengths: Sequence[int], center: str = "prefix") -> Tensor:
    """Return S_1 of the first n rows of `states` (N, D), centered and scaled to length 1, for each
    n of `lengths`; NaN where undefined.

    Rows centered on the whole `prompt`'s mean do not change as the prefix grows: `prefix_entropies`
    gives all prefixes at once. Centered on the `prefix`'s own mean (the prompt entropy of a text
    cut to n tokens), all rows change with every token, and each prefix is solved by itself; so are
    a few of the others.
    """
    x = states.double()
    if center == "prefix":
        return solve_each_prefix(x, lengths, "centered-unit")
    x = prepare_rows(x, "centered-unit")
    if len(lengths) < _FEWEST:
        return solve_each_prefix(x, lengths, "raw")
    return prefix_entropies(x @ x.mT)[torch.as_tensor(list(lengths), dtype=torch.long) - 1]


def solve_each_prefix(states: Tensor, lengths: Sequence[int], rows: RowPreparation) -> Tensor:
    """Return the entropy of each prefix, computed by itself from its eigenvalues."""
    values = [matrix_entropy(states[:n], 1.0, rows) for n in lengths]
    return torch.stack(values) if values else torch.empty(0, dtype=torch.float64)


@dataclass(frozen=True)
class LogSum:
    """Poles t, weights w, the linear term c, and the largest error as a share of x + floor."""

    poles: np.ndarray
    weights: np.ndarray
    linear: float
    error: float
    floor: float = _FLOOR

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the approximation of x log x."""
        return self.linear * x + np.log1p(x[..., None] / self.poles) @ self.weights


@cache
def entropy_sum(terms: int = 22) -> LogSum:
    """Fit the sum for x log x.

    >>> fit = entropy_sum()
    >>> fit.error < 2e-7
    True
    """
    k = np.arange(terms)
    poles = np.exp(_HIGHEST - _STEP * k * (1 + _GRADING * k))
    x = np.exp(np.concatenate([np.linspace(-40, -3, 1500), np.linspace(-3, 0, 1000)]))
    share = 1 / (x + _FLOOR)
    values = x * np.log(x)
    columns = np.concatenate([x[:, None], np.log1p(x[:, None] / poles)], axis=1)
    scale = np.concatenate([[1.0], poles])
    solved = (
        np.linalg.lstsq(columns * scale * share[:, None], values * share, rcond=1e-15)[0] * scale
    )
    error = float(np.abs((columns @ solved - values) * share).max())
    return LogSum(poles, solved[1:], float(solved[0]), error)


def prefix_entropies(gram: Tensor) -> Tensor:
    """Return S_1 of the leading n×n blocks of a Gram matrix (N, N), for n = 1 … N, float64; NaN
    where a block is zero.

    >>> [round(x, 6) for x in prefix_entropies(torch.eye(4)).exp().tolist()]
    [1.0, 2.0, 3.0, 4.0]
    """
    gram = gram.double()
    trace = gram.diagonal().cumsum(0)
    if gram.shape[0] == 0 or trace[-1] <= 0:
        return torch.full_like(trace, torch.nan)
    scaled = gram / trace[-1]
    share = trace / trace[-1]
    entropy = share.log() - _sum_x_log_x(scaled, share) / share
    small = int((share < _SMALL).sum())
    if 0 < small < len(gram):
        entropy[:small] = prefix_entropies(gram[:small, :small])
    return entropy.clamp_(min=0.0)


def _sum_x_log_x(scaled: Tensor, share: Tensor) -> Tensor:
    """Return Σ λ log λ of every leading block of a matrix of trace 1."""
    fit = entropy_sum()
    total = fit.linear * share
    diagonal = scaled.diagonal().clone()
    # rounding in the matrix may add as much: a smaller shift could leave it indefinite, and has no
    # effect on the sum
    smallest_shift = 4 * torch.finfo(torch.float64).eps * len(scaled) * float(diagonal.max())
    shifted = scaled.clone()
    for pole, weight in zip(fit.poles.tolist(), fit.weights.tolist(), strict=True):
        pole = max(pole, smallest_shift)
        shifted.diagonal().copy_(diagonal + pole)
        factor, failed = torch.linalg.cholesky_ex(shifted)
        if int(failed):  # not positive definite
            raise ValueError(
                "the matrix has negative eigenvalues beyond rounding: it is not a Gram matrix"
            )
        total += weight * (
            2 * factor.diagonal().log() - torch.log(torch.tensor(pole, dtype=torch.float64))
        ).cumsum(0)
    return total
