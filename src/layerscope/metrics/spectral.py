"""Functions of the spectrum of pooled vectors, with the standard error that folds of prompts left
out give.

N ≤ D: the N×N Gram matrix. N > D: the D×D scatter matrix, summed block by block. Rows are prepared
once, with the mean of all: what a fold leaves behind is a part of the same matrix
(docs/decisions/intervals.md).

Leaving a fold out of an N×N Gram matrix removes its rows. Where sums over a spectrum suffice,
`layerscope.spectra.resolvents` gives those of what remains from one decomposition: solving 20 more
matrices would take ten times as long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from layerscope.core.statistics import jackknife_error
from layerscope.metrics.base import Estimate
from layerscope.metrics.entropy import gram_entropy, spectrum_entropy
from layerscope.metrics.vectors import (
    Options,
    RowPreparation,
    SiteVectors,
    doubles,
    n_folds,
    prepare_rows,
)
from layerscope.spectra import eigvalsh
from layerscope.spectra.resolvents import sums_without

__all__ = [
    "FEWEST",
    "FoldSums",
    "OfSpectrum",
    "can_use_sums",
    "entropies_without_each",
    "entropy_of_sums",
    "fold_members",
    "fold_scatters",
    "spectral_estimate",
]

FEWEST = 64  # rows: spectra of smaller matrices are as fast to solve

OfSums = Callable[[Tensor], Tensor]


def entropy_of_sums(sums: Tensor) -> Tensor:
    """Return S_1 from (Σ x, Σ x log x, Σ √x, Σ √x log x) along the last dimension."""
    return (sums[..., 0].log() - sums[..., 1] / sums[..., 0]).clamp(min=0)


def effective_rank_of_sums(sums: Tensor) -> Tensor:
    """Return exp of the entropy of q ∝ √x, from the same sums."""
    return (sums[..., 2].log() - sums[..., 3] / (2 * sums[..., 2])).clamp(min=0).exp()


class Spectrum(NamedTuple):
    """Eigenvalues, ascending and at least zero, of all rows (n,), and of the rows without each
    fold, those of one size stacked (folds, n)."""

    whole: Tensor
    without: list[Tensor]


class FoldSums(NamedTuple):
    """The power sums of a spectrum (4,), and of those without each fold (folds, 4)."""

    whole: Tensor
    without: Tensor


@dataclass(frozen=True)
class OfSpectrum:
    """The estimate of a function of the spectrum of the pooled vectors' Gram matrix.

    `function(eigenvalues, options)` takes them along the last dimension. `sums` returns the same
    function of their power sums, or None where the options leave none. `rows` says how the vectors
    are prepared, where that is not up to the options.
    """

    function: Callable[[Tensor, Options], Tensor]
    sums: Callable[[Options], OfSums | None] = lambda options: None
    rows: RowPreparation | None = None

    def __call__(self, site: SiteVectors, options: Options) -> Estimate:
        """Return the value and its standard error; NaN where no vector has a direction, as for a
        single prompt."""
        site, rows = site.in_groups(self.rows or options.pooled_rows, options.group)
        of_sums = self.sums(options)
        if of_sums is not None and can_use_sums(site, options):
            sums = site.once(("sums", rows), lambda: fold_sums(site, rows))
            if not float(sums.whole[0]) > 0:
                return spectral_estimate(site, math.nan, math.nan)
            left_out = of_sums(sums.without).tolist()
            return spectral_estimate(site, float(of_sums(sums.whole)), jackknife_error(left_out))
        clamp = options.clamp_gram
        spectrum = site.once(
            ("spectrum", rows, clamp), lambda: pooled_spectrum(site.rows, rows, clamp)
        )
        if not float(spectrum.whole[-1]) > 0:
            return spectral_estimate(site, math.nan, math.nan)
        value = float(self.function(spectrum.whole, options))
        without = [
            value for folds in spectrum.without for value in self.function(folds, options).tolist()
        ]
        return spectral_estimate(site, value, jackknife_error(without))


def spectral_estimate(site: SiteVectors, value: float, se: float) -> Estimate:
    """Return the estimate from a value and its standard error; undefined where the value is."""
    if not math.isfinite(value):
        return Estimate(math.nan, len(site), site.width, undefined=len(site))
    return Estimate(value, len(site), site.width, se=se, df=n_folds(len(site)) - 1)


def can_use_sums(site: SiteVectors, options: Options) -> bool:
    """Return True where folds can be left out of the Gram matrix by sums, and it pays.

    Clamped matrices may have negative eigenvalues.
    """
    return not options.clamp_gram and FEWEST <= len(site) <= site.width


def fold_sums(site: SiteVectors, rows: RowPreparation) -> FoldSums:
    """Return the power sums of the Gram matrix, of all prompts and without each fold."""
    gram = gram_matrix(site.rows, rows)
    whole, without = sums_without(gram.unsqueeze(0), fold_members(len(gram), gram.device))
    return FoldSums(whole[0], without[0])


def fold_members(n: int, device: torch.device | str = "cpu") -> list[Tensor]:
    """Return the prompts, of n, that are in each fold (folds, size): at most two sizes, each
    stacked."""
    folds = n_folds(n)
    members = [torch.arange(k, n, folds, device=device) for k in range(folds)]
    return stack_by_size(members)


def stack_by_size(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return consecutive tensors of the same length as one tensor each."""
    return [torch.stack(list(group)) for _, group in groupby(tensors, key=len)]


def gram_matrix(vectors: Tensor, rows: RowPreparation) -> Tensor:
    """Return the N×N Gram matrix of prepared rows, float64."""
    prepared = prepare_rows(vectors.double(), rows)
    return prepared @ prepared.mT


def pooled_spectrum(vectors: Tensor, rows: RowPreparation, clamp: bool) -> Spectrum:
    """Return the spectrum of pooled vectors (N, D) under a row preparation, and those without each
    fold. `clamp` sets negative entries of the matrices to zero."""
    if not len(vectors):
        raise ValueError("a spectrum needs one pooled vector at least")
    make = fold_grams if len(vectors) <= vectors.shape[1] else fold_scatters
    spectra = []
    for matrix in make(vectors, rows):
        spectra.append(eigvalsh(matrix.clamp(min=0) if clamp else matrix).clamp(min=0))
    return Spectrum(spectra[0], stack_by_size(spectra[1:]))


def fold_grams(vectors: Tensor, rows: RowPreparation) -> Iterator[Tensor]:
    """Yield the N×N matrix of all rows, then those without each fold."""
    gram = gram_matrix(vectors, rows)
    yield gram
    folds = n_folds(len(gram))
    fold_of = torch.arange(len(gram), device=gram.device) % max(1, folds)
    for fold in range(folds):
        stay = (fold_of != fold).nonzero()[:, 0]
        yield gram[stay.unsqueeze(-1), stay]


def fold_scatters(vectors: Tensor, rows: RowPreparation) -> Iterator[Tensor]:
    """Yield the D×D matrix of all rows, then those without each fold."""
    mean = None
    if rows.startswith("centered"):
        mean = torch.stack([block.sum(0) for block in doubles(vectors)]).sum(0) / len(vectors)
    folds = n_folds(len(vectors))
    scatters = [scatter_matrix(vectors[fold::folds], rows, mean) for fold in range(folds)]
    whole = torch.stack(scatters).sum(0)
    yield whole
    for scatter in scatters:
        yield whole - scatter


def scatter_matrix(vectors: Tensor, rows: RowPreparation, mean: Tensor | None) -> Tensor:
    """Return the sum of the outer products of prepared rows (D, D), float64."""
    width = vectors.shape[1]
    total = torch.zeros(width, width, dtype=torch.float64, device=vectors.device)
    for block in doubles(vectors):
        prepared = prepare_rows(block, rows, mean)
        total.addmm_(prepared.T, prepared)
    return total


# Entropies of Gram matrices whose rows are samples, without some of them


def equal_folds(n: int, device: torch.device) -> Tensor | None:
    """Return folds of n samples, all of one size (folds, size); None where fewer than three can be
    made.

    An entropy grows with its matrix, so that folds of different sizes would differ by that alone. A
    few samples are in none.
    """
    folds = n_folds(n)
    if folds < 3:
        return None
    size = n // folds
    return torch.arange(folds * size, device=device).view(size, folds).T.contiguous()


def equal_folds_error(values: Tensor, n: int) -> float:
    """Return the jackknife's standard error from the values without each fold; (folds − 1) / folds
    · Σ where they hold all n samples."""
    size = n // len(values)
    return math.sqrt((n - size) / size * float((values - values.mean()).square().mean()))


def entropies_without_each(grams: Tensor, alpha: float) -> Tensor:
    """Return S_α of matrices (B, n, n) without each of their rows (B, n).

    Exact for α = 1 and 2 and for few rows. For other orders of many rows the eigenvalues left are
    taken as λ_k (1 − v_ik²), to first order: solving n matrices would take n times as long.
    """
    n = grams.shape[-1]
    if alpha == 2:
        diagonal = grams.diagonal(dim1=-2, dim2=-1)
        squares = grams.square().sum(-1)
        trace = diagonal.sum(-1, keepdim=True) - diagonal
        remaining = squares.sum(-1, keepdim=True) - 2 * squares + diagonal.square()
        return -torch.log(remaining / trace.square())
    if n < FEWEST:
        is_other = ~torch.eye(n, dtype=torch.bool, device=grams.device)
        rows = torch.arange(n, device=grams.device).expand(n, n)[is_other].view(n, n - 1)
        smaller = [gram[rows.unsqueeze(-1), rows.unsqueeze(1)] for gram in grams]
        return torch.stack([gram_entropy(matrices, alpha) for matrices in smaller])
    if alpha == 1:
        single = torch.arange(n, device=grams.device).unsqueeze(-1)
        return entropy_of_sums(sums_without(grams, [single])[1])
    entropies = []
    for gram in grams:
        values, vectors = torch.linalg.eigh(gram)
        remaining = values.clamp(min=0) * (1 - vectors.square())
        entropies.append(spectrum_entropy(remaining, alpha))
    return torch.stack(entropies)
