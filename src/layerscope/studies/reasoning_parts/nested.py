"""Entropies of all prefixes of rows that do not change as the prefix grows.

Their Gram matrices are the leading blocks of one matrix G. With K = G / tr G, the entropy of the first n rows needs Σ λ log λ of
a leading block, which is a sum of log det(K_n + t_k) over 22 fixed t_k (see `logarithms`); a Cholesky factor of K + t_k has that
of every n on its diagonal. So all N entropies cost 22 factorisations, about 7 N³, instead of N sets of eigenvalues, about N⁴ / 3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from layerscope.studies.reasoning_parts.logarithms import entropy_sum

# Blocks that hold less than this share of the trace are done again on a scale of their own, far above the fit's floor.
_SMALL = 1 / 64


def prefix_entropies(gram: Tensor, alpha: float = 1.0) -> Tensor:
    """S_α (α = 1 or 2) of the leading n×n blocks of a Gram matrix (N, N), for n = 1 … N, float64; NaN where a block is zero.

    >>> [round(x, 6) for x in prefix_entropies(torch.eye(4)).exp().tolist()]
    [1.0, 2.0, 3.0, 4.0]
    """
    if alpha not in (1, 2):
        raise ValueError(f"prefixes are updated for alpha 1 and 2, not {alpha}")
    gram = gram.double()
    trace = gram.diagonal().cumsum(0)
    if gram.shape[0] == 0 or trace[-1] <= 0:
        return torch.full_like(trace, torch.nan)
    if alpha == 2:
        return torch.where(trace > 0, -(_squares(gram) / trace.square()).log(), torch.nan)
    scaled, share = gram / trace[-1], trace / trace[-1]
    entropy = share.log() - _sum_x_log_x(scaled, share) / share
    small = int((share < _SMALL).sum())
    if 0 < small < len(gram):
        entropy[:small] = prefix_entropies(gram[:small, :small])
    return entropy.clamp_(min=0.0)


def _sum_x_log_x(scaled: Tensor, share: Tensor) -> Tensor:
    """Σ λ log λ of every leading block of a matrix of trace 1."""
    fit = entropy_sum()
    total = fit.linear * share
    diagonal = scaled.diagonal().clone()
    # what rounding in the matrix can add to it: a smaller shift could leave it indefinite, and weighs nothing
    least = 4 * torch.finfo(torch.float64).eps * len(scaled) * float(diagonal.max())
    shifted = scaled.clone()
    for pole, weight in zip(fit.poles.tolist(), fit.weights.tolist(), strict=True):
        pole = max(pole, least)
        shifted.diagonal().copy_(diagonal + pole)
        factor, failed = torch.linalg.cholesky_ex(shifted)
        if int(failed):  # not positive definite, so no Gram matrix: say so rather than give a number
            raise ValueError("the matrix has negative eigenvalues beyond rounding: it is not a Gram matrix")
        total += weight * (2 * factor.diagonal().log() - torch.log(torch.tensor(pole, dtype=torch.float64))).cumsum(0)
    return total


def _squares(gram: Tensor) -> Tensor:
    """‖G_n‖² of every leading block."""
    lower = gram.tril().square()
    return (2 * lower.sum(1) - lower.diagonal()).cumsum(0)
